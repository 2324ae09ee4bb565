#include "plan/zebra/run_zebra.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <initializer_list>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "plan/step/pages.h"
#include "plan/step/zebra_actions.h"

namespace pagoda {
namespace {

constexpr double kNever = 1e9;  // seconds; what does not fit comes last

// Seconds of a chunk's work in one layer, by the costs of each device.
class RunTimes {
 public:
  RunTimes(const RunShape& shape, const MachineProfile& profile,
           const std::vector<WeightRoom>& rooms)
      : shape_(shape), profile_(profile), rooms_(rooms), width_(shape.round_microbatches()) {
    all_stays_ = all_stays({});
  }

  ChunkTimes of(int64_t layer);
  double boundary_s();
  // Whether weights and states, and bytes of each device besides, all stay there.
  bool all_stays(const std::vector<double>& besides) const;

 private:
  void begin_layer(int64_t layer) {
    attended_.assign(static_cast<size_t>(shape_.devices), 0);
    for (int64_t b = 0; b < width_; ++b) {
      ++attended_[static_cast<size_t>(shape_.attending(layer, b))];
    }
  }
  const Cost& cost_of(TaskKind kind, int device) const {
    Task task;
    task.kind = kind;
    task.device = static_cast<uint8_t>(device);
    return profile_.of(task);
  }
  double seconds(TaskKind kind, int device, double units) const {
    return cost_of(kind, device).seconds(units);
  }
  double of_microbatches(std::initializer_list<TaskKind> kinds, int device) const;
  double of_experts(TaskKind kind, int device, int64_t experts) const;
  double bytes_of(int device, bool experts, bool states) const;  // of its experts, or dense parts
  PassSeconds paging_s(int device, int64_t experts, int64_t layer) const;
  double transfer(const std::vector<int64_t>& experts, bool back, double row_bytes) const;
  double rows() const {  // of an expert, of each microbatch
    return static_cast<double>(shape_.microbatch_tokens * shape_.experts_per_token) /
           static_cast<double>(shape_.num_experts);
  }

