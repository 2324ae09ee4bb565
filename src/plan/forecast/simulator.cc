#include "plan/forecast/simulator.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace pagoda {

Simulator::Simulator(const RunShape* shape, const PageTable* pages, const MachineProfile& profile,
                     Residency start)
    : shape_(*shape),
      pages_(*pages),
      profile_(profile),
      replay_(pages, std::move(start)),
      disk_ready_(pages->pages.size(), Timeline::kNothing),
      routed_(static_cast<size_t>(shape->microbatches), Timeline::kNothing),
      indexed_(static_cast<size_t>(shape->devices), Timeline::kNothing) {
  timeline_.set_slice(profile_.slice_s);
  cores_ = timeline_.add_resource(profile_.cores);
  drive_reads_ = timeline_.add_resource(1);
  drive_writes_ = profile_.half_duplex ? drive_reads_ : timeline_.add_resource(1);
  issuing_ = timeline_.add_stream("issue");
  optimizer_ = timeline_.add_stream("optimizer");
  page_reads_ = timeline_.add_stream("page reads");
  page_writes_ = timeline_.add_stream("page writes");
  drive_read_ = timeline_.add_stream("drive reads");
  drive_write_ = timeline_.add_stream("drive writes");
  checks_ = timeline_.add_stream("checks of reads");
  for (int d = 0; d < shape_.devices; ++d) {
    Device device;
    device.lanes.fill(timeline_.add_stream(strf("compute %d", d)));
    device.processor = timeline_.add_resource(1);
    device.upload = timeline_.add_stream(strf("upload %d", d));
    device.download = timeline_.add_stream(strf("download %d", d));
    if (shape_.devices > 1) {
      device.lanes[static_cast<size_t>(Lane::kOut)] = timeline_.add_stream(strf("out %d", d));
      device.lanes[static_cast<size_t>(Lane::kIn)] = timeline_.add_stream(strf("in %d", d));
    }
    devices_.push_back(device);
  }
  for (const SlotClass& c : replay_.residency().classes()) {
    auto& places = slots_.emplace_back();
    for (int32_t slots : c.device_slots) places.emplace_back(slots);
    places.emplace_back(c.host_slots);
  }
}

Simulator::SlotState& Simulator::slot_state(PageId page, Place place, int32_t slot) {
  const int p = place.tier == Tier::kHost ? shape_.devices : place.device;
  return slots_[pages_.pages[page].slot_class][p][slot];
}

void Simulator::add_before_overwrite(const SlotState& slot, std::vector<Work>& after) {
  after.insert(after.end(), slot.readers.begin(), slot.readers.end());
  after.push_back(slot.ready);
}

Simulator::Work Simulator::add(int stream, const Cost& cost, double units,
                               const std::vector<Work>& after) {
  return timeline_.add(stream, cores_, cost.cores, cost.seconds(units), after, cost.memory);
}

void Simulator::note(Work work, const Cost& cost, double units, bool moves) {
  SimulatedWork noted;
  noted.own_s = cost.seconds(units);
  if (noted.own_s <= 0) return;
  noted.cores = cost.cores;
  noted.moves = moves;
  noted.kind = task_->kind;
  noted.phase = task_->phase;
  noted.layer = task_->layer;
  noted.expert = task_->expert;
  noted_.emplace_back(work, noted);
}

Simulator::Work Simulator::copy(const Move& move) {
  const bool up = move.kind == Move::Kind::kUpload;
  const Device& device = devices_[move.device];
  SlotState& on_device = slot_state(move.page, Place::on_device(move.device), move.device_slot);
  SlotState& in_host = slot_state(move.page, Place::host(), move.host_slot);
  SlotState& source = up ? in_host : on_device;
  SlotState& target = up ? on_device : in_host;
  std::vector<Work> after = {timeline_.last(issuing_), source.ready};
  add_before_overwrite(target, after);
  const Cost& cost = up ? profile_.upload : profile_.download;
  const auto bytes = static_cast<double>(pages_.pages[move.page].bytes);
  const Work done = add(up ? device.upload : device.download, cost, bytes, after);
  note(done, cost, bytes, true);
  source.readers.push_back(done);
  target = {done, {}};
  return done;
}

