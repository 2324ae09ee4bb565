// The tasks of a layer's experts: rows to the devices that compute them, and back.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "plan/step/expert_seats.h"
#include "plan/step/step_plan.h"

namespace pagoda {

std::vector<ExpertWave> layer_waves(const RunShape& shape, int64_t layer, Microbatches microbatches,
                                    const LayerRouting& routing) {
  GroupLimits limits;
  limits.row_block = shape.row_block;
  limits.group_blocks = shape.group_blocks;
  limits.padded = shape.options.padded_experts;
  limits.devices = shape.devices;
  limits.seats = layer_seats(shape, layer, tokens_per_expert(routing));
  limits.expert_shards = shape.sums.expert_shards;
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
    limits.cells.push_back(shape.sums.cell(b, shape.microbatches));
    limits.attends.push_back(shape.attending(layer, b));
  }
  limits.first_row = microbatches.first * shape.microbatch_tokens * shape.experts_per_token;
  // Zebra's devices that attend compute their experts between attention of other chunks, which the
  // waves of others do not wait for.
  for (int d = 0; d < shape.devices && shape.zebra && shape.rounds() > 1; ++d) {
    limits.apart.push_back(shape.attends(d));
  }
  limits.goes_on = shape.rounds() > 1 && microbatches.end() < shape.microbatches;
  return expert_waves(routing, limits);
}

Task StepPlan::wave_task(TaskKind kind, const WavePlace& at, int64_t device, Lane lane) const {
  Task t = task(kind, at.phase, at.layer, -1);
  t.wave = static_cast<int32_t>(at.wave);
  t.first_microbatch = static_cast<int32_t>(at.first_microbatch);
  t.device = static_cast<uint8_t>(device);
  t.lane = lane;
  return t;
}

