#include "plan/step/step_plan.h"

#include <algorithm>
#include <vector>

#include "base/check.h"

namespace pagoda {

namespace {
constexpr Place kDevice0{Tier::kDevice, 0};
}

std::vector<ExpertWave> layer_waves(const RunShape& shape, int64_t layer, Microbatches microbatches,
                                    const LayerRouting& routing) {
  GroupLimits limits;
  limits.row_block = shape.row_block;
  limits.group_blocks = shape.group_blocks;
  limits.padded = shape.options.padded_experts;
  limits.devices = shape.devices;
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    limits.seats.push_back(shape.records[shape.expert(layer, e)].device);
  }
  const int64_t columns = shape.microbatches / shape.sums.chunks;
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
    limits.begins_block.push_back(b % columns == 0);
  }
  return expert_waves(routing, limits);
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

// Uploads the weights from the host, where their update leaves them, to the slot that they had on
// the device.
void StepPlan::prefetch_updated(int64_t record, TaskList& tasks) const {
  if (options_.state_on_device || !shape_.options.prefetch) return;
  tasks.push_back(weights_task(TaskKind::kPrefetch, Phase::kOptimize, record, Access::kPrefetch));
}

void StepPlan::upload_layer(int64_t layer, Phase phase, TaskList& tasks) const {
  for (int64_t e = 0; e < shape_.num_experts; ++e) {
    tasks.push_back(weights_task(TaskKind::kUpload, phase, shape_.expert(layer, e), Access::kRead));
  }
}

void StepPlan::embed(Microbatches microbatches, TaskList& tasks) const {
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
    Task t = task(TaskKind::kEmbed, Phase::kForward, -1, b);
    t.use(pages_.weights(shape_.embedding()), kDevice0, Access::kRead);
    t.use(pages_.layer_input(0, b), kDevice0, Access::kCreate);
    tasks.push_back(t);
  }
}

void StepPlan::forward_attention(int64_t layer, Microbatches microbatches, TaskList& tasks) const {
  const PageId weights = pages_.weights(shape_.layer_record[layer]);
  const bool forward_only = !options_.training;
  const TaskKind kind = options_.generating ? TaskKind::kCachedAttention : TaskKind::kAttention;
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
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
    second.use(moe ? pages_.normed(b) : pages_.layer_input(layer + 1, b), kDevice0,
               Access::kCreate);
    if (moe) second.use(pages_.sum(b), kDevice0, Access::kCreate);
    tasks.push_back(second);
  }
}

Task StepPlan::wave_task(TaskKind kind, const WavePlace& at) const {
  Task t = task(kind, at.phase, at.layer, -1);
  t.wave = static_cast<int32_t>(at.wave);
  return t;
}

Task StepPlan::block_task(const WavePlace& at, const ExpertGroup::Block& block) const {
  const bool backward = at.phase == Phase::kBackward;
  Task t = wave_task(backward ? TaskKind::kExpertBackward : TaskKind::kExpert, at);
  t.expert = static_cast<int32_t>(block.expert);
  t.record = shape_.expert(at.layer, block.expert);
  t.first_row = block.first_row;
  t.block_row = block.group_row;
  t.rows = block.rows;
  t.padding = block.padding;
  t.first = block.first;
  t.last = block.last;
  t.gradient = static_cast<uint8_t>(block.ordinal % shape_.group_blocks);
  return t;
}

namespace {

// Marks the normed rows' last use: no later task reads them, and a backward computes them again.
void give_up_normed(size_t first_task, TaskList& tasks) {
  std::vector<PageId> seen;
  for (size_t i = tasks.size(); i-- > first_task;) {
    Task& t = tasks[i];
    if (t.kind != TaskKind::kDispatch || t.rows == 0) continue;
    PageUse& normed = t.uses[1];
    normed.last = std::find(seen.begin(), seen.end(), normed.page) == seen.end();
    if (normed.last) seen.push_back(normed.page);
  }
}

}  // namespace

