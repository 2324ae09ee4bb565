#include "tests/testing/plan/order_check.h"

#include <algorithm>

#include "base/bytes.h"
#include "plan/step/task_table.h"

namespace pagoda {

namespace {

// Sums in pairs, pairs in pairs, and so on; an empty one is none.
std::string tree(std::vector<std::string> level) {
  while (level.size() > 1) {
    std::vector<std::string> above;
    for (size_t i = 0; i < level.size(); i += 2) {
      const std::string left = level[i], right = i + 1 < level.size() ? level[i + 1] : "";
      const bool both = !left.empty() && !right.empty();
      above.push_back(both ? "(" + left + "," + right + ")" : left + right);
    }
    level = above;
  }
  return level.front();
}

}  // namespace

OrderCheck::OrderCheck(const RunShape* shape, const PageTable* pages, PlanFaults* faults)
    : shape_(*shape), pages_(*pages), faults_(*faults) {}

bool OrderCheck::is_sum(PageId page) const {
  return pages_.classes[pages_.pages[page].slot_class].kind == PageKind::kGradientSum;
}

void OrderCheck::begin_step() {
  done_.clear();
  rows_.clear();
  exchange_.clear();
  held_.clear();
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
  Group& group = exchange_[task.uses[0].page];
  if (task.uses[0].access == Access::kCreate) group = {task.phase, task.layer, task.wave};
  if (!group.is_of(task)) fault(task, "is handed out where another group is");
  if (!group.microbatches.insert(task.microbatch).second) fault(task, "is handed out twice");
  group.rows += task.rows;
  group.rows_of[task.device] += task.rows;
  rows.dispatched += task.rows;
}

// Each microbatch of the device has its rows in the group once.
void OrderCheck::check_read_rows(const Task& task, Rows& rows) {
  Group& group =
      held_.try_emplace(task.device, Group{task.phase, task.layer, task.wave}).first->second;
  if (!group.is_of(task) || !task.joins_next) fault(task, "does not join its group");
  if (shape_.attending(task.layer, task.microbatch) != task.device)
    fault(task, "reads another device's rows");
  if (!group.microbatches.insert(task.microbatch).second) fault(task, "is handed out twice");
  const size_t read = task.phase == Phase::kBackward ? 2 : 1;
  const int stage = shape_.stage_of(task.layer);
  if (task.num_uses != read || task.uses[0].page != pages_.normed(stage, task.microbatch) ||
      (read == 2 && task.uses[1].page != pages_.dresidual(stage, task.microbatch))) {
    fault(task, "holds other pages than the rows'");
  }
  group.rows += task.rows;
  group.rows_of[task.device] += task.rows;
  rows.dispatched += task.rows;
}

// The rows that an expert's group reads: those that its device holds in place, and copies.
OrderCheck::Group OrderCheck::input_of(const Task& task) {
  const auto held = held_.find(task.device);
  std::vector<Group> parts;
  if (held != held_.end()) parts.push_back(held->second);
  for (const PageUse& use : task.used()) {
    const bool inbound =
        pages_.classes[pages_.pages[use.page].slot_class].kind == PageKind::kInbound;
    if (inbound) parts.push_back(exchange_[use.page]);
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

// An expert is computed in one place in a step: at home, unless seats follow from its rows.
void OrderCheck::check_seat(const Task& task) {
  const int seat = seats_.emplace(task.record, task.device).first->second;
  const bool at_home = shape_.records[task.record].device == task.device;
  const bool may_move =
      !shape_.seat_speeds.empty() && shape_.rank_of(task.device) == shape_.home_rank(task.record);
  if (seat != task.device || (!at_home && !may_move)) {
    fault(task, "is away from its expert's seat");
  }
}

// The experts of a group read what was handed out, one behind the other.
void OrderCheck::check_expert(const Task& task, Rows& rows) {
  const Group in = input_of(task);
  Group& out = exchange_[task.uses[1].page];
  if (!possible_height(task)) fault(task, "of an impossible height");
  check_seat(task);
  if (!in.is_of(task)) fault(task, "reads rows that are not its own");
  if (task.uses[1].access == Access::kCreate) out = {task.phase, task.layer, task.wave};
  if (!out.is_of(task) || out.rows != task.block_row) {
    fault(task, "does not follow the experts before it");
  }
  out.rows += task.rows;
  out.rows_of = in.rows_of;
  out.whole = !task.joins_next;
  if (out.whole && out.rows != in.rows) fault(task, "leaves rows of its group");
  if (out.whole) held_.erase(task.device);
  if (task.rows > 0 && !rows.computed_rows.emplace(task.first_row, task.rows).second) {
    fault(task, "computes rows twice");
  }
  if (task.kind == TaskKind::kExpertBackward) check_expert_sum(task);
}

// A chain of an expert's gradient begins once, and takes cells of its shard in their order. Where
// it lies in working memory, it ends with a block that says so.
void OrderCheck::check_expert_sum(const Task& task) {
  if (finished_.contains(task.record)) fault(task, "adds to a gradient that is finished");
  if (!shape_.pages_expert_sums()) {
    if (task.last) computed_.insert(task.record);
    return;
  }
  const PageUse& use = task.uses[task.num_uses - 1];
  ExpertSum& sum = expert_sums_[use.page];
  if (task.first != (use.access == Access::kCreate)) fault(task, "loses or keeps what it adds to");
  if (task.first && sum.record >= 0) fault(task, "begins where another sum is");
  if (task.first) sum = {task.rows > 0 ? task.record : -1};
  if (task.rows == 0) return;  // padding
  computed_.insert(task.record);
  cells_[task.record].insert(task.cell);
  const int64_t shards = shape_.sums.expert_shards;
  const bool other_shard = sum.newest_cell >= 0 && sum.newest_cell % shards != task.cell % shards;
  if (sum.record != task.record || sum.newest_cell > task.cell || other_shard) {
    fault(task, "adds to another sum, or out of the cells' order");
  }
  if (sum.newest_cell != task.cell) {
    sum.text += (sum.text.empty() ? "" : "+") + std::to_string(task.cell);
  }
  sum.newest_cell = task.cell;
}

void OrderCheck::add_expert_sums(const Task& task) {
  ExpertSum& to = expert_sums_[task.uses[0].page];
  ExpertSum& from = expert_sums_[task.uses[1].page];
  const int64_t elements = shape_.records[task.record].num_elements;
  if (to.record != task.record || from.record != task.record) {
    fault(task, "adds a sum that is not there");
  }
  if (task.first_element != 0 || task.elements != elements) fault(task, "adds other elements");
  to.text = "(" + to.text + "," + from.text + ")";
  to.newest_cell = shape_.sums.cells();  // no chain goes on here
  from = {};
}

// The tree over the shards in which the expert has rows.
std::string OrderCheck::expected_expert_sum(int64_t record) const {
  const int64_t shards = shape_.sums.expert_shards;
  std::vector<std::string> level(static_cast<size_t>(shards));
  for (const int64_t cell : cells_.at(record)) {
    std::string& leaf = level[static_cast<size_t>(cell % shards)];
    leaf += (leaf.empty() ? "" : "+") + std::to_string(cell);
  }
  return tree(std::move(level));
}

// A microbatch's sum takes waves, and in each wave experts, in order.
void OrderCheck::check_combine(const Task& task, Rows& rows) {
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
  if (newest != rows.newest.end() && at <= newest->second) {
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
  Group parcel{task.phase, task.layer, task.wave, task.rows, true};
  parcel.rows_of[task.peer] = task.rows;
  exchange_[task.uses[0].page] = parcel;
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
    channel.push_back({{}, "", task.bytes, true, l, b});
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
    return channel.push_back({{}, sum, task.bytes});
  }
  const Group& group = exchange_[page];
  const auto row = static_cast<int64_t>(shape_.hidden_size * shape_.dtype_bytes);
  // Inputs, and in the backward output gradients and routing weights; or what experts gave.
  const bool back = group.whole, backward = task.phase == Phase::kBackward;
  const int64_t row_bytes = (backward && !back ? 2 : 1) * row + (backward ? 4 : 0);
  if (!group.is_of(task)) fault(task, "sends rows that are not its own");
  if (task.bytes != group.rows * row_bytes) fault(task, "sends other bytes than its rows'");
  const int owner = back ? task.peer : task.device;
  if (group.rows_of != std::map<int, int64_t>{{owner, group.rows}}) {
    fault(task, "sends rows that another device attends to");
  }
  channel.push_back({group, "", task.bytes});
}

void OrderCheck::check_receive(const Task& task) {
  if (between_stages(task)) return check_boundary(task);
  std::deque<Sent>& channel = sent_[{task.peer, task.device}];
  if (channel.empty()) {
    faults_.push_back({PlanRule::kMatched, "bytes are received that nobody has sent"});
    return;
  }
  const Sent sent = channel.front();
  channel.pop_front();
  const PageId page = task.uses[0].page;
  const bool same = is_sum(page) ? !sent.sum.empty() : sent.sum.empty() && sent.group.is_of(task);
  if (!same || sent.bytes != task.bytes) {
    faults_.push_back({PlanRule::kMatched, "other bytes are received than were sent"});
  }
  if (is_sum(page)) {
    sums_[{page, shared_part(task)}] = sent.sum;
  } else {
    exchange_[page] = sent.group;
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
    default: return check_combine(task, rows->second);
  }
}

void OrderCheck::check_gradient(const Task& task) {
  const int64_t r = task.record;
  bool ready;
  if (shape_.records[r].expert >= 0) {
    ready = computed_.contains(r);
    finished_.insert(r);
    if (shape_.pages_expert_sums() && ready) {
      ExpertSum& sum = expert_sums_[task.uses[1].page];
      const std::string expected = expected_expert_sum(r);
      if (sum.record != r) fault(task, "is made of another expert's sum");
      if (sum.text != expected) {
        faults_.push_back({PlanRule::kSumOrder, strf("record %lld sums %s, not %s", (long long)r,
                                                     sum.text.c_str(), expected.c_str())});
      }
      sum = {};
    }
  } else if (r == shape_.head()) {
    ready = all_done(TaskKind::kHead, Phase::kForward, -1);
  } else if (r == shape_.embedding()) {
    ready = all_done(TaskKind::kEmbedBackward, Phase::kBackward, -1);
  } else {
    ready = all_done(TaskKind::kAttentionBackward, Phase::kBackward, task.layer);
  }
  if (!ready) fault(task, "before the gradient is complete");
  if (shape_.records[r].expert < 0) check_sum(task);
}

// Notes the microbatch that a dense task adds to its buffer. A layer's is whole, and loses its "?",
// when attention has added to the same buffer.
void OrderCheck::note_sum(const Task& task) {
  if (task.kind == TaskKind::kAttentionBackward) {
    std::string& sum = sums_[{task.uses[task.num_uses - 1].page, false}];
    const std::string begun = std::to_string(task.microbatch) + "?";
    if (!sum.ends_with(begun)) return fault(task, "adds to another sum than the layer's rest");
    sum.pop_back();
    return;
  }
  const bool shared = task.kind == TaskKind::kRouteReplay;
  const bool begins =
      shared || task.kind == TaskKind::kHead || task.kind == TaskKind::kRouteBackward ||
      task.kind == TaskKind::kDenseMlpBackward || task.kind == TaskKind::kEmbedBackward;
  const PageUse& use = task.uses[task.num_uses - 1];
  if (!begins || !is_sum(use.page)) return;
  std::string& sum = sums_[{use.page, shared}];
  const bool half =
      task.kind == TaskKind::kRouteBackward || task.kind == TaskKind::kDenseMlpBackward;
  const std::string microbatch = std::to_string(task.microbatch) + (half ? "?" : "");
  sum = task.first ? microbatch : sum + "+" + microbatch;
}

bool OrderCheck::shared_part(const Task& task) const {
  return task.first_element > 0 && task.record != shape_.embedding();
}

// A sum is added and sent whole: a layer's shared expert, or the rest; the final norm and the table
// behind it; or the embedding, which has the table's place.
void OrderCheck::check_elements(const Task& task) {
  const RecordShape& record = shape_.records[task.record];
  int64_t first = 0, elements = record.num_elements;
  if (task.record == shape_.embedding()) {
    first = shape_.hidden_size;
  } else if (task.record == shape_.head()) {
    if (shape_.tied_embeddings) elements += shape_.records[shape_.embedding()].num_elements;
  } else if (shared_part(task)) {
    first = record.num_elements - record.shared_elements;
    elements = record.shared_elements;
  } else {
    elements -= record.shared_elements;
  }
  if (task.first_element != first || task.elements != elements) {
    fault(task, "takes other elements than the sum's");
  }
}

void OrderCheck::add_sums(const Task& task) {
  const bool shared = shared_part(task);
  const std::string& addend = sums_[{task.uses[1].page, shared}];
  std::string& sum = sums_[{task.uses[0].page, shared}];
  // A sum of two numbers is the same in both orders. Earlier shards stand first.
  const auto first = [](const std::string& text) {
    return std::stoll(text.substr(std::min(text.size(), text.find_first_not_of('('))));
  };
  if (sum.empty() || addend.empty()) return fault(task, "adds a sum that is not there");
  if (sum.ends_with('?') || addend.ends_with('?')) fault(task, "adds a sum that attention lacks");
  check_elements(task);
  sum =
      first(sum) <= first(addend) ? "(" + sum + "," + addend + ")" : "(" + addend + "," + sum + ")";
}

// The tree over shards, from its leaves up.
std::string OrderCheck::expected_sum() const {
  const int64_t columns = shape_.sums.columns(shape_.microbatches);
  std::vector<std::string> level(static_cast<size_t>(shape_.sums.shards));
  for (int64_t b = 0; b < shape_.microbatches; ++b) {
    std::string& leaf = level[static_cast<size_t>(b % columns * shape_.sums.shards / columns)];
    leaf += (leaf.empty() ? "" : "+") + std::to_string(b);
  }
  return tree(std::move(level));
}

void OrderCheck::check_sum(const Task& task) {
  const RecordShape& record = shape_.records[task.record];
  const std::string tree = expected_sum();
  const bool tied = shape_.tied_embeddings && task.record == shape_.embedding();
  const std::string expected = tied ? "(" + tree + "," + tree + ")" : tree;
  const PageId page = task.uses[1].page;
  const std::string sum = sums_[{page, false}];
  const std::string shared = record.shared_elements > 0 ? sums_[{page, true}] : tree;
  if (sum == expected && shared == tree) return;
  faults_.push_back(
      {PlanRule::kSumOrder, strf("record %lld sums %s and %s, not %s", (long long)task.record,
                                 sum.c_str(), shared.c_str(), expected.c_str())});
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
