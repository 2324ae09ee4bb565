// The tasks that carry rows to the devices that compute them, and what experts gave back.
#include <algorithm>
#include <utility>
#include <vector>

#include "plan/step/step_plan.h"

namespace pagoda {

PageTable::ChunkWave StepPlan::chunk_wave(const WavePlace& at) const {
  return {at.layer, shape_.round_of(at.first_microbatch), at.wave};
}

// A pass without a backward leaves them to be overwritten.
bool StepPlan::keeps_rows(const WavePlace& at, int64_t device) const {
  return pages_.keeps_rows(device, chunk_wave(at));
}

PageId StepPlan::inbound(const WavePlace& at, int64_t device) const {
  const bool stay = at.phase == Phase::kForward && keeps_rows(at, device);
  return stay ? pages_.kept_rows(device, chunk_wave(at)) : pages_.inbound(device, at.slot);
}

// Bytes of a parcel on its way to the experts, or back.
int64_t StepPlan::travelling_bytes(const WavePlace& at, const Crossing& of, bool back) const {
  const int64_t row = shape_.hidden_size * shape_.dtype_bytes;
  const bool backward = at.phase == Phase::kBackward;
  const int64_t scale = backward ? static_cast<int64_t>(sizeof(float)) : 0;
  const bool inputs_too = backward && !back && !keeps_rows(at, of.seat);
  return of.parcel->rows * ((inputs_too ? 2 : 1) * row + scale);
}

// Sends what `source` holds on one device to `target` on another, for tasks like this one.
void StepPlan::transfer(const Task& like, const Travel& travel, Access access,
                        TaskList& tasks) const {
  Task send = like;
  send.kind = TaskKind::kSend;
  send.lane = leaving_lane(travel.way);
  send.device = static_cast<uint8_t>(travel.from);
  send.peer = static_cast<uint8_t>(travel.to);
  send.bytes = travel.bytes;
  send.first_byte = travel.source_byte;
  send.rows = travel.rows;
  send.in_turn = travel.in_turn;
  Task receive = send;
  receive.kind = TaskKind::kReceive;
  receive.first_byte = travel.target_byte;
  const bool same_stage = shape_.stages.of_device(static_cast<int>(travel.from)) ==
                          shape_.stages.of_device(static_cast<int>(travel.to));
  const bool gradients = like.phase == Phase::kBackward;
  const Lane of_stage = gradients ? Lane::kFromAbove : Lane::kFromBelow;
  const Lane of_rows = travel.lane == 0 ? arriving_lane(travel.way) : in_lane(travel.lane);
  receive.lane = same_stage ? of_rows : of_stage;
  std::swap(receive.device, receive.peer);
  send.use(travel.source, Place::on_device(travel.from), Access::kRead, travel.last_use);
  receive.use(travel.target, Place::on_device(travel.to), access);
  // One behind the other: what goes in turn must (parallel/mpi_link.h).
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
      Filled page{inbound(at, seat)};
      hand_out(at, {seat, &wave[d], own}, page, tasks);
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
      t.use(inbound(at, seat), Place::on_device(t.device), Access::kCreate);
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
    const bool inputs_too = !backward || !keeps_rows(at, of.seat);
    if (inputs_too) t.use(pages_.normed(stage, b), here, Access::kRead);
    if (backward) t.use(pages_.dresidual(stage, b), here, Access::kRead);
    tasks.push_back(t);
  }
}

// Adds the task that puts together what the experts gave to a device.
void StepPlan::pack(const WavePlace& at, const Crossing& of, Filled& page, TaskList& tasks) const {
  const Place here = Place::on_device(static_cast<int>(of.seat));
  Task t = wave_task(TaskKind::kPackRows, at, of.seat, leaving_lane(RowsWay::kBack));
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
    const int64_t bytes = travelling_bytes(at, of, back);
    parcels.push_back({back ? seat : device, back ? device : seat, bytes});
  }
  for (const ExchangeLeg& leg : exchange_legs(parcels, shape_.exchange, nodes_)) {
    if (leg.kind == ExchangeLeg::Kind::kGathered) {
      gather(rows, leg, tasks);
      continue;
    }
    const Crossing& of = rows.crossings[leg.parcel];
    Travel travel{.from = leg.from, .to = leg.to, .target = target_of(rows, of)};
    travel.lane = leg.lane;
    travel.in_turn = leg.in_turn;
    travel.way = rows.way;
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
  return arrives_whole(*of.group, of.seat) ? inbound(rows.at, of.seat)
                                           : pages_.landing(of.parcel->device, of.seat, slot);
}

// Sends a device's parcels for those of another node together.
void StepPlan::gather(const CrossingRows& rows, const ExchangeLeg& leg, TaskList& tasks) const {
  const int64_t node = nodes_.node(leg.to), slot = rows.at.slot;
  Filled page{pages_.gathered(rows.way, leg.from, node, slot)};
  Travel travel{.from = leg.from, .to = leg.to, .source = page.page};
  travel.target = pages_.passing(rows.way, leg.from, node, slot);
  travel.bytes = leg.bytes;
  travel.way = rows.way;
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
  Task t = wave_task(TaskKind::kTakeParcel, at, travel.to, arriving_lane(travel.way));
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
  t.use(inbound(rows.at, of.seat), there, newest == 0 ? Access::kCreate : Access::kWrite);
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

}  // namespace pagoda