// The rows of a group that are computed, and the bytes of each on its way there or back.
int64_t StepPlan::travelling_bytes(const ExpertGroup& group, Phase phase, bool back) const {
  const int64_t row = shape_.hidden_size * shape_.dtype_bytes;
  const bool backward = phase == Phase::kBackward;
  const int64_t scale = backward ? static_cast<int64_t>(sizeof(float)) : 0;
  return (group.rows() + group.padding()) * ((backward && !back ? 2 : 1) * row + scale);
}

// Sends what `from` holds on one device to `to` on another.
void StepPlan::transfer(const WavePlace& at, const Travel& travel, TaskList& tasks) const {
  Task send = wave_task(TaskKind::kSend, at);
  send.lane = Lane::kOut;
  send.device = static_cast<uint8_t>(travel.from);
  send.peer = static_cast<uint8_t>(travel.to);
  send.bytes = travel.bytes;
  send.use(travel.source, Place::on_device(travel.from), Access::kRead);
  tasks.push_back(send);
  Task receive = wave_task(TaskKind::kReceive, at);
  receive.lane = Lane::kIn;
  receive.device = static_cast<uint8_t>(travel.to);
  receive.peer = static_cast<uint8_t>(travel.from);
  receive.bytes = travel.bytes;
  receive.use(travel.target, Place::on_device(travel.to), Access::kCreate);
  tasks.push_back(receive);
}

// Adds a dispatch for each microbatch's rows in each device's group; the last of a group has its
// padding, too. Rows for other devices are put together beside the computation, and sent.
void StepPlan::dispatch(const WavePlace& at, const ExpertWave& wave, TaskList& tasks) const {
  const bool backward = at.phase == Phase::kBackward;
  for (size_t d = 0; d < wave.size(); ++d) {
    const ExpertGroup& group = wave[d];
    if (group.blocks.empty()) continue;
    const auto device = static_cast<int>(d);
    const PageId page = device == 0 ? pages_.inbound(0, at.slot) : pages_.leaving(device, at.slot);
    Task t = wave_task(backward ? TaskKind::kDispatchBackward : TaskKind::kDispatch, at);
    t.lane = device == 0 ? Lane::kCompute : Lane::kOut;
    t.peer = static_cast<uint8_t>(d);
    t.expert = static_cast<int32_t>(group.blocks.front().expert);
    for (size_t i = 0; i < std::max<size_t>(1, group.parts.size()); ++i) {
      Task part = t;
      if (!group.parts.empty()) {
        part.microbatch = static_cast<int32_t>(at.first_microbatch + group.parts[i].microbatch);
        part.rows = group.parts[i].rows;
      }
      if (i + 1 >= group.parts.size()) part.padding = group.padding();
      part.use(page, kDevice0, i == 0 ? Access::kCreate : Access::kWrite);
      if (part.rows > 0) part.use(pages_.normed(part.microbatch), kDevice0, Access::kRead);
      if (part.rows > 0 && backward) {
        part.use(pages_.dresidual(part.microbatch), kDevice0, Access::kRead);
      }
      tasks.push_back(part);
    }
    if (device == 0) continue;
    transfer(at,
             {0, device, page, pages_.inbound(device, at.slot),
              travelling_bytes(group, at.phase, false)},
             tasks);
  }
}

// Where device 0 finds what a device's experts gave.
PageId StepPlan::returned(size_t device, int64_t slot) const {
  const auto d = static_cast<int64_t>(device);
  return d == 0 ? pages_.outbound(0, slot) : pages_.arriving(d, slot);
}

