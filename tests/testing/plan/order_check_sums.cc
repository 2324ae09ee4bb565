// OrderCheck's account of sums of gradients, of experts and of dense records.
#include <algorithm>

#include "plan/step/task_table.h"
#include "tests/testing/plan/order_check.h"

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

// A sum goes to another device whole, and is no more where it was.
void OrderCheck::send_expert_sum(const Task& task, std::deque<Sent>& channel) {
  ExpertSum& sum = expert_sums_[task.uses[0].page];
  const int64_t elements = shape_.records[task.record].num_elements;
  if (sum.record != task.record) fault(task, "sends a sum that is not there");
  if (task.first_element != 0 || task.elements != elements ||
      task.bytes != elements * static_cast<int64_t>(sizeof(float))) {
    fault(task, "sends other bytes than its sum's");
  }
  Sent sent{{}, sum.text, 0, task.bytes};
  sent.expert_record = sum.record;
  channel.push_back(sent);
  sum = {};
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

}  // namespace pagoda