  const RunShape& shape_;
  const MachineProfile& profile_;
  const std::vector<WeightRoom>& rooms_;
  int64_t width_;
  std::vector<int64_t> attended_;  // [device] microbatches of a chunk in the layer at hand
  bool all_stays_ = true;          // else no state does
};

double RunTimes::of_microbatches(std::initializer_list<TaskKind> kinds, int device) const {
  double of_one = 0;
  for (const TaskKind kind : kinds) {
    of_one += seconds(kind, device, static_cast<double>(shape_.microbatch_tokens));
  }
  return of_one * static_cast<double>(attended_[static_cast<size_t>(device)]);
}

// A chunk's experts are computed together.
double RunTimes::of_experts(TaskKind kind, int device, int64_t experts) const {
  if (experts == 0) return 0;
  double of_expert = 0;  // of what its copy attends to
  for (int d = 0; d < shape_.devices; ++d) {
    const bool same = shape_.copies.of_device(d) == shape_.copies.of_device(device);
    if (same) of_expert += rows() * static_cast<double>(attended_[static_cast<size_t>(d)]);
  }
  const double blocks = std::ceil(of_expert / static_cast<double>(shape_.row_block));
  const Cost& cost = cost_of(kind, device);
  return cost.start_s +
         static_cast<double>(experts) * (cost.fixed_s * blocks + cost.unit_s * of_expert);
}

double RunTimes::bytes_of(int device, bool experts, bool states) const {
  double bytes = 0;
  for (int64_t r = 0; r < std::ssize(shape_.records); ++r) {
    const RecordShape& record = shape_.records[static_cast<size_t>(r)];
    const bool here = experts ? record.expert >= 0 && shape_.has_seat(device, r)
                              : record.expert < 0 && shape_.computes_with(device, r);
    if (!here) continue;
    bytes += static_cast<double>(record.num_elements * shape_.dtype_bytes);
    if (states && record.device == device) bytes += static_cast<double>(record.state_bytes);
  }
  return bytes;
}

bool RunTimes::all_stays(const std::vector<double>& besides) const {
  for (int d = 0; d < shape_.devices && !rooms_.empty(); ++d) {
    const double more = besides.empty() ? 0 : besides[static_cast<size_t>(d)];
    const double all = bytes_of(d, false, true) + bytes_of(d, true, true) + more;
    if (rooms_[static_cast<size_t>(d)].device_bytes < all) return false;
  }
  return true;
}

// How long what a layer's experts need comes and goes for a chunk. Unless all stays on the devices,
// weights come once a step, after their update, and gradients go. Chunks of a layer follow each
// other closely, and two layers are on their way: where the weights of two have no room beside the
// sums of gradients, which all layers share, chunks read them again; where those of all have none,
// the backward does. Every layer is taken to have as many experts there.
PassSeconds RunTimes::paging_s(int device, int64_t experts, int64_t layer) const {
  if (all_stays_ || experts == 0) return {};
  const WeightRoom& room = rooms_[static_cast<size_t>(device)];
  if (room.device_bytes < 0) return {kNever, kNever};
  const RecordShape& expert = shape_.records[static_cast<size_t>(shape_.expert(layer, 0))];
  const int64_t sums = shape_.pages_expert_sums() ? PageTable::expert_sum_pages(shape_) : 0;
  const auto sum_bytes = static_cast<double>(experts * sums * expert.num_elements) * sizeof(float);
  const double held = std::max(0.0, room.device_bytes - bytes_of(device, false, false) - sum_bytes);
  const auto of_layer = static_cast<double>(experts * expert.num_elements * shape_.dtype_bytes);
  const double of_all = bytes_of(device, true, false);
  const auto beyond = [](double wanted, double has) { return std::max(0.0, 1 - has / wanted); };
  const double of_chunk = 1 / static_cast<double>(shape_.rounds());
  const double again = beyond(2 * of_layer, held);
  const double away = beyond(of_all, held);
  const double forward = of_layer * std::max(of_chunk, again);
  const double backward = of_layer * std::max(away * of_chunk, again);
  // What is not in host memory either; the devices of a rank share its drives.
  const double of_drive = away > 0 ? beyond(of_all, held + room.host_bytes) / away : 0;
  const auto sharing = static_cast<double>(shape_.devices_of(shape_.rank_of(device)).count);
  const double upload_s =
      std::max(profile_.upload.unit_s, of_drive * sharing * profile_.read.unit_s);
  return {forward * upload_s,
          std::max(backward * upload_s, of_layer * of_chunk * profile_.download.unit_s)};
}

// What the busiest device puts together, the longest way of any pair's rows, and what arrives at
// the busiest and is put in its place. `back`: from the experts to where the tokens are.
double RunTimes::transfer(const std::vector<int64_t>& experts, bool back, double row_bytes) const {
  std::vector<double> sent_s(experts.size(), 0), placed_s(experts.size(), 0);
  double way_s = 0;
  for (int home = 0; home < shape_.devices; ++home) {
    for (int seat = 0; seat < shape_.devices; ++seat) {
      const double of_one = rows() * static_cast<double>(attended_[static_cast<size_t>(home)]);
      const double moved = of_one * static_cast<double>(experts[static_cast<size_t>(seat)]);
      const bool same = shape_.copies.of_device(home) == shape_.copies.of_device(seat);
      if (home == seat || !same || moved == 0) continue;
      const int from = back ? seat : home, to = back ? home : seat;
      const double bytes = moved * row_bytes;
      sent_s[static_cast<size_t>(from)] +=
          seconds(back ? TaskKind::kPackRows : TaskKind::kDispatch, from, moved);
      way_s = std::max(way_s, profile_.wire.seconds(bytes));
      placed_s[static_cast<size_t>(to)] +=
          seconds(TaskKind::kReceive, to, bytes) +
          seconds(back ? TaskKind::kCombine : TaskKind::kPlaceRows, to, moved);
    }
  }
  return *std::ranges::max_element(sent_s) + way_s + *std::ranges::max_element(placed_s);
}

// How long a chunk's rows are on their way from stage to stage: those of the busiest device.
double RunTimes::boundary_s() {
  begin_layer(0);
  const int64_t tokens = *std::ranges::max_element(attended_) * shape_.microbatch_tokens;
  return profile_.wire.seconds(
      static_cast<double>(tokens * shape_.hidden_size * shape_.dtype_bytes));
}

ChunkTimes RunTimes::of(int64_t layer) {
  begin_layer(layer);
  const bool moe = shape_.is_moe[static_cast<size_t>(layer)] != 0;
  std::vector<int64_t> experts(static_cast<size_t>(shape_.devices), 0);
  for (int64_t e = 0; e < shape_.num_experts && moe; ++e) {
    for (int copy = 0; copy < shape_.copies.count; ++copy) {
      ++experts[static_cast<size_t>(shape_.seat_of(shape_.expert(layer, e), copy))];
    }
  }
  ChunkTimes times;
  times.faster.attention = PassSeconds();
  times.slower.experts = PassSeconds();
  int attending = 0;
  for (int d = 0; d < shape_.devices; ++d) {
    if (shape_.stages.of_device(d) != shape_.stage_of(layer)) continue;
    const int64_t own = experts[static_cast<size_t>(d)];
    const PassSeconds paging_s = this->paging_s(d, own, layer);
    const PassSeconds of_experts = {
        std::max(paging_s.forward_s, this->of_experts(TaskKind::kExpert, d, own)),
        std::max(paging_s.backward_s, this->of_experts(TaskKind::kExpertBackward, d, own))};
    const auto raise = [](PassSeconds& most, const PassSeconds& by) {
      most = {std::max(most.forward_s, by.forward_s), std::max(most.backward_s, by.backward_s)};
    };
    if (!shape_.attends(d)) {
      raise(*times.slower.experts, of_experts);
      continue;
    }
    using enum TaskKind;
    ++attending;
    const double forward_s = moe ? of_microbatches({kAttention, kRoute, kResidual}, d)
                                 : of_microbatches({kAttention, kDenseMlp}, d);
    const double backward_s =
        of_microbatches({kAttentionBackward, moe ? kRouteBackward : kDenseMlpBackward}, d);
    raise(*times.faster.attention, {forward_s, backward_s});
    times.faster.head_s = std::max(times.faster.head_s, of_microbatches({kHead}, d));
    times.faster.replay_s = std::max(times.faster.replay_s, of_microbatches({kRouteReplay}, d));
    if (own == 0) continue;
    if (!times.faster.experts) times.faster.experts = PassSeconds();
    raise(*times.faster.experts, of_experts);
  }
  times.faster_exchange = attending > 1;
  const auto row = static_cast<double>(shape_.hidden_size * shape_.dtype_bytes);
  const double scale = sizeof(float);
  const double again = shape_.kept_rows > 0 ? 0 : row;
  times.to_experts = {transfer(experts, false, row), transfer(experts, false, again + row + scale)};
  times.to_attention = {transfer(experts, true, row), transfer(experts, true, row + scale)};
  return times;
}

int64_t layers_with_experts(const std::vector<uint8_t>& is_moe) {
  return std::ranges::count_if(is_moe, [](uint8_t moe) { return moe != 0; });
}

// Candidates with one number of devices that attend.
class ZebraRunSearch {
 public:
  ZebraRunSearch(const OpenZebra& open, const ZebraShape& shape, const MachineProfile& profile,
                 int64_t attending)
      : open_(open), make_(shape), profile_(profile), shape_(shape(attending, 0)) {
    best_.attention_devices = attending;
    if (shape_.stages.several()) boundary_s_ = RunTimes(shape_, profile, {}).boundary_s();
  }

