#include "tests/testing/plan/order_check.h"

#include <algorithm>

#include "base/bytes.h"
#include "plan/step/task_table.h"

namespace pagoda {

OrderCheck::OrderCheck(const RunShape* shape, const PageTable* pages, PlanFaults* faults)
    : shape_(*shape), pages_(*pages), faults_(*faults) {}

bool OrderCheck::is_sum(PageId page) const {
  return pages_.classes[pages_.pages[page].slot_class].kind == PageKind::kGradientSum;
}

bool OrderCheck::is_expert_sum(PageId page) const {
  return pages_.classes[pages_.pages[page].slot_class].kind == PageKind::kExpertSum;
}

void OrderCheck::begin_step() {
  done_.clear();
  rows_.clear();
  exchange_.clear();
  stayed_.clear();
  given_comes_by_.reset();
  messages_.clear();
  held_.clear();
  added_ = {};
  computed_.clear();
  sums_.clear();
  seats_.clear();
  expert_sums_.clear();
  cells_.clear();
  finished_.clear();
  indexed_.clear();
  arrived_.clear();
  for (const auto& [channel, sent] : sent_) {
    if (!sent.empty())
      faults_.push_back({PlanRule::kMatched, "bytes are sent that nobody receives"});
  }
  sent_.clear();
}

void OrderCheck::fault(const Task& task, const char* what) {
  faults_.push_back({PlanRule::kInputs,
                     strf("%s of layer %d, expert %d, microbatch %d: %s",
                          task_row(task.kind).name, task.layer, task.expert, task.microbatch,
                          what)});
}

bool OrderCheck::done(TaskKind kind, Phase phase, int64_t layer, int64_t microbatch) const {
  return done_.contains({kind, phase, layer, microbatch});
}

bool OrderCheck::all_done(TaskKind kind, Phase phase, int64_t layer) const {
  for (int64_t b = 0; b < shape_.microbatches; ++b) {
    if (!done(kind, phase, layer, b)) return false;
  }
  return true;
}

// Every row that was handed out has come back.
bool OrderCheck::experts_over(const Task& task) const {
  const auto rows = std::find_if(rows_.begin(), rows_.end(), [&](const auto& of) {
    const auto& [phase, layer, first] = of.first;
    const int64_t behind = task.microbatch - first;
    return phase == task.phase && layer == task.layer && behind >= 0 &&
           behind < of.second.microbatches;
  });
  if (rows == rows_.end()) return false;
  const Rows& r = rows->second;
  const int64_t choices = shape_.microbatch_tokens * shape_.experts_per_token;
  const int64_t begin = r.first_microbatch * choices;
  int64_t end = begin;  // experts have computed each row once
  for (const auto& [first, count] : r.computed_rows) {
    if (first != end) return false;
    end += count;
  }
  return end - begin == r.dispatched && r.combined == r.dispatched;
}

// The gradient of what the layer gave to the microbatch is there.
bool OrderCheck::begun_backward(const Task& task) const {
  if (task.layer + 1 == shape_.num_layers) {
    return done(TaskKind::kHead, Phase::kForward, -1, task.microbatch);
  }
  const int64_t above = task.layer + 1;
  if (shape_.leaves_stage(task.layer)) {
    return arrived_.contains({TaskKind::kSend, Phase::kBackward, above, task.microbatch});
  }
  return done(TaskKind::kAttentionBackward, Phase::kBackward, above, task.microbatch);
}

void OrderCheck::check_dense(const Task& task) {
  const int64_t l = task.layer, b = task.microbatch;
  const bool moe = l >= 0 && shape_.is_moe[l];
  switch (task.kind) {
    case TaskKind::kAttention:
    case TaskKind::kCachedAttention:
      if (l > 0 && shape_.leaves_stage(l - 1) &&
          !arrived_.contains({TaskKind::kSend, Phase::kForward, l, b})) {
        fault(task, "before its input has come from the stage below");
      }
      return;
    case TaskKind::kRoute:
    case TaskKind::kDenseMlp:
      if (!done(TaskKind::kAttention, Phase::kForward, l, b) &&
          !done(TaskKind::kCachedAttention, Phase::kForward, l, b)) {
        fault(task, "before its attention");
      }
      return;
    case TaskKind::kResidual:
      if (!experts_over(task)) fault(task, "before all rows are combined");
      return;
    case TaskKind::kRouteReplay:
    case TaskKind::kDenseMlpBackward:
      if (!begun_backward(task)) fault(task, "before the gradient of its output");
      return;
    case TaskKind::kRouteBackward:
      if (!experts_over(task)) fault(task, "before all rows are combined");
      return;
    case TaskKind::kAttentionBackward: {
      const TaskKind above = moe ? TaskKind::kRouteBackward : TaskKind::kDenseMlpBackward;
      if (!done(above, Phase::kBackward, l, b)) fault(task, "before what follows attention");
      return;
    }
    case TaskKind::kEmbedBackward:
      if (!done(TaskKind::kAttentionBackward, Phase::kBackward, 0, b)) {
        fault(task, "before the first layer's backward");
      }
      return;
    default: return;
  }
}

bool OrderCheck::possible_height(const Task& task) const {
  const int64_t least = shape_.options.padded_experts ? 0 : 1, height = task.rows + task.padding;
  if (task.padding < 0 || (task.padding > 0 && !shape_.options.padded_experts)) return false;
  return task.rows >= least && height > 0 && height <= shape_.group_rows();
}

// The first microbatch of a group begins its page, and each comes once.
void OrderCheck::check_dispatch(const Task& task, Rows& rows) {
  Group& group = begin_group(task);
  group.to = task.peer;
  const bool inputs_too = task.phase == Phase::kForward || !has_inputs(task, task.peer);
  const auto used = task.used();
  const bool reads_inputs = std::any_of(
      used.begin(), used.end(), [&](const PageUse& use) { return pages_.is_normed(use.page); });
  if (task.rows > 0 && reads_inputs != inputs_too) fault(task, "hands out other arrays than come");
  if (!group.is_of(task)) fault(task, "is handed out where another group is");
  if (!group.microbatches.insert(task.microbatch).second) fault(task, "is handed out twice");
  group.rows += task.rows;
  group.rows_of[task.device] += task.rows;
  rows.dispatched += task.rows;
}

// Each microbatch of the device has its rows in the group once, and where they are added, its sum.
void OrderCheck::check_read_rows(const Task& task, Rows& rows) {
  Group& group =
      held_.try_emplace(task.device, Group{task.phase, task.layer, task.wave}).first->second;
  if (!group.is_of(task) || !task.joins_next) fault(task, "does not join its group");
  if (shape_.attending(task.layer, task.microbatch) != task.device)
    fault(task, "reads another device's rows");
  if (!group.microbatches.insert(task.microbatch).second) fault(task, "is handed out twice");
  const int stage = shape_.stage_of(task.layer);
  std::vector<std::pair<PageId, Access>> expected = {
      {pages_.normed(stage, task.microbatch), Access::kRead}};
  if (task.phase == Phase::kBackward) {
    expected.emplace_back(pages_.dresidual(stage, task.microbatch), Access::kRead);
  }
  if (shape_.adds_in_place()) {
    expected.emplace_back(pages_.sum(stage, task.microbatch), Access::kWrite);
  }
  if (!std::ranges::equal(task.used(), expected, [](const PageUse& use, const auto& page) {
        return std::pair(use.page, use.access) == page;
      })) {
    fault(task, "holds other pages than the rows'");
  }
  group.rows += task.rows;
  group.rows_of[task.device] += task.rows;
  rows.dispatched += task.rows;
}

bool OrderCheck::is_kind(PageId page, PageKind kind) const {
  return pages_.classes[pages_.pages[page].slot_class].kind == kind;
}

// What the forward has left is of this wave and chunk, and of all rows that are copies.
void OrderCheck::check_kept_rows(const Task& task, const PageUse& use, int64_t copied_rows) {
  const std::tuple<int64_t, int64_t, int64_t, int> of = {task.layer, task.first_microbatch,
                                                         task.wave, task.device};
  if (task.phase == Phase::kForward) {
    stayed_.insert(of);
    return;
  }
  const Group& inputs = exchange_[use.page];
  if (!stayed_.contains(of)) fault(task, "reads inputs that have not stayed");
  if (inputs.phase != Phase::kForward || inputs.layer != task.layer || inputs.wave != task.wave ||
      inputs.rows != copied_rows) {
    fault(task, "reads the inputs of other rows");
  }
}

// The rows that an expert's group reads: those that its device holds in place, and copies.
OrderCheck::Group OrderCheck::input_of(const Task& task) {
  const auto held = held_.find(task.device);
  std::vector<Group> parts;
  if (held != held_.end()) parts.push_back(held->second);
  const bool forward = task.phase == Phase::kForward;
  const PageUse* kept = nullptr;
  int64_t copied_rows = 0;
  for (const PageUse& use : task.used()) {
    const bool stays = is_kind(use.page, PageKind::kKeptRows);
    if (is_kind(use.page, PageKind::kInbound) || (stays && forward)) {
      parts.push_back(exchange_[use.page]);
      copied_rows = parts.back().rows;
    }
    if (stays) kept = &use;
  }
  if (kept != nullptr) {
    check_kept_rows(task, *kept, copied_rows);
  } else if (!forward && copied_rows > 0 && has_inputs(task, task.device)) {
    fault(task, "leaves the inputs that have stayed");
  }
  if (parts.empty()) return {};
  Group all = parts.front();
  if (parts.size() == 1) return all;
  const Group& copied = parts.back();
  if (!copied.is_of(task)) fault(task, "reads rows that are not its own");
  for (const int64_t b : copied.microbatches) {
    if (!all.microbatches.insert(b).second) fault(task, "reads rows twice");
  }
  all.rows += copied.rows;
  for (const auto& [device, rows] : copied.rows_of) all.rows_of[device] += rows;
  return all;
}

// An expert's rows of a shard are computed in one place in a step: at home, unless seats follow
// from its rows; or where they are, if the run has guests; or in the copy whose devices attend to
// them.
void OrderCheck::check_seat(const Task& task) {
  const int64_t shards = shape_.sums.expert_shards, shard = task.cell % shards;
  if (seats_.emplace(std::pair(task.record, shard), task.device).first->second != task.device) {
    fault(task, "computes rows of a shard that another device does");
  }
  if (shape_.copies.several()) return check_copy(task);
  bool own_rows = shape_.sharing != Sharing::kRows;
  for (int64_t b = 0; b < shape_.microbatches; ++b) {
    const bool here = shape_.attending(task.layer, b) == task.device;
    if (shape_.sums.cell(b, shape_.microbatches) == task.cell) own_rows = own_rows && here;
  }
  if (own_rows) return;
  const int seat = seats_.emplace(std::pair(task.record, int64_t{-1}), task.device).first->second;
  const bool at_home = shape_.records[task.record].device == task.device;
  const bool may_move =
      !shape_.seat_speeds.empty() && shape_.rank_of(task.device) == shape_.home_rank(task.record);
  if (seat != task.device || (!at_home && !may_move)) {
    fault(task, "is away from its expert's seat");
  }
}

void OrderCheck::check_copy(const Task& task) {
  const int copy = shape_.copies.of_device(task.device);
  if (shape_.copies.seats[static_cast<size_t>(copy)][static_cast<size_t>(task.record)] !=
      task.device) {
    fault(task, "is away from its expert's seat");
  }
  for (int64_t b = 0; b < shape_.microbatches; ++b) {
    const int device = shape_.attending(task.layer, b);
    if (shape_.sums.cell(b, shape_.microbatches) != task.cell) continue;
    if (shape_.copies.of_device(device) != copy) fault(task, "computes rows of another copy");
  }
}

// The rows that an expert's group gives: in outbound, or added to sums by experts in their order.
OrderCheck::Group& OrderCheck::output_of(const Task& task, Rows& rows) {
  const Group begun{task.phase, task.layer, task.wave};
  if (!shape_.adds_in_place()) {
    Group& out = exchange_[task.uses[1].page];
    if (task.uses[1].access == Access::kCreate) out = begun;
    return out;
  }
  if (task.expert < rows.newest_added) fault(task, "adds out of the experts' order");
  rows.newest_added = task.expert;
  if (added_.whole || !added_.is_of(task)) added_ = begun;
  return added_;
}

// The experts of a group read what was handed out, one behind the other.
void OrderCheck::check_expert(const Task& task, Rows& rows) {
  const Group in = input_of(task);
  Group& out = output_of(task, rows);
  if (!possible_height(task)) fault(task, "of an impossible height");
  check_seat(task);
  if (!in.is_of(task)) fault(task, "reads rows that are not its own");
  if (!out.is_of(task) || out.rows != task.block_row) {
    fault(task, "does not follow the experts before it");
  }
  out.rows += task.rows;
  out.rows_of = in.rows_of;
  out.whole = !task.joins_next;
  if (out.whole && out.rows != in.rows) fault(task, "leaves rows of its group");
  if (out.whole) held_.erase(task.device);
  if (out.whole && shape_.adds_in_place()) rows.combined += in.rows;
  if (task.rows > 0 && !rows.computed_rows.emplace(task.first_row, task.rows).second) {
    fault(task, "computes rows twice");
  }
  if (task.kind == TaskKind::kExpertBackward) check_expert_sum(task);
}

// A microbatch's sum takes waves, and in all of them experts, in order; an expert may go on in the
// next wave.
void OrderCheck::check_combine(const Task& task, Rows& rows) {
  if (shape_.adds_in_place()) fault(task, "combines what experts have added");
  for (const PageUse& use : task.used()) {
    const auto group = exchange_.find(use.page);
    if (group == exchange_.end()) continue;  // the sum
    if (!group->second.is_of(task) || !group->second.whole) {
      fault(task, "combines rows that are not its own");
    }
  }
  if (task.rows == 0) return;
  const std::pair<int64_t, int64_t> at = {task.wave, task.expert};
  const auto newest = rows.newest.find(task.microbatch);
  const bool first = newest == rows.newest.end();
  if (!first && (at <= newest->second || task.expert < newest->second.second)) {
    fault(task, "sums out of the experts' order");
  }
  rows.newest[task.microbatch] = {task.wave, task.last_expert};
  rows.combined += task.rows;
}

// A parcel joins what is in the group already.
void OrderCheck::check_place(const Task& task) {
  Group& group = exchange_[task.uses[0].page];
  const Group& parcel = exchange_[task.uses[1].page];
  if (task.uses[0].access == Access::kCreate) group = {task.phase, task.layer, task.wave};
  if (!group.is_of(task) || !parcel.is_of(task)) fault(task, "places rows of another group");
  if (parcel.rows != task.rows ||
      parcel.rows_of != std::map<int, int64_t>{{task.peer, task.rows}}) {
    fault(task, "places other rows than arrived");
  }
  for (const int64_t b : parcel.microbatches) {
    if (!group.microbatches.insert(b).second) fault(task, "is handed out twice");
  }
  group.rows += parcel.rows;
  group.rows_of[task.peer] += parcel.rows;
}

// All rows of a device are taken out of what the experts gave.
void OrderCheck::check_pack(const Task& task) {
  const Group& group = exchange_[task.uses[1].page];
  if (!group.is_of(task) || !group.whole) fault(task, "packs rows that are not its own");
  const auto rows = group.rows_of.find(task.peer);
  if (rows == group.rows_of.end() || rows->second != task.rows) {
    fault(task, "packs other rows than the device's");
  }
  Group& parcel = begin_group(task);
  if (parcel.rows > 0) fault(task, "packs rows where others are");
  parcel = {task.phase, task.layer, task.wave, task.rows, true};
  parcel.rows_of[task.peer] = task.rows;
  parcel.to = task.peer;
}

// Whether it carries what a layer gives, or its gradient, to another stage.
bool OrderCheck::between_stages(const Task& task) const {
  return task.wave < 0 && task.microbatch >= 0;
}

// What a stage sends is complete, and has the place of the layer that reads it.
void OrderCheck::check_boundary(const Task& task) {
  const int64_t l = task.layer, b = task.microbatch;
  const bool forward = task.phase == Phase::kForward;
  const int below = shape_.attending(l - 1, b), above = shape_.attending(l, b);
  const bool sends = task.kind == TaskKind::kSend;
  if (!shape_.leaves_stage(l - 1) || task.device != (sends == forward ? below : above) ||
      task.peer != (sends == forward ? above : below)) {
    fault(task, "crosses from no stage to the next");
  }
  if (task.bytes != shape_.microbatch_tokens * shape_.hidden_size * shape_.dtype_bytes) {
    fault(task, "carries other bytes than a microbatch's rows");
  }
  PageId page = forward ? pages_.leaving_input(l, b) : pages_.dresidual(shape_.stage_of(l), b);
  if (!sends) {
    page = forward ? pages_.layer_input(l, b) : pages_.dresidual(shape_.stage_of(l - 1), b);
  }
  if (task.uses[0].page != page) fault(task, "is of another page than its layer's");
  std::deque<Sent>& channel =
      sent_[{sends ? task.device : task.peer, sends ? task.peer : task.device}];
  if (sends) {
    const TaskKind gives =
        shape_.is_moe[static_cast<size_t>(l - 1)] ? TaskKind::kResidual : TaskKind::kDenseMlp;
    const bool ready = forward ? done(gives, task.phase, l - 1, b)
                               : done(TaskKind::kAttentionBackward, task.phase, l, b);
    if (!ready) fault(task, "before there is anything to send");
    channel.push_back({{}, "", 0, task.bytes, true, true, l, b});
    return;
  }
  const bool matched = !channel.empty() && channel.front().boundary && channel.front().layer == l &&
                       channel.front().microbatch == b;
  if (!matched) {
    faults_.push_back({PlanRule::kMatched, "a stage receives what the other has not sent"});
  } else {
    channel.pop_front();
  }
  if (!arrived_.insert({TaskKind::kSend, task.phase, l, b}).second) fault(task, "arrives twice");
}

void OrderCheck::check_send(const Task& task) {
  if (between_stages(task)) return check_boundary(task);
  std::deque<Sent>& channel = sent_[{task.device, task.peer}];
  const PageId page = task.uses[0].page;
  if (is_sum(page)) {
    const std::string& sum = sums_[{page, shared_part(task)}];
    const auto element = static_cast<int64_t>(sizeof(float));
    if (sum.empty() || sum.ends_with('?')) fault(task, "sends no sum, or not all of it");
    check_elements(task);
    if (task.bytes != task.elements * element) fault(task, "sends other bytes than its sum's");
    return channel.push_back({{}, sum, 0, task.bytes});
  }
  if (is_expert_sum(page)) return send_expert_sum(task, channel);
  if (pages_.is_message(page)) {
    const bool passed_on = shape_.rank_of(task.device) == shape_.rank_of(task.peer);
    return passed_on ? check_passed_on(task) : check_gathered(task);
  }
  Group& group = exchange_[page];
  if (!group.is_of(task)) fault(task, "sends rows that are not its own");
  if (task.first_byte != group.sent_bytes) fault(task, "sends bytes again, or leaves some out");
  group.sent_bytes += task.bytes;
  const int64_t all = parcel_bytes(task, group);
  const bool ends = group.sent_bytes == all;
  if (task.bytes <= 0 || group.sent_bytes > all) {
    fault(task, "sends other bytes than its rows'");
  }
  if (task.rows != (ends ? group.rows : 0)) fault(task, "counts other rows than it has sent");
  const int owner = group.whole ? task.peer : task.device;
  if (group.rows_of != std::map<int, int64_t>{{owner, group.rows}}) {
    fault(task, "sends rows that another device attends to");
  }
  channel.push_back({group, "", task.first_byte, task.bytes, ends});
}

// Rows of other ranks come by any of the lanes that their device has, all else in a stage by the
// first one, but for sums of experts. In zebra what experts gave has another first one, throughout
// a pass; but in passes of one round, which are those that generate, it has the same.
void OrderCheck::check_lane(const Task& task) {
  if (shape_.stages.of_device(task.device) != shape_.stages.of_device(task.peer)) return;
  if (is_expert_sum(task.uses[0].page)) {
    if (task.lane != Lane::kSums) fault(task, "comes by another lane than sums");
    return;
  }
  Lane first = Lane::kIn;
  if (task.wave >= 0 && is_kind(task.uses[0].page, PageKind::kOutbound) && shape_.ways_apart()) {
    if (!given_comes_by_) given_comes_by_ = task.lane == Lane::kIn ? Lane::kIn : Lane::kInBack;
    first = *given_comes_by_;
  }
  const int rank = shape_.rank_of(task.device);
  const bool rows = task.wave >= 0 && shape_.rank_of(task.peer) != rank;
  const int lanes = rows ? shape_.in_lanes(rank) : 1;
  for (int n = 0; n < lanes; ++n) {
    if (task.lane == (n == 0 ? first : in_lane(n))) return;
  }
  fault(task, "comes by a lane that its device has not");
}

void OrderCheck::check_receive(const Task& task) {
  if (between_stages(task)) return check_boundary(task);
  check_lane(task);
  std::deque<Sent>& channel = sent_[{task.peer, task.device}];
  if (channel.empty()) {
    faults_.push_back({PlanRule::kMatched, "bytes are received that nobody has sent"});
    return;
  }
  const Sent sent = channel.front();
  channel.pop_front();
  const PageId page = task.uses[0].page;
  const bool of_expert = is_expert_sum(page);
  bool same = is_sum(page) || of_expert
                  ? !sent.sum.empty() && sent.expert_record == (of_expert ? task.record : -1)
                  : sent.sum.empty() && sent.group.is_of(task);
  same = same && pages_.is_message(page) == !sent.parcels.empty();
  if (!same || sent.bytes != task.bytes || sent.first_byte != task.first_byte) {
    faults_.push_back({PlanRule::kMatched, "other bytes are received than were sent"});
  }
  if (is_sum(page)) {
    sums_[{page, shared_part(task)}] = sent.sum;
  } else if (of_expert) {
    // No chain goes on here.
    expert_sums_[page] = {sent.expert_record, shape_.sums.cells(), sent.sum};
  } else if (pages_.is_message(page)) {
    messages_[page] = sent.parcels;
  } else {
    if ((task.uses[0].access == Access::kCreate) != (task.first_byte == 0)) {
      fault(task, "loses or keeps what has come before");
    }
    exchange_[page] = sent.ends ? sent.group : Group();
    exchange_[page].sent_bytes = 0;
  }
}

// Whether the device's newest re-index vector has the microbatch's rows in this layer.
bool OrderCheck::is_indexed(const Task& task) const {
  const auto found = indexed_.find(task.device);
  if (found == indexed_.end()) return false;
  const Task& index = found->second;
  const int64_t behind = task.microbatch - index.microbatch;
  return index.phase == task.phase && index.layer == task.layer && behind >= 0 &&
         behind < index.microbatches;
}

void OrderCheck::check_group(const Task& task) {
  if (task.kind == TaskKind::kSend) return check_send(task);
  if (task.kind == TaskKind::kReceive) return check_receive(task);
  const auto rows = rows_.find({task.phase, task.layer, task.first_microbatch});
  if (rows == rows_.end()) return fault(task, "before the layer's rows are sorted");
  const bool by_index = task.microbatch >= 0 && task.rows > 0;
  if (by_index && !is_indexed(task)) fault(task, "before its device has sorted them");
  switch (task.kind) {
    case TaskKind::kDispatch:
    case TaskKind::kDispatchBackward: return check_dispatch(task, rows->second);
    case TaskKind::kExpert:
    case TaskKind::kExpertBackward:
      return check_expert(task, rows->second);
    case TaskKind::kReadRows:
      return check_read_rows(task, rows->second);
    case TaskKind::kPlaceRows:
      return check_place(task);
    case TaskKind::kPackRows:
      return check_pack(task);
    case TaskKind::kTakeParcel:
      return check_take(task);
    default: return check_combine(task, rows->second);
  }
}

void OrderCheck::check(const Task& task) {
  if (!task_row(task.kind).runs_in(task.phase)) fault(task, "in a phase that its kind is not of");
  switch (task.kind) {
    case TaskKind::kAdam:
    case TaskKind::kSendPage:
    case TaskKind::kReceivePage:
    case TaskKind::kPrefetch:
    case TaskKind::kUpload: return;
    case TaskKind::kAddSums:
      return task.expert >= 0 ? add_expert_sums(task) : add_sums(task);
    case TaskKind::kGradient: return check_gradient(task);
    case TaskKind::kIndex: {
      const bool forward = task.phase == Phase::kForward;
      const TaskKind routed = forward ? TaskKind::kRoute : TaskKind::kRouteReplay;
      for (int64_t b = task.microbatch; b < task.microbatch + task.microbatches; ++b) {
        if (shape_.attending(task.layer, b) != task.device) continue;
        if (!done(routed, task.phase, task.layer, b)) fault(task, "before the layer's routing");
      }
      Rows rows;
      rows.first_microbatch = task.microbatch;
      rows.microbatches = task.microbatches;
      rows_[{task.phase, task.layer, task.microbatch}] = rows;
      indexed_[task.device] = task;
      return;
    }
    case TaskKind::kDispatch:
    case TaskKind::kExpert:
    case TaskKind::kCombine:
    case TaskKind::kSend:
    case TaskKind::kReceive:
    case TaskKind::kTakeParcel:
    case TaskKind::kPlaceRows:
    case TaskKind::kPackRows:
    case TaskKind::kReadRows:
    case TaskKind::kDispatchBackward:
    case TaskKind::kExpertBackward:
    case TaskKind::kCombineBackward: return check_group(task);
    default:
      check_dense(task);
      note_sum(task);
      done_.insert({task.kind, task.phase, task.layer, task.microbatch});
  }
}

}  // namespace pagoda