// Adds combines of each microbatch's rows in the wave, in the order of the experts. A task reads
// what a few devices gave; more of them take further tasks.
void StepPlan::combine(const WavePlace& at, const ExpertWave& wave, TaskList& tasks) const {
  const bool backward = at.phase == Phase::kBackward;
  const TaskKind kind = backward ? TaskKind::kCombineBackward : TaskKind::kCombine;
  bool any = false;
  for (int64_t b = 0; b < at.microbatches; ++b) {
    std::vector<std::pair<const ExpertGroup::Run*, size_t>> runs;  // with their devices
    for (size_t d = 0; d < wave.size(); ++d) {
      const ExpertGroup::Part* part = wave[d].part(b);
      if (part == nullptr) continue;
      for (const ExpertGroup::Run& run : part->runs) runs.emplace_back(&run, d);
    }
    std::sort(runs.begin(), runs.end(),
              [](const auto& x, const auto& y) { return x.first->expert < y.first->expert; });
    Task t;
    for (const auto& [run, device] : runs) {
      const PageId outbound = returned(device, at.slot);
      const auto used = t.used();
      const bool there = std::any_of(used.begin(), used.end(),
                                     [&](const PageUse& use) { return use.page == outbound; });
      if (!there && t.num_uses + 2u > t.uses.size()) {
        add_combine(t, tasks);
        t = Task();
      }
      if (t.rows == 0) {
        t = wave_task(kind, at);
        t.lane = combining_lane();
        t.microbatch = static_cast<int32_t>(at.first_microbatch + b);
        t.expert = static_cast<int32_t>(run->expert);
      }
      if (!there || t.num_uses == 0) t.use(outbound, kDevice0, Access::kRead);
      t.last_expert = static_cast<int32_t>(run->expert);
      t.rows += run->rows;
    }
    if (t.rows > 0) add_combine(t, tasks);
    any = any || t.rows > 0;
  }
  if (any) return;
  // Nothing but padding; what is computed of it is given up.
  for (size_t d = 0; d < wave.size(); ++d) {
    if (wave[d].blocks.empty()) continue;
    Task t = wave_task(kind, at);
    t.lane = combining_lane();
    t.use(returned(d, at.slot), kDevice0, Access::kRead);
    tasks.push_back(t);
  }
}

void StepPlan::add_combine(Task task, TaskList& tasks) const {
  task.use(pages_.sum(task.microbatch), kDevice0, Access::kWrite);
  tasks.push_back(task);
}

// Adds the tasks of a group's experts, the last of which computes all, and then their gradients.
void StepPlan::compute(const WavePlace& at, const ExpertGroup& group, int device,
                       TaskList& tasks) const {
  const bool backward = at.phase == Phase::kBackward;
  for (size_t i = 0; i < group.blocks.size(); ++i) {
    Task t = block_task(at, group.blocks[i]);
    t.device = static_cast<uint8_t>(device);
    t.joins_next = i + 1 < group.blocks.size();
    const Place place = Place::on_device(device);
    t.use(pages_.weights(t.record), place, Access::kRead);
    t.use(pages_.inbound(device, at.slot), place, Access::kRead);
    t.use(pages_.outbound(device, at.slot), place, i == 0 ? Access::kCreate : Access::kWrite);
    tasks.push_back(t);
  }
  if (device != 0 && !group.blocks.empty()) {
    transfer(at,
             {device, 0, pages_.outbound(device, at.slot), returned(device, at.slot),
              travelling_bytes(group, at.phase, true)},
             tasks);
  }
  for (const ExpertGroup::Block& block : group.blocks) {
    if (!backward || !block.last) continue;
    const Task t = block_task(at, block);
    gradient(t.record, t.gradient, tasks);
  }
}

// Adds dispatch, experts and combine of every wave. With several devices the combine lags, so that
// device 0 can hand out work before it waits for results; combines, and so their sums, keep the
// order of the experts.
void StepPlan::expert_tasks(int64_t layer, Microbatches microbatches, const LayerRouting& routing,
                            Phase phase, TaskList& tasks) const {
  const int64_t in_flight = waves_in_flight(shape_.devices);
  Task index = task(TaskKind::kIndex, phase, layer, microbatches.first);
  index.microbatches = static_cast<int32_t>(microbatches.count);
  tasks.push_back(index);
  if (shape_.options.whole_layers) upload_layer(layer, phase, tasks);
  const size_t first_task = tasks.size();
  const std::vector<ExpertWave> waves = layer_waves(shape_, layer, microbatches, routing);
  const auto place = [&](int64_t i) {
    return WavePlace{phase, layer, i, i % in_flight, microbatches.first, microbatches.count};
  };
  const auto count = static_cast<int64_t>(waves.size());
  for (int64_t i = 0; i < count; ++i) {
    dispatch(place(i), waves[i], tasks);
    for (size_t d = 0; d < waves[i].size(); ++d) {
      compute(place(i), waves[i][d], static_cast<int>(d), tasks);
    }
    if (i + 1 >= in_flight) combine(place(i + 1 - in_flight), waves[i + 1 - in_flight], tasks);
  }
  for (int64_t i = std::max<int64_t>(0, count + 1 - in_flight); i < count; ++i) {
    combine(place(i), waves[i], tasks);
  }
  if (phase == Phase::kForward) give_up_normed(first_task, tasks);
}

