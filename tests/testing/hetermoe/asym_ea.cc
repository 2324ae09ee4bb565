#include "tests/testing/hetermoe/asym_ea.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace pagoda {
namespace {

// Products of counts and times, far below its limit.
using Wide = __int128;

constexpr int64_t kMostTime = 1'000'000'000'000'000;

struct Chunks {
  int32_t acquired = 0;  // n1, by each attention device
  int32_t given = 0;     // n2, by each expert device
  int32_t layers = 0;    // with experts
  int64_t layer_most = 0;
  int64_t least = 0, most = 0;  // over all layers
};

Result<Chunks> chunks_of(const ZebraGroup& g, const AsymBounds& bounds) {
  const int32_t m = g.attention_devices, n = g.expert_devices;
  if (m % n != 0 && n % m != 0) {
    return Status(Exit::kUsage,
                  strf("asymmetric assignment: neither of %d attention and %d expert devices "
                       "divides the other; offload nothing, or choose a multiple",
                       m, n));
  }
  if (bounds.least < 0 || bounds.most_per_attention_device < 0) {
    return Status(Exit::kUsage,
                  "asymmetric assignment: a bound is below 0 experts; give what fits");
  }
  Chunks chunks;
  chunks.acquired = std::max(1, n / m);
  chunks.given = static_cast<int32_t>(int64_t{chunks.acquired} * m / n);
  chunks.layers = g.layers - (g.last_layer_experts ? 0 : 1);
  chunks.layer_most = g.experts / n / chunks.given;
  const int64_t of_chunk = int64_t{n} * chunks.given;
  chunks.least = bounds.least / of_chunk + (bounds.least % of_chunk != 0);
  chunks.most = std::min(bounds.most_per_attention_device / chunks.acquired,
                         chunks.layer_most * chunks.layers);
  if (chunks.least <= chunks.most) return chunks;
  return Status(
      Exit::kDoesNotFit,
      strf("asymmetric assignment: expert devices cannot hold %lld experts, attention "
           "devices can take %lld of them; nothing was placed; add devices or memory",
           static_cast<long long>(bounds.least), static_cast<long long>(chunks.most * of_chunk)));
}

std::vector<int32_t> experts_of(const ZebraGroup& g, const Chunks& chunks,
                                const std::vector<int64_t>& counts) {
  std::vector<int32_t> offloaded(static_cast<size_t>(g.layers), 0);
  for (size_t i = 0; i < counts.size(); ++i) {
    offloaded[i] = static_cast<int32_t>(counts[i] * chunks.given);
  }
  return offloaded;
}

Result<std::vector<int64_t>> gather(const ZebraGroup& g, const Chunks& chunks,
                                    const AsymTimes& times) {
  for (const int64_t time : {times.attention, times.expert, times.offloaded_expert}) {
    if (time < 1 || time > kMostTime) {
      return Status(Exit::kUsage,
                    strf("asymmetric assignment: a time of %lld; measure it again, or take a unit "
                         "in which it is from 1 to 10^15",
                         static_cast<long long>(time)));
    }
  }
  // Both times n: whole numbers. Bubbles times the layers besides.
  const Wide gather_time = Wide{g.experts} * (times.expert - times.attention);
  const Wide squeeze_time =
      Wide{g.expert_devices} *
      (Wide{times.expert} * chunks.given + Wide{times.offloaded_expert} * chunks.acquired);
  const Wide in_all = std::clamp<Wide>(gather_time * chunks.layers, squeeze_time * chunks.least,
                                       squeeze_time * chunks.most);
  const Wide squeezed = squeeze_time * chunks.layers;
  std::vector<int64_t> counts;
  Wide bubble = 0;
  for (int32_t i = 0; i < chunks.layers; ++i) {
    bubble += in_all;
    counts.push_back(static_cast<int64_t>(bubble / squeezed));
    bubble %= squeezed;
  }
  return counts;
}

// Looks for better o_l.
class Search {
 public:
  Search(const ZebraGroup& group, const Chunks& chunks, std::vector<int32_t> start)
      : group_(group), chunks_(chunks) {
    plan_.offloaded = std::move(start);
  }

  Status run();
  AsymPlan take() { return std::move(plan_); }

 private:
  // Changes by a chunk; -1: no layer.
  struct Neighbour {
    int32_t more = -1, less = -1;
  };
  Status choose_lags();
  bool allows(const Neighbour& change) const;
  std::optional<double> time_of(const Neighbour& change);
  bool step();
  void apply(const Neighbour& change, int32_t chunks);