Task StepPlan::block_task(const WavePlace& at, const ExpertGroup::Block& block,
                          int64_t device) const {
  const bool backward = at.phase == Phase::kBackward;
  Task t = wave_task(backward ? TaskKind::kExpertBackward : TaskKind::kExpert, at, device,
                     Lane::kCompute);
  t.expert = static_cast<int32_t>(block.expert);
  t.record = shape_.expert(at.layer, block.expert);
  t.first_row = block.first_row;
  t.block_row = block.group_row;
  t.rows = block.rows;
  t.padding = block.padding;
  t.cell = static_cast<int32_t>(block.cell);
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

// Bytes of so many rows on their way to the experts, or back.
int64_t StepPlan::travelling_bytes(int64_t rows, Phase phase, bool back) const {
  const int64_t row = shape_.hidden_size * shape_.dtype_bytes;
  const bool backward = phase == Phase::kBackward;
  const int64_t scale = backward ? static_cast<int64_t>(sizeof(float)) : 0;
  return rows * ((backward && !back ? 2 : 1) * row + scale);
}

// Sends what `source` holds on one device to `target` on another, for tasks like this one.
void StepPlan::transfer(const Task& like, const Travel& travel, Access access,
                        TaskList& tasks) const {
  Task send = like;
  send.kind = TaskKind::kSend;
  send.lane = Lane::kOut;
  send.device = static_cast<uint8_t>(travel.from);
  send.peer = static_cast<uint8_t>(travel.to);
  send.bytes = travel.bytes;
  send.rows = travel.rows;
  Task receive = send;
  receive.kind = TaskKind::kReceive;
  const bool same_stage = shape_.stages.of_device(static_cast<int>(travel.from)) ==
                          shape_.stages.of_device(static_cast<int>(travel.to));
  const bool gradients = like.phase == Phase::kBackward;
  receive.lane = same_stage ? Lane::kIn : gradients ? Lane::kFromAbove : Lane::kFromBelow;
  std::swap(receive.device, receive.peer);
  send.use(travel.source, Place::on_device(travel.from), Access::kRead, travel.last_use);
  receive.use(travel.target, Place::on_device(travel.to), access);
  tasks.push_back(send);
  tasks.push_back(receive);
}

void StepPlan::dispatch(const WavePlace& at, const ExpertWave& wave, TaskList& tasks) const {
  for (size_t d = 0; d < wave.size(); ++d) {
    if (!wave[d].blocks.empty()) dispatch(at, wave[d], static_cast<int64_t>(d), tasks);
  }
}

// Adds a dispatch for each microbatch's rows in a device's group. Rows of tokens that other devices
// attend to are put together there beside the computation, sent, and placed among the rest. What is
// written into the group last has its padding, too.
void StepPlan::dispatch(const WavePlace& at, const ExpertGroup& group, int64_t seat,
                        TaskList& tasks) const {
  const bool backward = at.phase == Phase::kBackward;
  const TaskKind kind = backward ? TaskKind::kDispatchBackward : TaskKind::kDispatch;
  const int stage = shape_.stage_of(at.layer);
  const PageId inbound = pages_.inbound(seat, at.slot);
  const Place there = Place::on_device(static_cast<int>(seat));
  size_t newest = 0;  // the task that wrote inbound last; 0: none did
  const auto use_inbound = [&](Task& t) {
    t.use(inbound, there, newest == 0 ? Access::kCreate : Access::kWrite);
    newest = tasks.size() + 1;
  };
  const auto hand_out = [&](const ExpertGroup::Parcel& parcel) {
    const bool stays = parcel.device == seat;
    const Place here = Place::on_device(parcel.device);
    bool begun = false;
    for (const ExpertGroup::Part& of_microbatch : group.parts) {
      const int64_t b = at.first_microbatch + of_microbatch.microbatch;
      if (shape_.attending(at.layer, b) != parcel.device) continue;
      Task t = wave_task(kind, at, parcel.device, stays ? Lane::kCompute : Lane::kOut);
      t.peer = static_cast<uint8_t>(seat);
      t.expert = static_cast<int32_t>(group.blocks.front().expert);
      t.microbatch = static_cast<int32_t>(b);
      t.rows = of_microbatch.rows;
      if (stays) {
        use_inbound(t);
      } else {
        t.use(pages_.leaving(parcel.device, seat, at.slot), here,
              std::exchange(begun, true) ? Access::kWrite : Access::kCreate);
      }
      t.use(pages_.normed(stage, b), here, Access::kRead);
      if (backward) t.use(pages_.dresidual(stage, b), here, Access::kRead);
      tasks.push_back(t);
    }
  };
  const ExpertGroup::Parcel* own = group.parcel(static_cast<int>(seat));
  if (own != nullptr && !shape_.in_place) hand_out(*own);
  for (const ExpertGroup::Parcel& parcel : group.parcels) {
    if (parcel.device == seat) continue;
    hand_out(parcel);
    const PageId target =
        group.is_parcel() ? inbound : pages_.landing(parcel.device, seat, at.slot);
    const Travel travel{parcel.device,
                        seat,
                        pages_.leaving(parcel.device, seat, at.slot),
                        target,
                        travelling_bytes(parcel.rows, at.phase, false),
                        parcel.rows};
    Task t = wave_task(TaskKind::kPlaceRows, at, seat, Lane::kIn);
    transfer(t, travel, Access::kCreate, tasks);
    if (group.is_parcel()) return;
    t.peer = static_cast<uint8_t>(parcel.device);
    t.rows = parcel.rows;
    use_inbound(t);
    t.use(target, there, Access::kRead);
    tasks.push_back(t);
  }
  if (!has_inbound(group, seat)) return;
  if (newest == 0) {  // nothing but padding
    Task t = wave_task(kind, at, seat, Lane::kCompute);
    t.peer = static_cast<uint8_t>(seat);
    t.expert = static_cast<int32_t>(group.blocks.front().expert);
    use_inbound(t);
    tasks.push_back(t);
  }
  tasks[newest - 1].padding = group.padding();
}

// Whether some of the group's rows are copies, which its seat has of other devices' at least.
bool StepPlan::has_inbound(const ExpertGroup& group, int64_t seat) const {
  return !shape_.in_place || std::any_of(group.parcels.begin(), group.parcels.end(),
                                         [&](const auto& parcel) { return parcel.device != seat; });
}

// Adds tasks that hold the rows of a group that are read in place.
void StepPlan::read_rows(const WavePlace& at, const ExpertGroup& group, int64_t seat,
                         TaskList& tasks) const {
  const int stage = shape_.stage_of(at.layer);
  const Place here = Place::on_device(static_cast<int>(seat));
  for (const ExpertGroup::Part& of_microbatch : group.parts) {
    const int64_t b = at.first_microbatch + of_microbatch.microbatch;
    if (!shape_.in_place || shape_.attending(at.layer, b) != seat) continue;
    Task t = wave_task(TaskKind::kReadRows, at, seat, Lane::kCompute);
    t.expert = static_cast<int32_t>(group.blocks.front().expert);
    t.microbatch = static_cast<int32_t>(b);
    t.rows = of_microbatch.rows;
    t.joins_next = true;
    t.use(pages_.normed(stage, b), here, Access::kRead);
    if (at.phase == Phase::kBackward) t.use(pages_.dresidual(stage, b), here, Access::kRead);
    tasks.push_back(t);
  }
}

// Adds the tasks of a group's experts, the last of which computes all, and then their gradients.
void StepPlan::compute(const WavePlace& at, const ExpertGroup& group, int64_t seat,
                       ExpertSums* sums, TaskList& tasks) const {
  const auto device = static_cast<int>(seat);
  const Place place = Place::on_device(device);
  read_rows(at, group, seat, tasks);
  for (size_t i = 0; i < group.blocks.size(); ++i) {
    Task t = block_task(at, group.blocks[i], seat);
    t.joins_next = i + 1 < group.blocks.size();
    t.use(pages_.weights(t.record), place, Access::kRead);
    t.use(pages_.outbound(seat, at.slot), place, i == 0 ? Access::kCreate : Access::kWrite);
    if (has_inbound(group, seat)) t.use(pages_.inbound(seat, at.slot), place, Access::kRead);
    if (sums != nullptr) {
      const auto [page, begins] = sums->chain(group.blocks[i], device);
      t.first = begins;
      t.use(page, place, begins ? Access::kCreate : Access::kWrite);
    }
    tasks.push_back(t);
  }
  if (!group.blocks.empty()) give_back(at, group, seat, tasks);
  for (const ExpertGroup::Block& block : group.blocks) {
    if (at.phase == Phase::kForward) continue;
    const Task of_block = block_task(at, block, seat);
    if (sums != nullptr) add_expert_sums(of_block, sums->behind(block, device), tasks);
    if (!block.last) continue;
    std::optional<PageId> whole;
    if (sums != nullptr) whole = sums->take_whole(block.expert, device);
    expert_gradient(of_block, whole, tasks);
  }
}

// Adds the sums of shards of the expert that a task like this one has computed.
void StepPlan::add_expert_sums(const Task& like, const std::vector<ExpertSums::Addition>& additions,
                               TaskList& tasks) const {
  for (const ExpertSums::Addition& addition : additions) {
    const size_t at = tasks.size();
    add_sums({like.record, 0, shape_.records[like.record].num_elements}, like.device, addition.to,
             addition.from, tasks);
    tasks[at].expert = like.expert;
  }
}

// The gradient of an expert, if it trains, from its sum, which is a page or a buffer of its device.
void StepPlan::expert_gradient(const Task& like, std::optional<PageId> sum, TaskList& tasks) const {
  if (!shape_.records[static_cast<size_t>(like.record)].trains()) return;
  const Place place = Place::on_device(like.device);
  Task t = task(TaskKind::kGradient, Phase::kBackward, like.layer, -1);
  t.expert = like.expert;
  t.record = like.record;
  t.gradient = like.gradient;
  t.device = like.device;
  t.use(pages_.gradient(like.record), place, Access::kCreate);
  if (sum) t.use(*sum, place, Access::kRead);
  gradient(t, tasks);
}

// Sends what the experts gave to the devices that attend to its tokens.
void StepPlan::give_back(const WavePlace& at, const ExpertGroup& group, int64_t seat,
                         TaskList& tasks) const {
  const Place place = Place::on_device(static_cast<int>(seat));
  for (const ExpertGroup::Parcel& parcel : group.parcels) {
    if (parcel.device == seat) continue;
    PageId source = pages_.outbound(seat, at.slot);
    Task pack = wave_task(TaskKind::kPackRows, at, seat, Lane::kOut);
    const Task like = pack;
    if (!group.is_parcel()) {
      pack.peer = static_cast<uint8_t>(parcel.device);
      pack.rows = parcel.rows;
      pack.use(pages_.returning(parcel.device, seat, at.slot), place, Access::kCreate);
      pack.use(source, place, Access::kRead);
      tasks.push_back(pack);
      source = pages_.returning(parcel.device, seat, at.slot);
    }
    transfer(like,
             {seat, parcel.device, source, pages_.arriving(parcel.device, seat, at.slot),
              travelling_bytes(parcel.rows, at.phase, true), parcel.rows},
             Access::kCreate, tasks);
  }
}

// Adds combines of each microbatch's rows in the wave, in the order of the experts. A task reads
// what a few devices gave; more of them take further tasks.
void StepPlan::combine(const WavePlace& at, const ExpertWave& wave, TaskList& tasks) const {
  const bool backward = at.phase == Phase::kBackward;
  const TaskKind kind = backward ? TaskKind::kCombineBackward : TaskKind::kCombine;
  for (int64_t i = 0; i < at.microbatches; ++i) {
    const int64_t b = at.first_microbatch + i;
    const int device = shape_.attending(at.layer, b);
    std::vector<std::pair<const ExpertGroup::Run*, size_t>> runs;  // with their seats
    for (size_t seat = 0; seat < wave.size(); ++seat) {
      const ExpertGroup::Part* part = wave[seat].part(i);
      if (part == nullptr) continue;
      for (const ExpertGroup::Run& run : part->runs) runs.emplace_back(&run, seat);
    }
    std::sort(runs.begin(), runs.end(),
              [](const auto& x, const auto& y) { return x.first->expert < y.first->expert; });
    Task t;
    for (const auto& [run, seat_index] : runs) {
      const auto seat = static_cast<int64_t>(seat_index);
      const PageId given =
          seat == device ? pages_.outbound(seat, at.slot) : pages_.arriving(device, seat, at.slot);
      const auto used = t.used();
      const bool there = std::any_of(used.begin(), used.end(),
                                     [&](const PageUse& use) { return use.page == given; });
      if (!there && t.num_uses + 2u > t.uses.size()) {
        add_combine(t, tasks);
        t = Task();
      }
      if (t.rows == 0) {
        t = wave_task(kind, at, device, arriving_lane());
        t.microbatch = static_cast<int32_t>(b);
        t.expert = static_cast<int32_t>(run->expert);
      }
      if (!there || t.num_uses == 0) t.use(given, Place::on_device(device), Access::kRead);
      t.last_expert = static_cast<int32_t>(run->expert);
      t.rows += run->rows;
    }
    if (t.rows > 0) add_combine(t, tasks);
  }
}

void StepPlan::add_combine(Task task, TaskList& tasks) const {
  task.use(pages_.sum(shape_.stage_of(task.layer), task.microbatch),
           attending(task.layer, task.microbatch), Access::kWrite);
  tasks.push_back(task);
}

void StepPlan::index(int64_t layer, Microbatches microbatches, Phase phase, TaskList& tasks) const {
  for (const int device : attending_) {
    Task t = task(TaskKind::kIndex, phase, layer, microbatches.first);
    t.microbatches = static_cast<int32_t>(microbatches.count);
    t.device = static_cast<uint8_t>(device);
    t.lane = shape_.devices > 1 ? Lane::kOut : Lane::kCompute;
    bool any = false;
    for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
      any = any || shape_.attending(layer, b) == device;
    }
    if (any) tasks.push_back(t);
  }
}