void StepPlan::forward_experts(int64_t layer, Microbatches microbatches,
                               const LayerRouting& routing, TaskList& tasks) const {
  expert_tasks(layer, microbatches, routing, Phase::kForward, tasks);
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
    Task t = task(TaskKind::kResidual, Phase::kForward, layer, b);
    t.use(pages_.middle(layer, b), kDevice0, Access::kRead, !options_.training);
    t.use(pages_.layer_input(layer + 1, b), kDevice0, Access::kCreate);
    t.use(pages_.sum(b), kDevice0, Access::kRead, true);
    tasks.push_back(t);
  }
}

uint8_t StepPlan::head_buffer(int64_t buffer) const {
  const bool kept = buffer == 0 && shape_.tied_embeddings;
  return kept ? kept_head_buffer() : static_cast<uint8_t>(buffer);
}

// Adds the sums that are complete behind the microbatch. `task`: has the elements to add.
void StepPlan::add_sums(Task task, const Summand& newest, TaskList& tasks) const {
  const bool head = task.record == shape_.head();
  for (int64_t i = 0; i < newest.additions; ++i) {
    const int64_t addend = newest.buffer - i;
    task.gradient = head ? head_buffer(addend - 1) : static_cast<uint8_t>(addend - 1);
    task.addend = static_cast<uint8_t>(addend);
    tasks.push_back(task);
  }
}

Task StepPlan::sums_task(int64_t record, int64_t first_element, int64_t elements) const {
  Task t = task(TaskKind::kAddSums, Phase::kBackward, shape_.records[record].layer, -1);
  t.record = record;
  t.first_element = first_element;
  t.elements = elements;
  return t;
}

void StepPlan::head(Microbatches microbatches, TaskList& tasks) const {
  CHECK(microbatches == all_microbatches(shape_));
  TaskKind kind = options_.training ? TaskKind::kHead : TaskKind::kLoss;
  if (options_.generating) kind = TaskKind::kLogits;
  const int64_t record = shape_.head();
  // The final norm, then the table, which is the embedding if they are tied.
  const int64_t table =
      shape_.tied_embeddings ? shape_.records[shape_.embedding()].num_elements : 0;
  const Task sums = sums_task(record, 0, shape_.records[record].num_elements + table);
  for (const Summand& summand : order_) {
    const int64_t b = summand.microbatch;
    Task t = task(kind, Phase::kForward, -1, b);
    t.gradient = head_buffer(summand.buffer);
    t.first = summand.first;
    t.use(pages_.weights(record), kDevice0, Access::kRead);
    t.use(pages_.layer_input(shape_.num_layers, b), kDevice0, Access::kRead, true);
    if (shape_.tied_embeddings) {
      t.use(pages_.weights(shape_.embedding()), kDevice0, Access::kRead);
    }
    if (options_.training) t.use(pages_.dresidual(b), kDevice0, Access::kCreate);
    tasks.push_back(t);
    if (options_.training) add_sums(sums, summand, tasks);
  }
  if (options_.training) gradient(record, head_buffer(0), tasks);
}

void StepPlan::gradient(int64_t record, uint8_t which, TaskList& tasks) const {
  const RecordShape& shape = shape_.records[record];
  Task t = task(TaskKind::kGradient, Phase::kBackward, shape.layer, -1);
  t.expert = static_cast<int32_t>(shape.expert);
  t.record = record;
  t.gradient = which;
  t.device = static_cast<uint8_t>(shape.device);
  t.use(pages_.gradient(record), Place::on_device(shape.device), Access::kCreate);
  tasks.push_back(t);
  if (!shape_.updates_in_backward()) return;
  adam(record, 1, true, tasks);
  prefetch_updated(record, tasks);
}

