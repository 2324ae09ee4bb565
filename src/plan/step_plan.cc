#include "plan/step_plan.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace pagoda {

namespace {
constexpr Place kDevice0{Tier::kDevice, 0};
}

Task StepPlan::task(TaskKind kind, Phase phase, int64_t layer, int64_t microbatch) const {
  Task task;
  task.kind = kind;
  task.phase = phase;
  task.layer = static_cast<int32_t>(layer);
  task.microbatch = static_cast<int32_t>(microbatch);
  return task;
}

void StepPlan::adam(int64_t record, int64_t updates, bool has_gradient, TaskList& tasks) const {
  const RecordShape& shape = shape_.records[record];
  Task t = task(TaskKind::kAdam, Phase::kOptimize, shape.layer, -1);
  t.expert = static_cast<int32_t>(shape.expert);
  t.record = record;
  t.updates = updates;
  t.device = static_cast<uint8_t>(shape.device);
  t.on_host = !options_.state_on_device;
  const Place place = t.on_host ? Place::host() : Place::on_device(shape.device);
  t.use(pages_.weights(record), place, Access::kWrite);  // a part of the masters
  t.use(pages_.state(record), place, Access::kWrite);
  if (has_gradient) t.use(pages_.gradient(record), place, Access::kRead, true);
  tasks.push_back(t);
}

Task StepPlan::weights_task(TaskKind kind, Phase phase, int64_t record, Access access) const {
  const RecordShape& shape = shape_.records[record];
  Task t = task(kind, phase, shape.layer, -1);
  t.expert = static_cast<int32_t>(shape.expert);
  t.record = record;
  t.device = static_cast<uint8_t>(shape.device);
  t.use(pages_.weights(record), Place::on_device(shape.device), access);
  return t;
}

void StepPlan::prefetch(std::span<const int64_t> records, TaskList& tasks) const {
  for (int64_t record : records) {
    tasks.push_back(weights_task(TaskKind::kPrefetch, Phase::kForward, record, Access::kPrefetch));
  }
}

// From where its update leaves them in the host to the slot they had on the device.
void StepPlan::bring_back(int64_t record, TaskList& tasks) const {
  if (options_.state_on_device || !shape_.options.prefetch) return;
  tasks.push_back(weights_task(TaskKind::kPrefetch, Phase::kOptimize, record, Access::kPrefetch));
}

void StepPlan::bring_layer(int64_t layer, Phase phase, TaskList& tasks) const {
  for (int64_t e = 0; e < shape_.num_experts; ++e) {
    tasks.push_back(weights_task(TaskKind::kBring, phase, shape_.expert(layer, e), Access::kRead));
  }
}

template <typename Body>
void StepPlan::for_microbatches(int64_t microbatch, Body&& body) const {
  if (microbatch != kAll) return body(microbatch);
  for (int64_t b = 0; b < shape_.microbatches; ++b) body(b);
}

void StepPlan::embed(int64_t microbatch, TaskList& tasks) const {
  for_microbatches(microbatch, [&](int64_t b) {
    Task t = task(TaskKind::kEmbed, Phase::kForward, -1, b);
    t.use(pages_.weights(shape_.embedding()), kDevice0, Access::kRead);
    t.use(pages_.layer_input(0, b), kDevice0, Access::kCreate);
    tasks.push_back(t);
  });
}

void StepPlan::forward_layer(int64_t layer, int64_t microbatch, TaskList& tasks) const {
  const PageId weights = pages_.weights(shape_.layer_record[layer]);
  const bool forward_only = !options_.training;
  const TaskKind kind = options_.generating ? TaskKind::kCachedAttention : TaskKind::kAttention;
  for_microbatches(microbatch, [&](int64_t b) {
    Task attention = task(kind, Phase::kForward, layer, b);
    attention.use(weights, kDevice0, Access::kRead);
    attention.use(pages_.layer_input(layer, b), kDevice0, Access::kRead, forward_only);
    attention.use(pages_.middle(layer, b), kDevice0, Access::kCreate);
    tasks.push_back(attention);
    const bool moe = shape_.is_moe[layer];
    Task second = task(moe ? TaskKind::kRoute : TaskKind::kDenseMlp, Phase::kForward, layer, b);
    second.use(weights, kDevice0, Access::kRead);
    // kRoute writes the chosen experts behind the residual.
    second.use(pages_.middle(layer, b), kDevice0, moe ? Access::kWrite : Access::kRead,
               forward_only && !moe);
    if (!moe) second.use(pages_.layer_input(layer + 1, b), kDevice0, Access::kCreate);
    tasks.push_back(second);
  });
}

// Rows that every expert computes, whatever its tokens.
int64_t StepPlan::least_rows(std::span<const int64_t> tokens_per_expert) const {
  if (!shape_.options.padded_experts) return 0;
  return *std::max_element(tokens_per_expert.begin(), tokens_per_expert.end());
}

