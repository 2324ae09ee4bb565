// The tasks of a layer's experts: rows to the devices that compute them, and back.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "plan/step/step_plan.h"

namespace pagoda {

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
  send.first_byte = travel.source_byte;
  send.rows = travel.rows;
  Task receive = send;
  receive.kind = TaskKind::kReceive;
  receive.first_byte = travel.target_byte;
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

// Hands out the rows of a wave. What is written into a group last has its padding, too.
void StepPlan::dispatch(const WavePlace& at, const ExpertWave& wave, TaskList& tasks) const {
  const bool flat = shape_.exchange == ExchangeOrder::kFlat;
  CrossingRows rows{RowsWay::kToExperts, at, {}, std::vector<size_t>(wave.size(), 0)};
  for (size_t d = 0; d < wave.size(); ++d) {
    const auto seat = static_cast<int64_t>(d);
    const ExpertGroup::Parcel* own = wave[d].parcel(static_cast<int>(seat));
    if (own != nullptr && !shape_.in_place) {
      Filled inbound{pages_.inbound(seat, at.slot)};
      hand_out(at, {seat, &wave[d], own}, inbound, tasks);
      rows.newest[d] = tasks.size();
    }
    add_crossings(wave[d], seat, rows);
    if (flat) carry(rows, tasks);
  }
  if (!flat) carry(rows, tasks);
  for (size_t d = 0; d < wave.size(); ++d) {
    const ExpertGroup& group = wave[d];
    const auto seat = static_cast<int64_t>(d);
    if (group.blocks.empty() || arrives_whole(group, seat) || !has_inbound(group, seat)) continue;
    if (rows.newest[d] == 0) {  // nothing but padding
      const bool backward = at.phase == Phase::kBackward;
      Task t = wave_task(backward ? TaskKind::kDispatchBackward : TaskKind::kDispatch, at, seat,
                         Lane::kCompute);
      t.peer = static_cast<uint8_t>(seat);
      t.expert = static_cast<int32_t>(group.blocks.front().expert);
      t.use(pages_.inbound(seat, at.slot), Place::on_device(t.device), Access::kCreate);
      tasks.push_back(t);
      rows.newest[d] = tasks.size();
    }
    tasks[rows.newest[d] - 1].padding = group.padding();
  }
}

// Adds a dispatch for each microbatch's rows of a parcel: into the group, or where the seat is
// another device, beside the computation into a page that leaves.
void StepPlan::hand_out(const WavePlace& at, const Crossing& of, Filled& page,
                        TaskList& tasks) const {
  const bool backward = at.phase == Phase::kBackward;
  const TaskKind kind = backward ? TaskKind::kDispatchBackward : TaskKind::kDispatch;
  const int stage = shape_.stage_of(at.layer), device = of.parcel->device;
  const Place here = Place::on_device(device);
  for (const ExpertGroup::Part& of_microbatch : of.group->parts) {
    const int64_t b = at.first_microbatch + of_microbatch.microbatch;
    if (shape_.attending(at.layer, b) != device) continue;
    Task t = wave_task(kind, at, device, device == of.seat ? Lane::kCompute : Lane::kOut);
    t.peer = static_cast<uint8_t>(of.seat);
    t.expert = static_cast<int32_t>(of.group->blocks.front().expert);
    t.microbatch = static_cast<int32_t>(b);
    t.rows = of_microbatch.rows;
    t.first_byte = page.first_byte;
    t.use(page.page, here, std::exchange(page.begun, true) ? Access::kWrite : Access::kCreate);
    t.use(pages_.normed(stage, b), here, Access::kRead);
    if (backward) t.use(pages_.dresidual(stage, b), here, Access::kRead);
    tasks.push_back(t);
  }
}

// Adds the task that puts together what the experts gave to a device.
void StepPlan::pack(const WavePlace& at, const Crossing& of, Filled& page, TaskList& tasks) const {
  const Place here = Place::on_device(static_cast<int>(of.seat));
  Task t = wave_task(TaskKind::kPackRows, at, of.seat, Lane::kOut);
  t.peer = static_cast<uint8_t>(of.parcel->device);
  t.rows = of.parcel->rows;
  t.first_byte = page.first_byte;
  t.use(page.page, here, std::exchange(page.begun, true) ? Access::kWrite : Access::kCreate);
  t.use(pages_.outbound(of.seat, at.slot), here, Access::kRead);
  tasks.push_back(t);
}

// The parcels of a group that other devices attend to.
void StepPlan::add_crossings(const ExpertGroup& group, int64_t seat, CrossingRows& rows) const {
  for (const ExpertGroup::Parcel& parcel : group.parcels) {
    if (parcel.device != seat) rows.crossings.push_back({seat, &group, &parcel});
  }
}

// Sends parcels to their seats in the run's order, or what experts gave to the devices that attend
// to its tokens. Each is put together before it leaves, and at a seat placed among the rest of its
// group when all of it is there. None is left.
void StepPlan::carry(CrossingRows& rows, TaskList& tasks) const {
  const WavePlace& at = rows.at;
  const bool back = rows.way == RowsWay::kBack;
  std::vector<ParcelBytes> parcels;
  for (const Crossing& of : rows.crossings) {
    const int seat = static_cast<int>(of.seat), device = of.parcel->device;
    const int64_t bytes = travelling_bytes(of.parcel->rows, at.phase, back);
    parcels.push_back({back ? seat : device, back ? device : seat, bytes});
  }
  for (const ExchangeLeg& leg : exchange_legs(parcels, shape_.exchange, nodes_)) {
    if (leg.kind == ExchangeLeg::Kind::kGathered) {
      gather(rows, leg, tasks);
      continue;
    }
    const Crossing& of = rows.crossings[leg.parcel];
    Travel travel{.from = leg.from, .to = leg.to, .target = target_of(rows, of)};
    travel.bytes = leg.bytes;
    travel.rows = leg.ends ? of.parcel->rows : 0;
    travel.source_byte = leg.first_byte;
    if (leg.kind == ExchangeLeg::Kind::kPassedOn) {
      travel.source = pages_.passing(rows.way, leg.sender, nodes_.node(leg.from), at.slot);
    } else {
      travel.source = source_of(rows, of);
      travel.target_byte = leg.first_byte;
      const bool is_there = back && of.group->is_parcel();
      Filled page{travel.source};
      if (leg.first_byte == 0 && !is_there) load(rows, of, page, tasks);
    }
    hand_over(at, travel, tasks);
    if (leg.ends && !back && !arrives_whole(*of.group, of.seat)) place_rows(rows, of, tasks);
  }
  rows.crossings.clear();
}

// Puts the parcel into a page of the device that sends it.
void StepPlan::load(const CrossingRows& rows, const Crossing& of, Filled& page,
                    TaskList& tasks) const {
  rows.way == RowsWay::kBack ? pack(rows.at, of, page, tasks) : hand_out(rows.at, of, page, tasks);
}

PageId StepPlan::source_of(const CrossingRows& rows, const Crossing& of) const {
  const int64_t slot = rows.at.slot;
  if (rows.way == RowsWay::kToExperts) return pages_.leaving(of.parcel->device, of.seat, slot);
  return of.group->is_parcel() ? pages_.outbound(of.seat, slot)
                               : pages_.returning(of.parcel->device, of.seat, slot);
}

PageId StepPlan::target_of(const CrossingRows& rows, const Crossing& of) const {
  const int64_t slot = rows.at.slot;
  if (rows.way == RowsWay::kBack) return pages_.arriving(of.parcel->device, of.seat, slot);
  return arrives_whole(*of.group, of.seat) ? pages_.inbound(of.seat, slot)
                                           : pages_.landing(of.parcel->device, of.seat, slot);
}

// Sends a device's parcels for those of another node together.
void StepPlan::gather(const CrossingRows& rows, const ExchangeLeg& leg, TaskList& tasks) const {
  const int64_t node = nodes_.node(leg.to), slot = rows.at.slot;
  Filled page{pages_.gathered(rows.way, leg.from, node, slot)};
  Travel travel{.from = leg.from, .to = leg.to, .source = page.page};
  travel.target = pages_.passing(rows.way, leg.from, node, slot);
  travel.bytes = leg.bytes;
  for (const auto& [parcel, first_byte] : leg.gathered) {
    page.first_byte = first_byte;
    load(rows, rows.crossings[parcel], page, tasks);
    travel.rows += rows.crossings[parcel].parcel->rows;
  }
  hand_over(rows.at, travel, tasks);
}

// Sends bytes, or takes those that have come to their own device.
void StepPlan::hand_over(const WavePlace& at, const Travel& travel, TaskList& tasks) const {
  if (travel.from != travel.to) {
    const Task like = wave_task(TaskKind::kSend, at, travel.from, Lane::kOut);
    return transfer(like, travel, travel.target_byte == 0 ? Access::kCreate : Access::kWrite,
                    tasks);
  }
  Task t = wave_task(TaskKind::kTakeParcel, at, travel.to, Lane::kIn);
  t.first_byte = travel.source_byte;
  t.bytes = travel.bytes;
  t.rows = travel.rows;
  t.use(travel.target, Place::on_device(t.device), Access::kCreate);
  t.use(travel.source, Place::on_device(t.device), Access::kRead);
  tasks.push_back(t);
}

void StepPlan::place_rows(CrossingRows& rows, const Crossing& of, TaskList& tasks) const {
  size_t& newest = rows.newest[static_cast<size_t>(of.seat)];
  Task t = wave_task(TaskKind::kPlaceRows, rows.at, of.seat, Lane::kIn);
  const Place there = Place::on_device(t.device);
  t.peer = static_cast<uint8_t>(of.parcel->device);
  t.rows = of.parcel->rows;
  t.use(pages_.inbound(of.seat, rows.at.slot), there,
        newest == 0 ? Access::kCreate : Access::kWrite);
  t.use(target_of(rows, of), there, Access::kRead);
  tasks.push_back(t);
  newest = tasks.size();
}

// Whether the group comes as one parcel, which needs no placing.
bool StepPlan::arrives_whole(const ExpertGroup& group, int64_t seat) const {
  return group.is_parcel() && group.parcels.front().device != seat;
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
  if (shape_.exchange == ExchangeOrder::kFlat) {
    CrossingRows given{RowsWay::kBack, at};
    add_crossings(group, seat, given);
    carry(given, tasks);
  }
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

// Adds the experts of a wave. Where all of it goes back together, nobody gives back before all have
// computed.
void StepPlan::compute(const WavePlace& at, const ExpertWave& wave, ExpertSums* sums,
                       TaskList& tasks) const {
  CrossingRows given{RowsWay::kBack, at};
  for (size_t d = 0; d < wave.size(); ++d) {
    compute(at, wave[d], static_cast<int64_t>(d), sums, tasks);
    add_crossings(wave[d], static_cast<int64_t>(d), given);
  }
  if (shape_.exchange != ExchangeOrder::kFlat) carry(given, tasks);
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
      compute(place(i), waves[static_cast<size_t>(i)], sums, tasks);
    }
    if (combines && ahead == 0) combine(place(done), waves[static_cast<size_t>(done)], tasks);
  }
  // Rows that are read in place have slots of their own until the next layer's take these.
  if (phase == Phase::kForward && !shape_.in_place) give_up_normed(first_task, tasks);
  return own.value_or(tasks.size());
}

}  // namespace pagoda