  ZebraGroup group_;
  const Chunks chunks_;
  AsymPlan plan_;
};

Status Search::choose_lags() {
  group_.offloaded = plan_.offloaded;
  ASSIGN_OR_RETURN(const ZebraStep step, best_zebra(group_));
  plan_.lags = step.lags;
  plan_.step_s = step.times.makespan_s;
  return Status();
}

Status Search::run() {
  RETURN_IF_ERROR(choose_lags());
  plan_.gathered = plan_.offloaded;
  plan_.gathered_step_s = plan_.step_s;
  while (true) {
    const double before = plan_.step_s;
    while (step()) {
    }
    RETURN_IF_ERROR(choose_lags());
    if (plan_.step_s >= before) return Status();
  }
}

void Search::apply(const Neighbour& change, int32_t chunks) {
  const int32_t experts = chunks * chunks_.given;
  if (change.more >= 0) plan_.offloaded[static_cast<size_t>(change.more)] += experts;
  if (change.less >= 0) plan_.offloaded[static_cast<size_t>(change.less)] -= experts;
}

// Whether the change stays within the bounds.
bool Search::allows(const Neighbour& change) const {
  const auto count_of = [&](size_t l) { return int64_t{plan_.offloaded[l]} / chunks_.given; };
  int64_t in_all = (change.more >= 0) - (change.less >= 0);
  for (size_t l = 0; l < plan_.offloaded.size(); ++l) in_all += count_of(l);
  if (in_all < chunks_.least || in_all > chunks_.most) return false;
  if (change.more >= 0 && count_of(static_cast<size_t>(change.more)) == chunks_.layer_most) {
    return false;
  }
  return change.less < 0 || count_of(static_cast<size_t>(change.less)) > 0;
}

// {}: outside of the bounds, or not with these lags.
std::optional<double> Search::time_of(const Neighbour& change) {
  if (!allows(change)) return {};
  apply(change, 1);
  group_.offloaded = plan_.offloaded;
  apply(change, -1);
  const Result<TimedActions> plan = plan_zebra(group_, plan_.lags);
  if (!plan.ok()) return {};
  ++plan_.plans_timed;
  return time_streams(plan.value().queue, kPaperStreams).makespan_s;
}

// Goes to the best neighbour, if it is better.
bool Search::step() {
  constexpr int32_t kReach = 4;
  std::optional<Neighbour> best;
  const auto consider = [&](const Neighbour& change) {
    const std::optional<double> step_s = time_of(change);
    if (!step_s || *step_s >= plan_.step_s) return;
    plan_.step_s = *step_s;
    best = change;
  };
  for (int32_t i = 0; i < chunks_.layers; ++i) {
    consider({i, -1});
    consider({-1, i});
    for (int32_t k = std::max(0, i - kReach); k < std::min(chunks_.layers, i + kReach + 1); ++k) {
      if (k != i) consider({i, k});
    }
  }
  if (best) apply(*best, 1);
  return best.has_value();
}

// Times longer than kMostTime are cut to twice that, which is refused.
AsymTimes nanoseconds_of(const ZebraTimes& times) {
  const auto nanoseconds = [](double s) {
    return static_cast<int64_t>(std::llround(std::min(s * 1e9, 2.0 * kMostTime)));
  };
  return {nanoseconds(times.attention.forward_s), nanoseconds(times.expert.forward_s),
          nanoseconds(times.offloaded_expert.forward_s)};
}

}  // namespace

Result<std::vector<int32_t>> gather_and_squeeze(const ZebraGroup& group, const AsymTimes& times,
                                                const AsymBounds& bounds) {
  RETURN_IF_ERROR(check_zebra_counts(group));
  ASSIGN_OR_RETURN(const Chunks chunks, chunks_of(group, bounds));
  ASSIGN_OR_RETURN(const std::vector<int64_t> counts, gather(group, chunks, times));
  return experts_of(group, chunks, counts);
}

Result<AsymPlan> plan_asym_ea(const ZebraGroup& group, const AsymBounds& bounds) {
  ZebraGroup base = group;
  base.offloaded.assign(static_cast<size_t>(std::max(0, group.layers)), 0);
  RETURN_IF_ERROR(check_zebra(base));
  ASSIGN_OR_RETURN(const Chunks chunks, chunks_of(base, bounds));
  ASSIGN_OR_RETURN(std::vector<int32_t> start,
                   gather_and_squeeze(base, nanoseconds_of(base.times), bounds));
  Search search(base, chunks, std::move(start));
  RETURN_IF_ERROR(search.run());
  return search.take();
}

}  // namespace pagoda