// Dispatch, expert and combine of every block, in expert order. With several devices the combine
// lags, so that device 0 can hand out work before it waits for results; the order of the combines,
// which is the order of their sums, stays that of the experts.
void StepPlan::expert_blocks(int64_t layer, int64_t microbatch,
                             std::span<const int64_t> tokens_per_expert, bool backward,
                             TaskList& tasks) const {
  const Phase phase = backward ? Phase::kBackward : Phase::kForward;
  const int64_t in_flight = blocks_in_flight(shape_.devices);
  std::vector<Task> combines;
  size_t combined = 0;
  int64_t first_row = 0;
  const int64_t least = least_rows(tokens_per_expert);
  if (shape_.options.whole_layers) bring_layer(layer, phase, tasks);
  for (int64_t e = 0; e < shape_.num_experts; ++e) {
    const int64_t record = shape_.expert(layer, e);
    const int device = shape_.records[record].device;
    const int64_t tokens = tokens_per_expert[e], computed = std::max(tokens, least);
    for (int64_t done = 0; done < computed; done += shape_.row_block) {
      Task t = task(backward ? TaskKind::kDispatchBackward : TaskKind::kDispatch, phase, layer,
                    microbatch);
      t.expert = static_cast<int32_t>(e);
      t.record = record;
      t.first_row = first_row + std::min(done, tokens);
      t.rows = std::clamp<int64_t>(tokens - done, 0, shape_.row_block);
      t.padding = std::min(shape_.row_block, computed - done) - t.rows;
      t.first = done == 0;
      t.last = tokens > 0 && done + shape_.row_block >= computed;
      const int64_t slot = static_cast<int64_t>(combines.size()) % in_flight;
      Task expert = t, combine = t;
      t.use(pages_.inbound(slot), kDevice0, Access::kCreate);
      expert.kind = backward ? TaskKind::kExpertBackward : TaskKind::kExpert;
      expert.device = static_cast<uint8_t>(device);
      expert.use(pages_.weights(record), Place::on_device(device), Access::kRead);
      expert.use(pages_.inbound(slot), Place::on_device(device), Access::kRead);
      expert.use(pages_.outbound(slot), Place::on_device(device), Access::kCreate);
      combine.kind = backward ? TaskKind::kCombineBackward : TaskKind::kCombine;
      combine.use(pages_.outbound(slot), kDevice0, Access::kRead);
      tasks.push_back(t);
      tasks.push_back(expert);
      combines.push_back(combine);
      if (backward && t.last) gradient(record, tasks);
      if (static_cast<int64_t>(combines.size() - combined) == in_flight) {
        tasks.push_back(combines[combined++]);
      }
    }
    first_row += tokens;
  }
  while (combined < combines.size()) tasks.push_back(combines[combined++]);
}

void StepPlan::forward_experts(int64_t layer, int64_t microbatch,
                               std::span<const int64_t> tokens_per_expert,
                               TaskList& tasks) const {
  tasks.push_back(task(TaskKind::kIndex, Phase::kForward, layer, microbatch));
  expert_blocks(layer, microbatch, tokens_per_expert, false, tasks);
  for_microbatches(microbatch, [&](int64_t b) {
    Task t = task(TaskKind::kResidual, Phase::kForward, layer, b);
    t.use(pages_.middle(layer, b), kDevice0, Access::kRead, !options_.training);
    t.use(pages_.layer_input(layer + 1, b), kDevice0, Access::kCreate);
    tasks.push_back(t);
  });
}

void StepPlan::head(TaskList& tasks) const {
  TaskKind kind = options_.training ? TaskKind::kHead : TaskKind::kLoss;
  if (options_.generating) kind = TaskKind::kLogits;
  for (int64_t b = 0; b < shape_.microbatches; ++b) {
    Task t = task(kind, Phase::kForward, -1, b);
    t.use(pages_.weights(shape_.head()), kDevice0, Access::kRead);
    t.use(pages_.layer_input(shape_.num_layers, b), kDevice0, Access::kRead, true);
    if (shape_.tied_embeddings) {
      t.use(pages_.weights(shape_.embedding()), kDevice0, Access::kRead);
    }
    tasks.push_back(t);
  }
  if (options_.training) gradient(shape_.head(), tasks);
}

void StepPlan::gradient(int64_t record, TaskList& tasks) const {
  const RecordShape& shape = shape_.records[record];
  Task t = task(TaskKind::kGradient, Phase::kBackward, shape.layer, -1);
  t.expert = static_cast<int32_t>(shape.expert);
  t.record = record;
  t.device = static_cast<uint8_t>(shape.device);
  t.use(pages_.gradient(record), Place::on_device(shape.device), Access::kCreate);
  tasks.push_back(t);
  if (!options_.eager_adam) return;
  adam(record, 1, true, tasks);
  bring_back(record, tasks);
}

void StepPlan::backward_layer(int64_t layer, std::span<const int64_t> tokens_per_expert,
                              TaskList& tasks) const {
  const int64_t record = shape_.layer_record[layer];
  const PageId weights = pages_.weights(record);
  const bool moe = shape_.is_moe[layer];
  auto per_microbatch = [&](TaskKind kind, PageId first, bool last_use) {
    for (int64_t b = 0; b < shape_.microbatches; ++b) {
      Task t = task(kind, Phase::kBackward, layer, b);
      t.use(weights, kDevice0, Access::kRead);
      t.use(first + static_cast<PageId>(b), kDevice0, Access::kRead, last_use);
      tasks.push_back(t);
    }
  };
  const PageId middle = pages_.middle(layer, 0), input = pages_.layer_input(layer, 0);
  if (moe) {
    per_microbatch(TaskKind::kRouteReplay, middle, false);
    tasks.push_back(task(TaskKind::kIndex, Phase::kBackward, layer, kAll));
    expert_blocks(layer, kAll, tokens_per_expert, true, tasks);
  }
  per_microbatch(moe ? TaskKind::kRouteBackward : TaskKind::kDenseMlpBackward, middle, true);
  per_microbatch(TaskKind::kAttentionBackward, input, true);
  gradient(record, tasks);
}

void StepPlan::embed_backward(TaskList& tasks) const {
  for (int64_t b = 0; b < shape_.microbatches; ++b) {
    tasks.push_back(task(TaskKind::kEmbedBackward, Phase::kBackward, -1, b));
  }
  gradient(shape_.embedding(), tasks);
}

}  // namespace pagoda
