// Rows on their way from attention to experts and back: how the executor finds them from routing.
#include <algorithm>

#include "plan/step/expert_seats.h"
#include "plan/step/rank_part.h"
#include "train/executor.h"
#include "train/trace_names.h"

namespace pagoda {

void Executor::make_lanes() {
  for (size_t d = 0; d < setup_.devices.size(); ++d) {
    Lanes& lanes = lanes_.emplace_back();
    const auto add = [&](Lane lane, const std::string& name) {
      lanes[static_cast<size_t>(lane)] = setup_.devices[d]->make_stream(name, WorkKind::kLink);
    };
    add(Lane::kOut, strf("out %zu", d));
    lanes[static_cast<size_t>(Lane::kOut)]->use_scratch(
        {steps_[d].index_scratch, static_cast<size_t>(steps_[d].index_scratch_bytes)});
    add(Lane::kIn, strf("in %zu", d));
    for (int n = 1; n < setup_.shape->in_lanes(setup_.shape->rank); ++n) {
      add(in_lane(n), strf("in %zu lane %d", d, n));
    }
    if (setup_.shape->ways_apart()) {
      add(Lane::kOutBack, strf("out back %zu", d));
      add(Lane::kInBack, strf("in back %zu", d));
    }
    if (setup_.shape->exchange == ExchangeOrder::kRounds && setup_.shape->ranks() > 1) {
      for (const Lane lane : {Lane::kIn, Lane::kInBack}) {
        if (!lanes[static_cast<size_t>(lane)]) continue;
        const char* back = lane == Lane::kInBack ? " back" : "";
        SecondStream& second = second_[{d, lane}];
        second.stream =
            setup_.devices[d]->make_stream(strf("second in%s %zu", back, d), WorkKind::kLink);
        second.newest = lanes[static_cast<size_t>(lane)].get();
      }
    }
    if (setup_.shape->has_far_guests()) add(Lane::kWeights, strf("in weights %zu", d));
    if (setup_.shape->expert_sums_travel()) {
      add(Lane::kSums, strf("in sums %zu", d));
      lanes[static_cast<size_t>(Lane::kSums)]->use_scratch(
          {experts_[d].sums_scratch, static_cast<size_t>(experts_[d].sums_scratch_bytes)});
    }
    if (!setup_.shape->stages.several()) continue;
    add(Lane::kFromBelow, strf("from below %zu", d));
    add(Lane::kFromAbove, strf("from above %zu", d));
  }
}

Stream& Executor::stream_of(const Task& task) {
  if (task.on_host && task.lane == Lane::kIn) return *arriving_;
  if (task.on_host) return task.lane == Lane::kOut ? *leaving_ : *optimizer_;
  if (task.lane == Lane::kCompute) return *compute_[own(task)];
  const std::unique_ptr<Stream>& lane = lanes_[own(task)][static_cast<size_t>(task.lane)];
  CHECK(lane, "device %d has no lane %d", task.device, static_cast<int>(task.lane));
  const auto found = second_.find({own(task), task.lane});
  if (found == second_.end()) return *lane;
  SecondStream& second = found->second;
  if (receives(task.kind)) {
    second.newest = lane.get();
    if (turns_of(task) > 0 && !setup_.link->by_rounds()) {
      second.is_next = !second.is_next;
      if (!second.is_next) second.newest = second.stream.get();
    }
  }
  const bool follows = receives(task.kind) || task.kind == TaskKind::kPlaceRows;
  return follows ? *second.newest : *lane;
}

bool Executor::leaves_rank(const Task& task) const {
  return setup_.shape->rank_of(task.device) != setup_.shape->rank_of(task.peer);
}

// Transfer::turns. What goes to experts and what comes back have turns of their own where they have
// lanes of their own, and so have stages: else one would wait for the other.
int Executor::turns_of(const Task& task) const {
  if (!task.in_turn || !leaves_rank(task)) return 0;
  const bool back = task.lane == Lane::kOutBack || task.lane == Lane::kInBack;
  return 1 + 2 * setup_.shape->stages.of_device(task.device) + (back ? 1 : 0);
}

void Executor::set_routing(int64_t layer, int64_t first_microbatch, const LayerRouting& routing) {
  const Microbatches routed{first_microbatch, std::ssize(routing)};
  RoutedRows& rows = routed_[layer][first_microbatch];
  rows = {routing, layer_waves(*setup_.shape, layer, routed, routing)};
  LayerRouting& first = rows.first_row;
  const int64_t choices = setup_.size.microbatch_tokens * setup_.shape->experts_per_token;
  int64_t row = first_microbatch * choices;
  for (size_t e = 0; e < routing.front().size(); ++e) {
    for (size_t b = 0; b < routing.size(); ++b) {
      first[b][e] = row;
      row += routing[b][e];
    }
  }
  CHECK(row <= tokens_ * setup_.shape->experts_per_token, "routing of %lld rows", (long long)row);
}

Transfer Executor::next_transfer(const Task& task, Channels& channels) const {
  const RunShape& shape = *setup_.shape;
  const auto [from, to] = transfer_ends(shape, task);
  // Only transfers between ranks can fail.
  return {channels[{from, to}]++,
          from,
          to,
          task.bytes,
          task.rows,
          leaves_rank(task) ? task_label(task).name : "",
          turns_of(task)};
}

// A microbatch's routing on its way from the device that attends to a rank.
Transfer Executor::routing_transfer(int64_t layer, int64_t microbatch, int rank,
                                    Channels& channels) const {
  const int from = attending(layer, microbatch), to = host_end(*setup_.shape, rank);
  return {channels[{from, to}]++,
          from,
          to,
          routed_doubles() * static_cast<int64_t>(sizeof(double)),
          0,
          strf("routing L%lld b%lld", (long long)layer, (long long)microbatch)};
}

void Executor::send_routing(int64_t layer, int64_t microbatch, Stream& s) {
  const auto* copy =
      reinterpret_cast<const std::byte*>(routed_copies_.data() + microbatch * routed_doubles());
  std::vector<Event> sent;
  for (int rank = 0; rank < setup_.shape->ranks(); ++rank) {
    if (rank == setup_.shape->rank) continue;
    sent.push_back(setup_.link->send(routing_transfer(layer, microbatch, rank, sent_), copy, s));
  }
  if (!sent.empty()) routing_sent_[microbatch] = when_all(sent);
}

// What does not come is zeros, which nobody must take for routing.
Status Executor::receive_routing(int64_t layer, int64_t microbatch) {
  double* copy = routed_copies_.data() + microbatch * routed_doubles();
  const Transfer transfer = routing_transfer(layer, microbatch, setup_.shape->rank, received_);
  routing_->wait(routing_sent_[microbatch]);  // of a layer of another stage
  setup_.link->receive(transfer, reinterpret_cast<std::byte*>(copy), *routing_);
  routing_->synchronize();
  RETURN_IF_ERROR(setup_.link->status());
  const auto* counts = reinterpret_cast<const int32_t*>(copy + 1 + setup_.config.num_experts);
  const int64_t most = setup_.size.microbatch_tokens;
  for (int64_t e = 0; e < setup_.config.num_experts; ++e) {
    if (counts[e] >= 0 && counts[e] <= most) continue;
    return Status(Exit::kIoError,
                  strf("rank %d sent a routing of %d rows for %lld tokens; the last checkpoint is "
                       "intact: see that all ranks run the same program, and resume",
                       setup_.shape->rank_of(transfer.from), counts[e], (long long)most));
  }
  return Status();
}

void Executor::transfer(const Task& task, Lease& lease, Stream& s) {
  const int64_t first = task.first_element * static_cast<int64_t>(sizeof(float)) + task.first_byte;
  std::byte* bytes = lease.data(0) + first;
  if (sends(task.kind)) {
    return lease.release(setup_.link->send(next_transfer(task, sent_), bytes, s));
  }
  const TraceLabel label = s.traced() ? task_label(task) : TraceLabel();
  setup_.link->receive(next_transfer(task, received_), bytes, s, label);
}

void Executor::enqueue_route(const Task& task, const Lease& lease, int32_t* choices,
                             const LayerBuffers& in, Stream& s) {
  const int64_t l = task.layer, b = task.microbatch;
  const int64_t count = setup_.size.microbatch_tokens * setup_.config.experts_per_token;
  if (imposed_) s.copy(choices, (*imposed_)[l].data() + b * count, count * 4);
  const Workspace& step = steps_[own(task)];
  const Blocks& blocks = blocks_[own(task)];
  blocks.route(l, b, lease.data(0), lease.data(1), choices, imposed_ != nullptr, in, step, s);
  const int64_t e = setup_.config.num_experts;
  double* copy = routed_copies_.data() + b * routed_doubles();
  if (step.log_squares != nullptr) s.copy(copy, step.log_squares + b, sizeof(double));
  s.copy(copy + 1, step.prob_sums + b * e, e * int64_t{sizeof(double)});
  s.copy(copy + 1 + e, step.counts + b * e, e * int64_t{sizeof(int32_t)});
  routed_at_[b] = s.record();
  send_routing(l, b, s);
  blocks.begin_sum(l, b, lease.data(0), in, step, s);
}

void Executor::enqueue_replay(const Task& task, const Lease& lease, int32_t* choices,
                              const LayerBuffers& in, Stream& s) {
  const int64_t l = task.layer, b = task.microbatch;
  const Workspace& step = steps_[own(task)];
  blocks_[own(task)].route(l, b, lease.data(0), lease.data(1), choices, true, in, step, s);
  routed_at_[b] = s.record();
  blocks_[own(task)].begin_sum_backward(l, b, lease.data(0), in, gradient_sum(task, lease), step,
                                          s);
}

// Before the task's span, which is its work alone.
void Executor::wait_for_lanes(const Task& task, Stream& s) {
  const bool dispatches =
      task.kind == TaskKind::kDispatch || task.kind == TaskKind::kDispatchBackward;
  if (task.kind == TaskKind::kRoute) s.wait(routing_sent_[task.microbatch]);
  if (lanes_.empty()) return;
  // A microbatch of padding alone has no rows on their way, which would make it wait.
  if (task.kind == TaskKind::kRoute || task.kind == TaskKind::kRouteReplay) {
    s.wait(chosen_read_[own(task) * setup_.size.microbatches + task.microbatch]);
  }
  if ((dispatches && task.device == task.peer) || reads_in_place()) {
    s.wait(indexed_at_[own(task)]);
  }
  if (task.kind != TaskKind::kIndex) return;
  for (int64_t b = task.microbatch; b < task.microbatch + task.microbatches; ++b) {
    if (attending(task.layer, b) == task.device) s.wait(routed_at_[b]);
  }
}

// Whoever read what it overwrites, dispatch and combine of a layer before, is done: the
// microbatches have gone through attention since. With several devices it runs beside the
// computation, and what goes in by another lane waits for it.
void Executor::enqueue_index(const Task& task, Stream& s) {
  const Workspace& step = steps_[own(task)];
  const int64_t k = setup_.config.experts_per_token;
  const int64_t t = blocks_[own(task)].microbatch_tokens();
  const LayerRouting& first = routed_[task.layer].at(task.microbatch).first_row;
  for (size_t i = 0; i < first.size(); ++i) {
    const int64_t b = task.microbatch + static_cast<int64_t>(i);
    if (attending(task.layer, b) != task.device) continue;
    // Rows of an expert's parts are the same, and have places of their own.
    const auto e = static_cast<size_t>(setup_.config.num_experts);
    const size_t parts = first[i].size() / e;
    std::vector<int64_t> first_of_part(e);
    for (size_t p = 0; p < parts; ++p) {
      for (size_t x = 0; x < e; ++x) first_of_part[x] = first[i][x * parts + p];
      setup_.ops[own(task)]->index_rows(step.experts + b * t * k, t, k, setup_.config.num_experts,
                                        first_of_part.data(), step.rows, step.choices, s);
    }
    if (!lanes_.empty()) chosen_read_[own(task) * setup_.size.microbatches + b] = s.record();
  }
  if (lanes_.empty()) return;
  indexed_at_[own(task)] = s.record();
  for (const Lane lane : {Lane::kIn, Lane::kInBack}) {
    const auto& arriving = lanes_[own(task)][static_cast<size_t>(lane)];
    if (arriving) arriving->wait(indexed_at_[own(task)]);
    const auto second = second_.find({own(task), lane});
    if (second != second_.end()) second->second.stream->wait(indexed_at_[own(task)]);
  }
}

const ExpertWave& Executor::wave_of(const Task& task) const {
  const RoutedRows& routed = routed_[task.layer].at(task.first_microbatch);
  CHECK(static_cast<size_t>(task.wave) < routed.waves.size(), "layer %d has fewer waves",
        task.layer);
  return routed.waves[static_cast<size_t>(task.wave)];
}

namespace {

const ExpertGroup::Parcel& parcel_of(const ExpertGroup& group, int device) {
  const ExpertGroup::Parcel* parcel = group.parcel(device);
  CHECK(parcel != nullptr, "device %d has no rows in the group", device);
  return *parcel;
}

}  // namespace

void Executor::enqueue_dispatch(const Task& task, const Lease& lease, const LayerBuffers& in,
                                Stream& s) {
  const ExpertGroup& group = wave_of(task)[task.peer];
  const bool stays = task.device == task.peer;
  std::vector<RowRun> runs;
  if (task.rows > 0) {
    const ExpertGroup::Part* part = group.part(task.microbatch - task.first_microbatch);
    CHECK(part != nullptr && part->rows == task.rows, "layer %d has other rows", task.layer);
    for (const ExpertGroup::Run& run : part->runs) {
      runs.push_back({run.first_row, stays ? run.group_row : run.parcel_row, run.rows});
    }
  }
  const int64_t all = stays ? group.rows() + group.padding() : parcel_of(group, task.device).rows;
  blocks_[own(task)].dispatch(runs, all, {group.rows(), task.padding}, task.microbatch, in,
                              lease.data(0) + task.first_byte, arrays_of(task, task.peer),
                              steps_[own(task)], s);
}

// What travels of each row of the task's wave to the device that computes it.
Blocks::RowArrays Executor::arrays_of(const Task& task, int seat) const {
  if (task.phase == Phase::kForward) return Blocks::RowArrays::kInputs;
  const int64_t chunk = setup_.shape->round_of(task.first_microbatch);
  const bool stayed = setup_.pages->keeps_rows(seat, {task.layer, chunk, task.wave});
  return stayed ? Blocks::RowArrays::kGradients : Blocks::RowArrays::kAll;
}

void Executor::count_rows(const Task& task) {
  constexpr int64_t kWeightBytes = sizeof(float);
  if (task.kind == TaskKind::kExpert) {
    expert_rows_[task.layer * setup_.devices.size() + own(task)] += task.rows;
  }
  const bool in_place = task.kind == TaskKind::kReadRows;
  const bool copied = task.kind == TaskKind::kDispatch || task.kind == TaskKind::kDispatchBackward;
  const bool combined = task.kind == TaskKind::kCombine || task.kind == TaskKind::kCombineBackward;
  const int64_t row = setup_.config.hidden_size * dtype_bytes(setup_.size.dtype);
  if (combined) row_bytes_.combined += task.rows * row;
  if (in_place && setup_.shape->adds_in_place()) row_bytes_.added += task.rows * row;
  if (!in_place && !copied) return;
  int64_t of_row = in_place && task.phase == Phase::kBackward ? 2 * row + kWeightBytes : row;
  if (copied) {
    const Blocks::RowArrays arrays = arrays_of(task, task.peer);
    if (arrays == Blocks::RowArrays::kAll) of_row += row;
    if (arrays != Blocks::RowArrays::kInputs) of_row += kWeightBytes;
  }
  const int64_t bytes = task.rows * of_row;
  (in_place ? row_bytes_.in_place : row_bytes_.copied) += bytes;
}

bool Executor::reads_in_place() const {
  return !joined_.empty() && joined_.front().task.kind == TaskKind::kReadRows;
}

Executor::RowPages Executor::row_pages_of(const Task& task, const Lease& lease) const {
  const PageTable& pages = *setup_.pages;
  RowPages found;
  Blocks::Inbound& inbound = found.inbound;
  for (size_t i = 0; i < task.num_uses; ++i) {
    const PageKind kind = pages.classes[pages.pages[task.uses[i].page].slot_class].kind;
    if (kind == PageKind::kInbound) inbound.rows = lease.data(i);
    if (kind == PageKind::kKeptRows) inbound.kept = lease.data(i);
    if (kind == PageKind::kOutbound) found.outbound = lease.data(i);
  }
  // In the forward they come where they stay.
  if (task.phase == Phase::kForward && inbound.kept != nullptr) inbound = {inbound.kept};
  return found;
}

namespace {

// Where the rows that a task holds lie in the group of the experts that it joins.
std::vector<RowRun> held_runs(const Task& held, const ExpertGroup& group) {
  const ExpertGroup::Part* part = group.part(held.microbatch - held.first_microbatch);
  CHECK(part != nullptr && part->rows == held.rows, "layer %d has other rows", held.layer);
  std::vector<RowRun> runs;
  for (const auto& run : part->runs) runs.push_back({run.first_row, run.group_row, run.rows});
  return runs;
}

}  // namespace

// Finds the rows of the group of an expert's task: those that are held in place, and those of other
// devices in inbound.
void Executor::locate_rows(const Task& task, const Blocks::Inbound& inbound, Stream& s) {
  const ExpertGroup& group = wave_of(task)[task.device];
  const Blocks& blocks = blocks_[own(task)];
  const ExpertSpace& space = experts_[own(task)];
  const bool backward = task.phase == Phase::kBackward;
  for (const Joined& held : joined_) {
    if (held.task.kind != TaskKind::kReadRows) continue;
    blocks.locate(held_runs(held.task, group), held.task.microbatch,
                  layer_buffers(held.task, held.lease), backward, steps_[own(task)], space, s);
  }
  if (inbound.rows == nullptr) return;
  std::vector<RowRun> runs;
  for (const ExpertGroup::Parcel& parcel : group.parcels) {
    if (parcel.device == task.device) continue;
    for (const auto& run : parcel.runs) runs.push_back({run.group_row, run.group_row, run.rows});
  }
  blocks.locate_inbound(runs, group.rows(), inbound, backward, space, s);
}

// Takes the gradients of routing weights from experts that have added the others to sums.
void Executor::take_weight_gradients(const Task& task, Stream& s) {
  const ExpertGroup& group = wave_of(task)[task.device];
  for (const Joined& held : joined_) {
    if (held.task.kind != TaskKind::kReadRows) continue;
    blocks_[own(task)].take_weight_gradients(held_runs(held.task, group), held.task.microbatch,
                                             steps_[own(task)], experts_[own(task)], s);
  }
}

void Executor::enqueue_place(const Task& task, const Lease& lease, Stream& s) {
  const ExpertGroup& group = wave_of(task)[task.device];
  const ExpertGroup::Parcel& parcel = parcel_of(group, task.peer);
  std::vector<RowRun> runs;
  for (const auto& run : parcel.runs) runs.push_back({run.parcel_row, run.group_row, run.rows});
  blocks_[own(task)].place_rows(runs, parcel.rows, group.rows() + group.padding(),
                                {group.rows(), task.padding}, lease.data(1), lease.data(0),
                                arrays_of(task, task.device), s);
}

void Executor::enqueue_pack(const Task& task, const Lease& lease, Stream& s) {
  const ExpertGroup& group = wave_of(task)[task.device];
  const ExpertGroup::Parcel& parcel = parcel_of(group, task.peer);
  std::vector<RowRun> runs;
  for (const auto& run : parcel.runs) runs.push_back({run.group_row, run.parcel_row, run.rows});
  blocks_[own(task)].pack_rows(runs, group.rows() + group.padding(), parcel.rows, lease.data(1),
                               lease.data(0) + task.first_byte, task.phase == Phase::kBackward, s);
}

// Adds what the seats gave in the order of the experts. The task's pages are in the order in which
// these begin.
void Executor::enqueue_combine(const Task& task, const Lease& lease, const LayerBuffers& in,
                               Stream& s) {
  struct Given {
    RowRun run;
    int64_t expert;
    size_t seat;
  };
  const ExpertWave& wave = wave_of(task);
  std::vector<Given> given;
  for (size_t seat = 0; seat < wave.size(); ++seat) {
    const ExpertGroup::Part* part = wave[seat].part(task.microbatch - task.first_microbatch);
    if (part == nullptr) continue;
    for (const ExpertGroup::Run& run : part->runs) {
      if (run.expert < task.expert || run.expert > task.last_expert) continue;
      const int64_t at = seat == task.device ? run.group_row : run.parcel_row;
      given.push_back({{run.first_row, at, run.rows}, run.expert, seat});
    }
  }
  std::sort(given.begin(), given.end(),
            [](const Given& a, const Given& b) { return a.expert < b.expert; });
  std::vector<size_t> seats;  // of the task's pages
  for (size_t i = 0; i < given.size();) {
    const size_t seat = given[i].seat;
    std::vector<RowRun> runs;
    for (; i < given.size() && given[i].seat == seat; ++i) runs.push_back(given[i].run);
    auto page = std::find(seats.begin(), seats.end(), seat);
    if (page == seats.end()) page = seats.insert(page, seat);
    const ExpertGroup& group = wave[seat];
    const int64_t all =
        seat == task.device ? group.rows() + group.padding() : parcel_of(group, task.device).rows;
    blocks_[own(task)].combine(
        runs, all, task.microbatch, lease.data(static_cast<size_t>(page - seats.begin())),
        task.kind == TaskKind::kCombineBackward, in.sum, steps_[own(task)], s);
  }
}

}  // namespace pagoda