bool StepPlan::has_own(const ExpertWave& wave) const {
  if (!shape_.zebra || shape_.rounds() == 1) return false;
  for (size_t d = 0; d < wave.size(); ++d) {
    if (!wave[d].blocks.empty() && shape_.attends(static_cast<int>(d))) return true;
  }
  return false;
}

// Adds dispatch, experts and combine of every wave. With several devices a wave is handed out
// before the one before it is computed, and combined before the one behind it is: so a device may
// compute a wave while others are still at the one before. Combines, and so their sums, keep the
// order of the experts.
// Returns where the first wave of devices that attend begins in zebra, else the end.
size_t StepPlan::expert_tasks(int64_t layer, Microbatches microbatches,
                              const std::vector<ExpertWave>& waves, Phase phase, ExpertSums* sums,
                              int64_t before, TaskList& tasks) const {
  const int64_t in_flight = waves_in_flight(shape_.devices), ahead = in_flight - 1;
  index(layer, microbatches, phase, tasks);
  if (shape_.options.whole_layers) upload_layer(layer, phase, tasks);
  const size_t first_task = tasks.size();
  const auto count = static_cast<int64_t>(waves.size());
  // A chunk's wave arrives while the one before it computes, so they have different pages, also
  // where one of them is the only wave of its chunk.
  const int64_t begin = shape_.rounds() == 1 ? 0 : before;
  const auto place = [&](int64_t i) {
    const int64_t slot = (begin + i) % in_flight;
    return WavePlace{phase, layer, i, slot, microbatches.first, microbatches.count};
  };
  std::optional<size_t> own;
  for (int64_t i = -ahead; i < count + ahead; ++i) {
    const int64_t next = i + ahead, done = i - ahead;
    if (next < count) {
      const ExpertWave& wave = waves[static_cast<size_t>(next)];
      if (!own && has_own(wave)) own = tasks.size();
      dispatch(place(next), wave, tasks);
    }
    const bool combines = done >= 0;
    if (combines && ahead > 0) combine(place(done), waves[static_cast<size_t>(done)], tasks);
    if (i >= 0 && i < count) {
      const ExpertWave& wave = waves[static_cast<size_t>(i)];
      for (size_t d = 0; d < wave.size(); ++d) {
        compute(place(i), wave[d], static_cast<int64_t>(d), sums, tasks);
      }
    }
    if (combines && ahead == 0) combine(place(done), waves[static_cast<size_t>(done)], tasks);
  }
  // Rows that are read in place have slots of their own until the next layer's take these.
  if (phase == Phase::kForward && !shape_.in_place) give_up_normed(first_task, tasks);
  return own.value_or(tasks.size());
}

}  // namespace pagoda