// A read that must wait queues with others that must. The drive serves them in the order in which
// they leave that queue, and one thread checks the pages that arrive.
Simulator::Work Simulator::fetch(const Move& move, SlotState& slot) {
  const auto bytes = static_cast<double>(pages_.pages[move.page].bytes);
  std::vector<Work> after = {timeline_.last(issuing_), disk_ready_[move.page]};
  add_before_overwrite(slot, after);
  Work work = timeline_.add(page_reads_, Timeline::kNone, 0, 0, after);
  work = timeline_.add(drive_read_, drive_reads_, 1, profile_.read.seconds(bytes), {&work, 1},
                       profile_.read.memory);
  note(work, {profile_.read.fixed_s, profile_.read.unit_s, 0}, bytes, true);
  work = timeline_.add(Timeline::kNone, Timeline::kNone, 0, profile_.completion_s, {&work, 1});
  work = add(checks_, profile_.checksum, bytes, {work});
  note(work, profile_.checksum, bytes, true);
  slot = {work, {}};
  return work;
}

Simulator::Work Simulator::write_back(const Move& move, const SlotState& slot) {
  const auto bytes = static_cast<double>(pages_.pages[move.page].bytes);
  Work work = add(page_writes_, profile_.checksum, bytes,
                  {timeline_.last(issuing_), slot.ready, disk_ready_[move.page]});
  note(work, profile_.checksum, bytes, true);
  work = timeline_.add(drive_write_, drive_writes_, 1, profile_.write.seconds(bytes), {&work, 1},
                       profile_.write.memory);
  note(work, {profile_.write.fixed_s, profile_.write.unit_s, 0}, bytes, true);
  return timeline_.add(Timeline::kNone, Timeline::kNone, 0, profile_.completion_s, {&work, 1});
}

Simulator::Work Simulator::carry_out(const Move& move) {
  if (move.kind == Move::Kind::kUpload || move.kind == Move::Kind::kDownload) return copy(move);
  SlotState& slot = slot_state(move.page, Place::host(), move.host_slot);
  Work done;
  if (move.kind == Move::Kind::kFetch) {
    done = fetch(move, slot);
  } else {
    done = write_back(move, slot);
    slot.readers.push_back(done);
  }
  disk_ready_[move.page] = done;
  return done;
}

int Simulator::stream_of(const Task& task) const {
  return task.on_host ? optimizer_ : devices_[task.device].lanes[static_cast<size_t>(task.lane)];
}

// A task that takes no cores is a GPU's. What arrives is moved by the link.
Simulator::Work Simulator::compute(const Task& task, const Cost& cost,
                                   const std::vector<Work>& after) {
  const bool on_gpu = cost.cores == 0 && !task.on_host && task.kind != TaskKind::kReceive;
  if (!on_gpu || shape_.devices == 1) return add(stream_of(task), cost, 0, after);
  const int processor = devices_[task.device].processor;
  return timeline_.add(stream_of(task), processor, 1, cost.seconds(0), after, cost.memory);
}

// Returns when what was sent has arrived.
Simulator::Work Simulator::travel(const Task& send, Work sent) {
  const double seconds = profile_.wire.seconds(static_cast<double>(send.bytes));
  if (seconds <= 0) return sent;
  const auto [wire, is_new] = wires_.try_emplace({send.device, send.peer}, 0);
  if (is_new) wire->second = timeline_.add_stream(strf("wire %d to %d", send.device, send.peer));
  return timeline_.add(wire->second, Timeline::kNone, 0, seconds, {&sent, 1});
}

namespace {

bool is_dispatch(const Task& task) {
  return task.kind == TaskKind::kDispatch || task.kind == TaskKind::kDispatchBackward;
}

}  // namespace

// Issuing a task takes its thread some time; without prefetch it also waits before a page is
// uploaded.
void Simulator::issue(const Task& task) {
  std::vector<Work> after;
  if (!shape_.options.prefetch && !task.on_host) {
    for (const PageUse& use : task.used()) {
      const bool there = replay_.residency().valid_at(use.page, use.place);
      if (use.access == Access::kCreate || there) continue;
      after = {timeline_.last(stream_of(task))};
    }
  }
  add(issuing_, profile_.issue, 0, after);
}

