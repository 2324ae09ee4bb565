#include "tests/testing/plan/rank_check.h"

#include "plan/step/task_table.h"

namespace pagoda {

RankCheck::RankCheck(const RunShape* shape, const PageTable* pages, PlanFaults* faults)
    : shape_(*shape), pages_(*pages), faults_(*faults), updates_(shape->records.size(), 0) {}

void RankCheck::fault(PlanRule rule, const Task& task, const char* what) {
  faults_.push_back({rule, strf("%s of record %lld on device %d: %s", task_row(task.kind).name,
                                (long long)task.record, task.device, what)});
}

void RankCheck::begin_step() {
  for (const auto& [ranks, sent] : sent_) {
    if (!sent.empty()) {
      faults_.push_back({PlanRule::kMatched, "weights are sent that nobody receives"});
    }
  }
  sent_.clear();
  if (turn_) faults_.push_back({PlanRule::kMatched, "what is sent in turn is not received"});
  turn_.reset();
}

void RankCheck::check_use(const Task& task, const PageUse& use) {
  const PageTable::Page& page = pages_.pages[use.page];
  const PageTable::Class& info = pages_.classes[page.slot_class];
  const int rank = shape_.rank_of(task.device);
  if (page.device >= 0 && shape_.rank_of(page.device) != rank) {
    return fault(PlanRule::kHome, task, "uses another rank's page");
  }
  if (page.device >= 0 || shape_.home_rank(page.record) == rank) return;
  if (info.kind != PageKind::kWeights || (info.expert && !shape_.copies.several())) {
    return fault(PlanRule::kHome, task, "is away from its record's home");
  }
  if (task.kind == TaskKind::kReceivePage) return;
  if (changes_content(use.access)) fault(PlanRule::kHome, task, "changes a copy");
  const auto copy = copies_.find({page.record, rank});
  if (copy == copies_.end() || copy->second != updates_[page.record]) {
    fault(PlanRule::kHome, task, "computes with weights that are not the newest");
  }
}

void RankCheck::check_send(const Task& task) {
  const int from = shape_.rank_of(task.device), to = shape_.rank_of(task.peer);
  const RecordShape& record = shape_.records[static_cast<size_t>(task.record)];
  if (from == to) fault(PlanRule::kMatched, task, "goes nowhere");
  if (task.bytes != record.num_elements * shape_.dtype_bytes) {
    fault(PlanRule::kMatched, task, "sends other bytes than the weights");
  }
  sent_[{from, to}].push_back({task.record, task.bytes, updates_[task.record]});
}

void RankCheck::check_receive(const Task& task) {
  const int from = shape_.rank_of(task.peer), to = shape_.rank_of(task.device);
  std::deque<SentPage>& channel = sent_[{from, to}];
  if (channel.empty()) {
    return fault(PlanRule::kMatched, task, "is received and nobody has sent it");
  }
  const SentPage sent = channel.front();
  channel.pop_front();
  if (sent.record != task.record || sent.bytes != task.bytes) {
    fault(PlanRule::kMatched, task, "is received as another one was sent");
  }
  if (task.expert < 0) {
    copies_[{task.record, to}] = sent.updates;
  } else {
    guests_[task.uses[0].page] = sent;
  }
}

// An expert is computed with its own weights, the newest: of another rank's with what came, in a
// copy as any other weights (check_use).
void RankCheck::check_weights(const Task& task) {
  if (shape_.copies.several() || shape_.home_rank(task.record) == shape_.rank_of(task.device)) {
    if (task.uses[0].page != pages_.weights(task.record))
      fault(PlanRule::kHome, task, "computes at home with what a guest has");
    return;
  }
  const auto guest = guests_.find(task.uses[0].page);
  if (guest == guests_.end() || guest->second.record != task.record ||
      guest->second.updates != updates_[task.record]) {
    fault(PlanRule::kHome, task, "computes with other weights than its own, the newest");
  }
}

void RankCheck::check_turn(const Task& task) {
  const bool sends = task.kind == TaskKind::kSend;
  const std::pair<int, int> pair = {sends ? task.device : task.peer,
                                    sends ? task.peer : task.device};
  if (turn_.has_value() == sends || (turn_ && *turn_ != pair)) {
    fault(PlanRule::kMatched, task, "is not received in its turn");
  }
  turn_ = sends ? std::optional(pair) : std::nullopt;
}

void RankCheck::check(const Task& task) {
  if (shape_.ranks() == 1) return;
  for (const PageUse& use : task.used()) check_use(task, use);
  if (task.kind == TaskKind::kAdam) ++updates_[task.record];
  if (task.kind == TaskKind::kSendPage) check_send(task);
  if (task.kind == TaskKind::kReceivePage) check_receive(task);
  if (task.in_turn) check_turn(task);
  if (task.kind == TaskKind::kExpert || task.kind == TaskKind::kExpertBackward) {
    check_weights(task);
  }
}

}  // namespace pagoda
