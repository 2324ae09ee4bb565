#include "plan/zebra/zebra_search.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/bytes.h"
#include "plan/step/zebra_actions.h"

namespace pagoda {
namespace {

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
    const std::vector<WeightRoom> any;
    RunTimes times(shape_, profile, any);
    if (shape_.stages.several()) boundary_s_ = times.boundary_s();
    sums_ = times.sums();
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
        std::min(shape_.num_experts / best_.attention_devices, open_.most_of_layer);
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
    times.sums = sums_;
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
  SumTimes sums_;
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
      timed.queue.push_back({kPipelineStreams * from + kStepStreams + (forward ? 0 : 1),
                             boundary_s,
                             {clocks[static_cast<size_t>(from)].after(chunk), -1, -1}});
      timed.tasks.push_back({TaskKind::kSend, action.phase, -1, chunk});
      from = stage;
    }
    clock.add(action);
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

ZebraRun search_zebra(const OpenZebra& open, const ZebraShape& shape,
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