void Simulator::run(const Task& task) {
  task_ = &task;
  issue(task);
  const Replay::Placed placed = replay_.place(task);
  for (const Move& move : placed.moves) carry_out(move);
  if (task.kind == TaskKind::kPrefetch) return;
  std::vector<Work>& after = joined_.after;
  after.push_back(timeline_.last(issuing_));
  for (size_t i = 0; i < task.num_uses; ++i) {
    const PageUse& use = task.uses[i];
    joined_.uses.emplace_back(use, placed.slots[i]);
    const SlotState& slot = slot_state(use.page, use.place, placed.slots[i]);
    if (use.access == Access::kRead) {
      after.push_back(slot.ready);
    } else {
      add_before_overwrite(slot, after);
    }
  }
  if (task.kind == TaskKind::kReceive) {
    after.push_back(sent_[{task.peer, task.device}].front().ready);
  } else if (task.kind == TaskKind::kIndex) {
    for (int64_t b = task.microbatch; b < task.microbatch + task.microbatches; ++b) {
      if (shape_.attending(b) == task.device) after.push_back(routed_[static_cast<size_t>(b)]);
    }
  } else if (task.lane != Lane::kCompute || is_dispatch(task)) {
    after.push_back(indexed_[task.device]);
  }
  Cost cost = profile_.of(task);
  joined_.seconds += cost.seconds(task_units(task, shape_));
  if (task.joins_next) return;
  const Joined all = std::exchange(joined_, {});
  cost.fixed_s = all.seconds;
  const Work done = compute(task, cost, all.after);
  note(done, cost, 0, false);
  held_.emplace_back(done, SimulatedMemory{0, replay_.held_bytes(Place::on_device(0)),
                                           replay_.held_bytes(Place::host())});
  for (const auto& [use, at] : all.uses) {
    SlotState& slot = slot_state(use.page, use.place, at);
    if (use.access == Access::kRead) {
      slot.readers.push_back(done);
    } else {
      slot = {done, {}};
    }
  }
  if (task.kind == TaskKind::kSend) {
    const auto& [use, at] = all.uses.front();
    sent_[{task.device, task.peer}].push_back(
        {&slot_state(use.page, use.place, at), travel(task, done)});
  } else if (task.kind == TaskKind::kReceive) {
    std::deque<Sent>& channel = sent_[{task.peer, task.device}];
    channel.front().source->readers.push_back(done);
    channel.pop_front();
  } else if (task.kind == TaskKind::kIndex) {
    indexed_[task.device] = done;
  } else if (task.kind == TaskKind::kRoute || task.kind == TaskKind::kRouteReplay) {
    routed_[static_cast<size_t>(task.microbatch)] = done;
  }
}

void Simulator::run(const TaskList& tasks) {
  for (const Task& task : tasks) run(task);
}

void Simulator::run(const StepPiece& piece) {
  foresee(piece, replay_);
  run(piece.tasks);
  using Wait = StepPiece::Wait;
  if (piece.wait != Wait::kResolve && piece.wait != Wait::kForwardDone) return;
  const Microbatches of = piece.microbatches;
  std::vector<Work> learnt;
  if (piece.wait == Wait::kResolve) {
    learnt.assign(routed_.begin() + of.first, routed_.begin() + of.end());
  } else if (of.count < shape_.microbatches) {
    return;  // nobody waits for a part of the forward
  } else {
    for (const int d : shape_.attending_devices()) {
      learnt.push_back(timeline_.last(devices_[static_cast<size_t>(d)].lanes[0]));
    }
  }
  timeline_.add(issuing_, Timeline::kNone, 0, profile_.wake_up_s, learnt);
}

void Simulator::end_step() {
  std::vector<Work> after = {timeline_.last(optimizer_)};
  for (const Device& device : devices_) after.push_back(timeline_.last(device.lanes[0]));
  step_ends_.push_back(timeline_.add(issuing_, Timeline::kNone, 0, profile_.wake_up_s, after));
}

Simulated Simulator::finish() {
  timeline_.run();
  Simulated result;
  result.makespan_s = timeline_.end_s();
  double before = 0;
  for (Work end : step_ends_) {
    result.step_s.push_back(timeline_.end_s(end) - before);
    before = timeline_.end_s(end);
  }
  for (const Timeline::Stream& stream : timeline_.streams()) {
    result.streams.push_back({stream.name, stream.busy_s, result.makespan_s - stream.busy_s});
  }
  for (auto& [work, noted] : noted_) {
    noted.stream = timeline_.stream(work);
    noted.start_s = timeline_.start_s(work);
    noted.end_s = timeline_.end_s(work);
    result.works.push_back(noted);
  }
  for (auto& [work, held] : held_) {
    held.at_s = timeline_.start_s(work);
    result.memory.push_back(held);
  }
  result.traffic = replay_.traffic();
  for (int d = 0; d < shape_.devices; ++d) {
    result.peak_device_bytes.push_back(replay_.peak_bytes(Place::on_device(d)));
  }
  result.peak_host_bytes = replay_.peak_bytes(Place::host());
  return result;
}

}  // namespace pagoda