  ZebraRun run() {
    const int64_t layers = layers_with_experts(shape_.is_moe);
    const auto last = static_cast<int32_t>(shape_.rounds() - 1);
    const Lags lags = open_.lags.value_or(Lags{last, last, last});
    if (layers == 0 || open_.offloaded) {
      consider(open_.offloaded.value_or(spread_experts(0, shape_.is_moe)), lags);
    } else {
      try_spread(0, shape_.num_experts * layers, lags);
    }
    for (int round = 0; round < 2 && !open_.lags; ++round) {
      const std::vector<int64_t> offloaded = best_.offloaded;
      for (const Lags& other : lag_choices(shape_.rounds(), shape_.is_moe.back() != 0)) {
        consider(offloaded, other);
      }
      if (layers == 0 || open_.offloaded) break;
      const int64_t in_all =
          std::accumulate(best_.offloaded.begin(), best_.offloaded.end(), int64_t{0});
      const int64_t reach = std::max<int64_t>(layers, shape_.num_experts * layers / kPoints);
      try_spread(in_all - reach, in_all + reach, best_.lags);
    }
    return std::move(best_);
  }

 private:
  static constexpr int64_t kPoints = 32;

  void try_spread(int64_t least, int64_t most, const Lags& lags) {
    const int64_t layers = layers_with_experts(shape_.is_moe);
    least = std::max(open_.least_in_all, least);
    const int64_t of_layer =
        std::min(shape_.num_experts / best_.attention_devices, open_.most_kept);
    const int64_t of_device = std::min(of_layer * layers, open_.most_in_all);
    most = std::max(least, std::min(of_device * best_.attention_devices, most));
    const int64_t step = std::max<int64_t>(1, div_ceil(most - least, 2 * kPoints));
    for (int64_t n = least; n <= most; n += step) consider(spread_experts(n, shape_.is_moe), lags);
  }

