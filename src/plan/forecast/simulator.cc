#include "plan/forecast/simulator.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "plan/step/rank_part.h"

namespace pagoda {

namespace {

// Bytes of a microbatch's routing: a double and a count for each expert.
constexpr double kRoutedBytes = sizeof(double) + sizeof(int32_t);

std::vector<Simulator::Machine> one_machine(const MachineProfile& profile, Residency start) {
  std::vector<Simulator::Machine> machines;
  machines.push_back({profile, std::move(start)});
  return machines;
}

}  // namespace

Simulator::Simulator(const RunShape* shape, const PageTable* pages, const MachineProfile& profile,
                     Residency start)
    : Simulator(shape, pages, one_machine(profile, std::move(start))) {}

Simulator::Simulator(const RunShape* shape, const PageTable* pages, std::vector<Machine> machines)
    : shape_(*shape),
      pages_(*pages),
      network_(&timeline_),
      routed_(static_cast<size_t>(shape->microbatches), Timeline::kNothing),
      indexed_(static_cast<size_t>(shape->devices), Timeline::kNothing) {
  CHECK(std::ssize(machines) == shape_.ranks(), "%zu machines", machines.size());
  const MachineProfile& first = machines.front().profile;
  timeline_.set_wake(first.stream_wake_s, first.slice_s);
  for (Machine& machine : machines) add_rank(std::move(machine));
}

void Simulator::add_rank(Machine machine) {
  const int number = static_cast<int>(ranks_.size());
  const std::string suffix = shape_.ranks() > 1 ? strf(" of rank %d", number) : "";
  const auto stream = [&](const char* name) { return timeline_.add_stream(name + suffix); };
  Rank& rank = ranks_.emplace_back(Rank{.profile = machine.profile,
                                        .replay = Replay(&pages_, std::move(machine.start)),
                                        .devices = shape_.devices_of(number),
                                        .number = number});
  rank.cores = timeline_.add_resource(rank.profile.cores);
  rank.drive_reads = timeline_.add_resource(1);
  rank.drive_writes = rank.profile.half_duplex ? rank.drive_reads : timeline_.add_resource(1);
  rank.issuing = stream("issue");
  rank.optimizer = stream("optimizer");
  rank.page_reads = stream("page reads");
  rank.page_writes = stream("page writes");
  rank.drive_read = stream("drive reads");
  rank.drive_write = stream("drive writes");
  rank.checks = stream("checks of reads");
  if (shape_.ranks() > 1) {
    rank.arriving = stream("arriving pages");
    rank.sending = stream("leaving weights");
    add_cards(rank, suffix);
  }
  rank.disk_ready.assign(pages_.pages.size(), Timeline::kNothing);
  for (int d = rank.devices.first; d < rank.devices.end(); ++d) {
    Device device;
    device.lanes.fill(timeline_.add_stream(strf("compute %d", d)));
    device.processor = timeline_.add_resource(1);
    device.upload = timeline_.add_stream(strf("upload %d", d));
    device.download = timeline_.add_stream(strf("download %d", d));
    if (shape_.devices > 1) {
      device.lanes[static_cast<size_t>(Lane::kOut)] = timeline_.add_stream(strf("out %d", d));
      for (int n = 0; n < shape_.in_lanes(number); ++n) {
        const std::string name = strf("in %d", d) + (n > 0 ? strf(" lane %d", n) : "");
        device.lanes[static_cast<size_t>(in_lane(n))] = timeline_.add_stream(name);
      }
    }
    if (shape_.ways_apart()) {
      device.lanes[static_cast<size_t>(Lane::kOutBack)] =
          timeline_.add_stream(strf("out back %d", d));
      device.lanes[static_cast<size_t>(Lane::kInBack)] =
          timeline_.add_stream(strf("in back %d", d));
    }
    if (shape_.stages.several()) {
      device.lanes[static_cast<size_t>(Lane::kFromBelow)] =
          timeline_.add_stream(strf("from below %d", d));
      device.lanes[static_cast<size_t>(Lane::kFromAbove)] =
          timeline_.add_stream(strf("from above %d", d));
    }
    if (shape_.has_far_guests()) {
      device.lanes[static_cast<size_t>(Lane::kWeights)] =
          timeline_.add_stream(strf("in weights %d", d));
    }
    if (shape_.expert_sums_travel()) {
      device.lanes[static_cast<size_t>(Lane::kSums)] = timeline_.add_stream(strf("in sums %d", d));
    }
    devices_.push_back(device);
  }
  for (const SlotClass& c : rank.replay.residency().classes()) {
    auto& places = rank.slots.emplace_back();
    for (int32_t slots : c.device_slots) places.emplace_back(slots);
    places.emplace_back(c.host_slots);
  }
}

// A card for all of the rank's devices, or one for each.
void Simulator::add_cards(const Rank& rank, const std::string& suffix) {
  const std::vector<double>& rates = shape_.network_rates;
  const int lanes = rates.empty() ? 1 : card_lanes(rates).count[static_cast<size_t>(rank.number)];
  int card = 0;
  for (int d = rank.devices.first; d < rank.devices.end(); ++d) {
    const bool first = d == rank.devices.first;
    if (first || !shape_.shares_cards) card = network_.add_card(rank.profile.network);
    const std::string name = rank.devices.count > 1 ? strf("network %d", d) : "network";
    network_.add_device(card, name + suffix, lanes);
  }
}

Simulator::SlotState& Simulator::slot_state(PageId page, Place place, int32_t slot) {
  const int p = place.tier == Tier::kHost ? rank_->devices.count : place.device;
  return rank_->slots[pages_.pages[page].slot_class][p][slot];
}

void Simulator::add_before_overwrite(const SlotState& slot, std::vector<Work>& after) {
  after.insert(after.end(), slot.readers.begin(), slot.readers.end());
  after.push_back(slot.ready);
}

Simulator::Work Simulator::add(int stream, const Cost& cost, double units,
                               const std::vector<Work>& after) {
  return add(stream, rank_->cores, cost.cores, cost.seconds(units), after, cost.memory);
}

Simulator::Work Simulator::add(int stream, int resource, double demand, double seconds,
                               std::span<const Work> after, double memory) {
  return timeline_.add(stream, resource, demand, seconds, after, memory, rank_->number);
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
  const Device& device = devices_[static_cast<size_t>(rank_->devices.first + move.device)];
  SlotState& on_device = slot_state(move.page, Place::on_device(move.device), move.device_slot);
  SlotState& in_host = slot_state(move.page, Place::host(), move.host_slot);
  SlotState& source = up ? in_host : on_device;
  SlotState& target = up ? on_device : in_host;
  std::vector<Work> after = {timeline_.last(rank_->issuing), source.ready};
  add_before_overwrite(target, after);
  const Cost& cost = up ? rank_->profile.upload : rank_->profile.download;
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
  const MachineProfile& profile = rank_->profile;
  const auto bytes = static_cast<double>(pages_.pages[move.page].bytes);
  std::vector<Work> after = {timeline_.last(rank_->issuing), rank_->disk_ready[move.page]};
  add_before_overwrite(slot, after);
  Work work = add(rank_->page_reads, Timeline::kNone, 0, 0, after);
  work = add(rank_->drive_read, rank_->drive_reads, 1, profile.read.seconds(bytes), {&work, 1},
             profile.read.memory);
  note(work, {profile.read.fixed_s, profile.read.unit_s, 0}, bytes, true);
  work = add(Timeline::kNone, Timeline::kNone, 0, profile.completion_s, {&work, 1});
  work = add(rank_->checks, profile.checksum, bytes, {work});
  note(work, profile.checksum, bytes, true);
  slot = {work, {}};
  return work;
}

Simulator::Work Simulator::write_back(const Move& move, const SlotState& slot) {
  const MachineProfile& profile = rank_->profile;
  const auto bytes = static_cast<double>(pages_.pages[move.page].bytes);
  Work work = add(rank_->page_writes, profile.checksum, bytes,
                  {timeline_.last(rank_->issuing), slot.ready, rank_->disk_ready[move.page]});
  note(work, profile.checksum, bytes, true);
  work = add(rank_->drive_write, rank_->drive_writes, 1, profile.write.seconds(bytes), {&work, 1},
             profile.write.memory);
  note(work, {profile.write.fixed_s, profile.write.unit_s, 0}, bytes, true);
  return add(Timeline::kNone, Timeline::kNone, 0, profile.completion_s, {&work, 1});
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
  rank_->disk_ready[move.page] = done;
  return done;
}

int Simulator::stream_of(const Task& task) const {
  if (task.on_host && task.lane == Lane::kIn) return rank_->arriving;
  if (task.on_host) return task.lane == Lane::kOut ? rank_->sending : rank_->optimizer;
  return devices_[task.device].lanes[static_cast<size_t>(task.lane)];
}

// A task that takes no cores is a GPU's. What arrives is moved by the link.
Simulator::Work Simulator::compute(const Task& task, const Cost& cost,
                                   const std::vector<Work>& after) {
  const bool on_gpu = cost.cores == 0 && !task.on_host && !receives(task.kind);
  if (!on_gpu || shape_.devices == 1) return add(stream_of(task), cost, 0, after);
  const int processor = devices_[task.device].processor;
  return add(stream_of(task), processor, 1, cost.seconds(0), after, cost.memory);
}

// Moves what was sent to another device.
Simulator::Sent Simulator::travel(const Task& send, Work sent, SlotState& source) {
  const int to = shape_.rank_of(send.peer);
  const MachineProfile& profile = rank_->profile;
  if (to == rank_->number) {
    return {&source, network_.within(send.device, send.peer, profile.wire, send.bytes, sent)};
  }
  const SimulatedNetwork::Message message =
      network_.between(send.device, send.peer, send.bytes, sent, send.lane == Lane::kOutBack);
  note(message.moves, {0, profile.network.unit_s, 0}, static_cast<double>(send.bytes), true);
  rank_->sent_bytes += send.bytes;
  return {nullptr, message};
}

// Returns when what the task takes is there.
Simulator::Work Simulator::expect(const Task& receive) {
  const Sent& sent = sent_[transfer_ends(shape_, receive)].front();
  return network_.expect(sent.message, timeline_.last(stream_of(receive)));
}

namespace {

// Whether the task, in the lane that computes, finds rows by the index.
bool reads_index(const Task& task) {
  return task.kind == TaskKind::kDispatch || task.kind == TaskKind::kDispatchBackward ||
         task.kind == TaskKind::kReadRows;
}

}  // namespace

// Issuing a task takes its thread some time; without prefetch it also waits before a page is
// uploaded.
void Simulator::issue(const Task& task) {
  std::vector<Work> after;
  if (!shape_.options.prefetch && !task.on_host) {
    for (const PageUse& use : task.used()) {
      const bool there = rank_->replay.residency().valid_at(use.page, use.place);
      if (use.access == Access::kCreate || there) continue;
      after = {timeline_.last(stream_of(task))};
    }
  }
  add(rank_->issuing, rank_->profile.issue, 0, after);
}

void Simulator::run(const Task& task) {
  task_ = &task;
  issue(task);
  const Replay::Placed placed = rank_->replay.place(task);
  for (const Move& move : placed.moves) carry_out(move);
  if (task.kind == TaskKind::kPrefetch) return;
  Joined& joined = rank_->joined;
  std::vector<Work>& after = joined.after;
  after.push_back(timeline_.last(rank_->issuing));
  for (size_t i = 0; i < task.num_uses; ++i) {
    const PageUse& use = task.uses[i];
    joined.uses.emplace_back(use, placed.slots[i]);
    const SlotState& slot = slot_state(use.page, use.place, placed.slots[i]);
    if (use.access == Access::kRead) {
      after.push_back(slot.ready);
    } else {
      add_before_overwrite(slot, after);
    }
  }
  if (receives(task.kind)) {
    after.push_back(expect(task));
  } else if (task.kind == TaskKind::kIndex) {
    for (int64_t b = task.microbatch; b < task.microbatch + task.microbatches; ++b) {
      if (shape_.attending(task.layer, b) == task.device)
        after.push_back(routed_[static_cast<size_t>(b)]);
    }
  } else if (!task.on_host && (task.lane != Lane::kCompute || reads_index(task))) {
    after.push_back(indexed_[task.device]);
  }
  Cost cost = rank_->profile.of(task);
  joined.seconds += rank_->profile.joined_s(task, shape_) + rank_->profile.adding_s(task, shape_);
  if (task.joins_next) return;
  const Joined all = std::exchange(joined, {});
  cost.fixed_s = all.seconds;
  const Work done = compute(task, cost, all.after);
  note(done, cost, 0, false);
  if (rank_->number == 0) {
    held_.emplace_back(done, SimulatedMemory{0, rank_->replay.held_bytes(Place::on_device(0)),
                                             rank_->replay.held_bytes(Place::host())});
  }
  for (const auto& [use, at] : all.uses) {
    SlotState& slot = slot_state(use.page, use.place, at);
    if (use.access == Access::kRead) {
      slot.readers.push_back(done);
    } else {
      slot = {done, {}};
    }
  }
  if (sends(task.kind)) {
    const auto& [use, at] = all.uses.front();
    SlotState& source = slot_state(use.page, use.place, at);
    const Sent sent = travel(task, done, source);
    // Another rank's memory is reached by the message, which is all that its end waits for.
    if (sent.source == nullptr) source.readers.push_back(sent.message.ready);
    sent_[transfer_ends(shape_, task)].push_back(sent);
  } else if (receives(task.kind)) {
    std::deque<Sent>& way = sent_[transfer_ends(shape_, task)];
    if (way.front().source != nullptr) way.front().source->readers.push_back(done);
    way.pop_front();
  } else if (task.kind == TaskKind::kIndex) {
    indexed_[task.device] = done;
  } else if (task.kind == TaskKind::kRoute || task.kind == TaskKind::kRouteReplay) {
    routed_[static_cast<size_t>(task.microbatch)] = done;
  }
}

// Whether the task takes what another rank has not sent yet.
bool Simulator::must_wait(const Task& task) const {
  if (!receives(task.kind)) return false;
  const auto way = sent_.find(transfer_ends(shape_, task));
  return way == sent_.end() || way->second.empty();
}

// Each rank issues its tasks in their order. What one takes from another was sent before, in the
// order of all, so that some rank can always go on.
void Simulator::run_all(std::span<const StepPiece* const> pieces) {
  std::vector<size_t> next(pieces.size(), 0);
  for (bool left = true, went_on = true; left;) {
    CHECK(went_on, "ranks wait for one another");
    left = went_on = false;
    for (size_t r = 0; r < pieces.size(); ++r) {
      rank_ = &ranks_[r];
      const TaskList& tasks = pieces[r]->tasks;
      for (; next[r] < tasks.size() && !must_wait(tasks[next[r]]); ++next[r]) {
        run(tasks[next[r]]);
        went_on = true;
      }
      left = left || next[r] < tasks.size();
    }
  }
}

void Simulator::run(std::span<const StepPiece* const> pieces) {
  CHECK(pieces.size() == ranks_.size());
  for (size_t r = 0; r < pieces.size(); ++r) foresee(*pieces[r], ranks_[r].replay);
  run_all(pieces);
  for (size_t r = 0; r < pieces.size(); ++r) {
    rank_ = &ranks_[r];
    learn(*pieces[r]);
  }
}

// When the rank knows what the microbatch's routing chose.
Simulator::Work Simulator::routed_at(int64_t layer, int64_t microbatch) {
  const Work routed = routed_[static_cast<size_t>(microbatch)];
  const int from = shape_.rank_of(shape_.attending(layer, microbatch));
  if (from == rank_->number) return routed;
  const double bytes = kRoutedBytes * static_cast<double>(shape_.num_experts * shape_.ep_degree /
                                                          shape_.expert_parts);
  const double seconds = ranks_[static_cast<size_t>(from)].profile.network.seconds(bytes);
  return add(Timeline::kNone, Timeline::kNone, 0, seconds, {&routed, 1});
}

// The rank's thread that issues waits for what the piece makes known.
void Simulator::learn(const StepPiece& piece) {
  using Wait = StepPiece::Wait;
  if (piece.wait != Wait::kResolve && piece.wait != Wait::kForwardDone) return;
  const Microbatches of = piece.microbatches;
  std::vector<Work> learnt;
  if (piece.wait == Wait::kResolve) {
    for (int64_t b = of.first; b < of.end(); ++b) learnt.push_back(routed_at(piece.layer, b));
  } else if (of.count < shape_.microbatches) {
    return;  // nobody waits for a part of the forward
  } else {
    for (const int d : shape_.attending_devices()) {
      if (shape_.rank_of(d) != rank_->number) continue;
      learnt.push_back(timeline_.last(devices_[static_cast<size_t>(d)].lanes[0]));
    }
  }
  add(rank_->issuing, Timeline::kNone, 0, rank_->profile.wake_up_s, learnt);
}

// A step ends when all lanes have, as in a run. Ranks tell each other what it gave.
void Simulator::end_step() {
  std::vector<Work> after, told;
  double network_s = 0;
  for (const Rank& rank : ranks_) {
    after.push_back(timeline_.last(rank.optimizer));
    network_s = std::max(network_s, rank.profile.network.fixed_s);
  }
  for (const Device& device : devices_) {
    for (const int lane : device.lanes) after.push_back(timeline_.last(lane));
  }
  if (ranks_.size() > 1) {
    for (const Rank& rank : ranks_) after.push_back(timeline_.last(rank.issuing));
    after = {timeline_.add(Timeline::kNone, Timeline::kNone, 0, network_s, after)};
  }
  for (Rank& rank : ranks_) {
    rank_ = &rank;
    told.push_back(add(rank.issuing, Timeline::kNone, 0, rank.profile.wake_up_s, after));
  }
  const bool alone = told.size() == 1;
  step_ends_.push_back(alone ? told.front()
                             : timeline_.add(Timeline::kNone, Timeline::kNone, 0, 0, told));
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
  for (const Rank& rank : ranks_) {
    const Replay& replay = rank.replay;
    result.ranks.push_back({replay.traffic(), rank.sent_bytes, replay.peak_bytes(Place::host())});
    for (int d = 0; d < rank.devices.count; ++d) {
      result.peak_device_bytes.push_back(replay.peak_bytes(Place::on_device(d)));
    }
  }
  return result;
}

}  // namespace pagoda