// The backward of one microbatch through a part of a layer. `saved`: the page that the forward
// saved.
Task StepPlan::backward_task(TaskKind kind, int64_t layer, const Summand& summand, PageId saved,
                             bool last_use) const {
  const int64_t b = summand.microbatch;
  const bool replay = kind == TaskKind::kRouteReplay;
  Task t = task(kind, Phase::kBackward, layer, b);
  t.gradient = static_cast<uint8_t>(summand.buffer);
  t.first = summand.first;
  t.use(pages_.weights(shape_.layer_record[layer]), kDevice0, Access::kRead);
  t.use(saved, kDevice0, Access::kRead, last_use);
  t.use(pages_.dresidual(b), kDevice0, replay ? Access::kRead : Access::kWrite);
  if (replay || kind == TaskKind::kRouteBackward) {
    const Access access = replay ? Access::kCreate : Access::kRead;
    t.use(pages_.normed(b), kDevice0, access, !replay);
    t.use(pages_.sum(b), kDevice0, access, !replay);
  }
  return t;
}

// The gradients of the shared expert are summed here, those of the record's rest with attention's.
void StepPlan::backward_experts(int64_t layer, Microbatches microbatches,
                                const LayerRouting& routing, TaskList& tasks) const {
  CHECK(microbatches == all_microbatches(shape_));
  const int64_t record = shape_.layer_record[layer];
  const RecordShape& dense = shape_.records[record];
  const Task sums =
      sums_task(record, dense.num_elements - dense.shared_elements, dense.shared_elements);
  for (const Summand& summand : order_) {
    tasks.push_back(backward_task(TaskKind::kRouteReplay, layer, summand,
                                  pages_.middle(layer, summand.microbatch), false));
    if (dense.shared_elements > 0) add_sums(sums, summand, tasks);
  }
  expert_tasks(layer, microbatches, routing, Phase::kBackward, tasks);
}

void StepPlan::backward_attention(int64_t layer, Microbatches microbatches, TaskList& tasks) const {
  CHECK(microbatches == all_microbatches(shape_));
  const int64_t record = shape_.layer_record[layer];
  const RecordShape& dense = shape_.records[record];
  const Task sums = sums_task(record, 0, dense.num_elements - dense.shared_elements);
  const TaskKind above =
      shape_.is_moe[layer] ? TaskKind::kRouteBackward : TaskKind::kDenseMlpBackward;
  for (const Summand& summand : order_) {
    const int64_t b = summand.microbatch;
    tasks.push_back(backward_task(above, layer, summand, pages_.middle(layer, b), true));
    tasks.push_back(backward_task(TaskKind::kAttentionBackward, layer, summand,
                                  pages_.layer_input(layer, b), true));
    add_sums(sums, summand, tasks);
  }
  gradient(record, 0, tasks);
}

void StepPlan::embed_backward(Microbatches microbatches, TaskList& tasks) const {
  CHECK(microbatches == all_microbatches(shape_));
  const int64_t record = shape_.embedding();
  // A head's sum has the final norm in front of its table, so the embedding's has room there.
  Task sums = sums_task(record, shape_.hidden_size, shape_.records[record].num_elements);
  for (const Summand& summand : order_) {
    Task t = task(TaskKind::kEmbedBackward, Phase::kBackward, -1, summand.microbatch);
    t.gradient = static_cast<uint8_t>(summand.buffer);
    t.first = summand.first;
    t.use(pages_.dresidual(summand.microbatch), kDevice0, Access::kRead, true);
    tasks.push_back(t);
    add_sums(sums, summand, tasks);
  }
  if (!shape_.tied_embeddings) return gradient(record, 0, tasks);
  sums.gradient = kept_head_buffer();
  tasks.push_back(sums);
  gradient(record, kept_head_buffer(), tasks);
}

}  // namespace pagoda