  const ChunkTimes& times_of(int64_t layer, int64_t offloaded) {
    const auto [at, is_new] =
        times_.try_emplace({shape_.stage_of(layer), shape_.is_moe[layer] != 0, offloaded});
    if (is_new) {
      const RunShape uniform = make_(best_.attention_devices, offloaded);
      const std::vector<WeightRoom> rooms =
          open_.rooms ? open_.rooms(best_.attention_devices, offloaded) : std::vector<WeightRoom>();
      at->second = RunTimes(uniform, profile_, rooms).of(layer);
    }
    return at->second;
  }

  void consider(const std::vector<int64_t>& offloaded, const Lags& lags) {
    if (lags_wait_for_each_other(lags, shape_.is_moe.back() != 0, shape_.rounds())) return;
    ActionTimes times;
    times.chunks = static_cast<int32_t>(shape_.rounds());
    times.of = [&](int32_t layer, int32_t) {
      return times_of(layer, offloaded.size() == 1 ? offloaded[0] : offloaded[layer]);
    };
    shape_.lags = lags;
    const TimedActions timed = time_run(shape_, PassExtent::kStep, times, boundary_s_);
    const double step_s =
        time_streams(timed.queue, kPipelineStreams * shape_.stages.count).makespan_s;
    ++best_.timed;
    if (!best_.offloaded.empty() && step_s >= best_.step_s) return;
    best_.step_s = step_s;
    best_.offloaded = offloaded;
    best_.lags = lags;
  }

  const OpenZebra& open_;
  const ZebraShape& make_;
  const MachineProfile& profile_;
  RunShape shape_;
  double boundary_s_ = 0;
  std::map<std::tuple<int, bool, int64_t>, ChunkTimes> times_;  // [stage, layer has experts, kept]
  ZebraRun best_;
};

}  // namespace

TimedActions time_run(const RunShape& shape, PassExtent extent, const ActionTimes& times,
                      double boundary_s) {
  TimedActions timed;
  std::deque<ActionClock> clocks;  // they stay where they are
  for (int stage = 0; stage < shape.stages.count; ++stage) {
    ActionTimes own = times;
    own.of = [&shape, &times, stage](int32_t layer, int32_t chunk) {
      const bool here = shape.stage_of(layer) == stage;  // else it is the head that is asked for
      return times.of(here ? layer : static_cast<int32_t>(shape.num_layers - 1), chunk);
    };
    clocks.emplace_back(std::move(own), kPipelineStreams * stage, &timed);
  }
  std::vector<int> at(static_cast<size_t>(times.chunks), 0);  // [chunk] the stage where it is
  for (const Action& action : make_actions(shape, extent)) {
    const auto chunk = static_cast<int32_t>(action.microbatches.first / action.microbatches.count);
    const bool head = action.kind == ActionKind::kHead;
    const int stage = shape.stage_of(head ? shape.num_layers : action.layer);
    int& from = at[static_cast<size_t>(chunk)];
    ActionClock& clock = clocks[static_cast<size_t>(stage)];
    if (stage != from) {
      const bool forward = action.phase == Phase::kForward;
      clock.wait_for(chunk, static_cast<int32_t>(timed.queue.size()));
      timed.queue.push_back({kPipelineStreams * from + kStepStreams + (forward ? 0 : 1), boundary_s,
                             clocks[static_cast<size_t>(from)].after(chunk)});
      timed.tasks.push_back({TaskKind::kSend, action.phase, -1, chunk});
      from = stage;
    }
    clock.add(action);
    const bool leaves = action.kind == ActionKind::kResidual && shape.leaves_stage(action.layer);
    if (!leaves) continue;
    // It takes no time, but its turn on a device that attends.
    const auto task = static_cast<int32_t>(timed.queue.size());
    timed.queue.push_back({kPipelineStreams * stage + static_cast<int32_t>(StepStream::kFaster), 0,
                           clock.after(chunk)});
    timed.tasks.push_back({TaskKind::kResidual, action.phase, -1, chunk});
    clock.wait_for(chunk, task);
  }
  return timed;
}

std::vector<int64_t> spread_experts(int64_t experts, const std::vector<uint8_t>& is_moe) {
  const int64_t layers = layers_with_experts(is_moe);
  std::vector<int64_t> offloaded;
  int64_t i = 0;
  for (const uint8_t moe : is_moe) {
    offloaded.push_back(moe != 0 ? (i + 1) * experts / layers - i * experts / layers : 0);
    i += moe != 0;
  }
  return offloaded;
}

int64_t rows_to_keep(const RunShape& shape, const std::vector<WeightRoom>& rooms) {
  constexpr double kPartOfGroup = 1.125;  // its groups have room for a few blocks more
  if (rooms.empty()) return 0;
  const int64_t kept = shape.most_round_blocks() * shape.row_block;
  std::vector<double> bytes(rooms.size(), 0);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    std::vector<uint8_t> computes(rooms.size(), 0);
    for (int64_t e = 0; e < shape.num_experts && shape.is_moe[static_cast<size_t>(l)]; ++e) {
      for (int copy = 0; copy < shape.copies.count; ++copy) {
        computes[static_cast<size_t>(shape.seat_of(shape.expert(l, e), copy))] = 1;
      }
    }
    const auto rows = kPartOfGroup * static_cast<double>(shape.rounds() * kept);
    const auto row_bytes = static_cast<double>(shape.hidden_size * shape.dtype_bytes);
    for (size_t d = 0; d < bytes.size(); ++d) bytes[d] += computes[d] * rows * row_bytes;
  }
  return RunTimes(shape, {}, rooms).all_stays(bytes) ? kept : 0;
}

ActionTimes run_times(const RunShape& shape, const MachineProfile& profile,
                      const std::vector<WeightRoom>& rooms) {
  ActionTimes times;
  std::vector<ChunkTimes> layers;
  RunTimes of_run(shape, profile, rooms);
  for (int64_t l = 0; l < shape.num_layers; ++l) layers.push_back(of_run.of(l));
  times.of = [layers](int32_t layer, int32_t) { return layers[static_cast<size_t>(layer)]; };
  times.chunks = static_cast<int32_t>(shape.rounds());
  return times;
}

std::vector<Lags> lag_choices(int64_t chunks, bool last_layer_experts) {
  std::vector<int32_t> choices;
  const auto most = static_cast<int32_t>(chunks - 1);
  for (int32_t lag = 0; lag <= std::min(3, most); ++lag) choices.push_back(lag);
  if (most > 3) choices.push_back(most);
  const std::vector<int32_t> turns = last_layer_experts ? choices : std::vector<int32_t>{0};
  std::vector<Lags> lags;
  for (const int32_t head : turns) {
    for (const int32_t attention : turns) {
      for (const int32_t expert : choices) lags.push_back({head, attention, expert});
    }
  }
  return lags;
}

ZebraRun choose_zebra(const OpenZebra& open, const ZebraShape& shape,
                      const MachineProfile& profile) {
  const int64_t least = open.attention_devices.value_or(1);
  const int64_t most = open.attention_devices.value_or(open.most_attending);
  std::optional<ZebraRun> best;
  int64_t timed = 0;
  for (int64_t attending = least; attending <= most; ++attending) {
    ZebraRun run = ZebraRunSearch(open, shape, profile, attending).run();
    timed += run.timed;
    if (!best || run.step_s < best->step_s) best = std::move(run);
  }
  best->timed = timed;
  return std::move(*best);
}

}  // namespace pagoda
