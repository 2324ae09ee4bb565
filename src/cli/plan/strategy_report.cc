#include "cli/plan/strategy_report.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "cli/plan/plan_report.h"
#include "model/json.h"

namespace pagoda {
namespace {

constexpr size_t kMostLanes = 8;

// The table has a column for each kind of work; what is left is waiting.
constexpr size_t kParts = kStrategyWorkNames.size();

struct LaneTimes {
  std::string name;
  std::array<double, kParts> busy_s = {};

  double all_s() const {
    double sum_s = 0;
    for (const double s : busy_s) sum_s += s;
    return sum_s;
  }
};

std::vector<LaneTimes> lane_times(const StrategyTimeline& timeline) {
  std::vector<LaneTimes> lanes;
  for (const StrategyLane& lane : timeline.lanes) {
    LaneTimes& times = lanes.emplace_back();
    times.name = lane.name;
    for (const StrategyPiece& piece : lane.pieces) {
      times.busy_s[static_cast<size_t>(piece.work)] += piece.end_s - piece.start_s;
    }
  }
  return lanes;
}

std::string lanes_text(const StrategyTimeline& timeline) {
  constexpr double kShown = 0.005;  // part of the step
  std::vector<LaneTimes> lanes = lane_times(timeline);
  std::erase_if(lanes, [&](const LaneTimes& l) { return l.all_s() < kShown * timeline.end_s; });
  std::array<bool, kParts> used = {};
  int width = 0;
  for (const LaneTimes& lane : lanes) {
    width = std::max(width, static_cast<int>(lane.name.size()));
    for (size_t p = 0; p < kParts; ++p) used[p] = used[p] || lane.busy_s[p] > 0;
  }
  std::string text = strf("            %-*s", width, "");
  for (size_t p = 0; p < kParts; ++p) {
    if (used[p]) text += strf(" %9s", kStrategyWorkNames[p]);
  }
  text += "   waiting\n";
  for (size_t l = 0; l < std::min(lanes.size(), kMostLanes); ++l) {
    text += strf("            %-*s", width, lanes[l].name.c_str());
    for (size_t p = 0; p < kParts; ++p) {
      if (used[p]) text += strf(" %7.0f %%", 100 * lanes[l].busy_s[p] / timeline.end_s);
    }
    const double waiting_s = std::max(0.0, timeline.end_s - lanes[l].all_s());
    text += strf(" %7.0f %%\n", 100 * waiting_s / timeline.end_s);
  }
  if (lanes.size() <= kMostLanes) return text;
  return text + strf("            and %zu more\n", lanes.size() - kMostLanes);
}

struct Peak {
  int64_t bytes = 0, always = 0;
  double at_s = 0;
};

Peak peak_of(const StrategyMemory& memory) {
  Peak peak{0, memory.held.front().second, 0};
  for (const auto& [at_s, bytes] : memory.held) {
    peak.always = std::min(peak.always, bytes);
    if (bytes > peak.bytes) {
      peak.bytes = bytes;
      peak.at_s = at_s;
    }
  }
  return peak;
}

std::string memory_text(const StrategyReport& r) {
  std::string text;
  for (size_t m = 0; m < std::min(r.timeline.memory.size(), kMostLanes); ++m) {
    const StrategyMemory& memory = r.timeline.memory[m];
    const Peak peak = peak_of(memory);
    text += strf("%-9s %s: %s of %s at most", m == 0 ? "memory" : "", memory.name.c_str(),
                 format_bytes(peak.bytes).c_str(), format_bytes(memory.budget_bytes).c_str());
    if (peak.bytes > peak.always) {
      text += strf(", %s into the step; %s of it always", seconds_text(peak.at_s).c_str(),
                   format_bytes(peak.always).c_str());
    }
    text += "\n";
  }
  if (r.timeline.memory.size() > kMostLanes) {
    text += strf("          and %zu more\n", r.timeline.memory.size() - kMostLanes);
  }
  if (r.strategy.host_bytes == 0)
    return text + "          hosts and drives hold nothing of a step\n";
  return text + strf("          each host: %s of optimizer states; drives hold nothing\n",
                     format_bytes(r.strategy.host_bytes).c_str());
}

}  // namespace

std::string bottleneck_name(const StrategyTimeline& timeline) {
  constexpr double kMost = 0.6;  // part of the step: then nothing else is said
  double compute_s = 0, transfer_s = 0, sums_s = 0, updates_s = 0;
  for (const LaneTimes& lane : lane_times(timeline)) {
    const auto of = [&](StrategyWork part) { return lane.busy_s[static_cast<size_t>(part)]; };
    transfer_s = std::max(transfer_s, of(StrategyWork::kTransfer));
    sums_s = std::max(sums_s, of(StrategyWork::kGradients));
    updates_s = std::max(updates_s, of(StrategyWork::kUpdates));
    const double moved_s = of(StrategyWork::kTransfer) + of(StrategyWork::kGradients);
    compute_s = std::max(compute_s, lane.all_s() - moved_s - of(StrategyWork::kUpdates));
  }
  const std::pair<double, const char*> parts[] = {{compute_s, "compute"},
                                                  {transfer_s, "transfers between devices"},
                                                  {sums_s, "sums of gradients"},
                                                  {updates_s, "updates of weights and states"}};
  const auto& most = *std::max_element(std::begin(parts), std::end(parts));
  if (most.first >= kMost * timeline.end_s) return most.second;
  return std::string(most.second) + ", and by waiting for each other";
}

std::string StrategyReport::text() const {
  const double rate = static_cast<double>(tokens) / strategy.step_s;
  std::string text =
      memory_text(*this) + strf("step      %s\n", seconds_text(strategy.step_s).c_str()) +
      lanes_text(timeline) +
      strf("speed     %s tokens/s, MFU %.1f %%; limited by %s\n", rate_text(rate).c_str(),
           100 * strategy.mfu, bottleneck_name(timeline).c_str());
  return text + run_time_text(total_tokens, rate, ", nothing written to the drives") +
         helps_text(helps);
}

Json StrategyReport::json() const {
  Json json = {{"limited_by", bottleneck_name(timeline)}, {"host_bytes", strategy.host_bytes}};
  for (const LaneTimes& lane : lane_times(timeline)) {
    Json of = {{"name", lane.name}};
    for (size_t p = 0; p < kParts; ++p) {
      if (lane.busy_s[p] > 0) of["busy_s"][kStrategyWorkNames[p]] = lane.busy_s[p];
    }
    json["lanes"].push_back(std::move(of));
  }
  for (const StrategyMemory& memory : timeline.memory) {
    const Peak peak = peak_of(memory);
    json["memory"].push_back({{"name", memory.name},
                              {"budget_bytes", memory.budget_bytes},
                              {"peak_bytes", peak.bytes},
                              {"peak_at_s", peak.at_s},
                              {"always_bytes", peak.always}});
  }
  add_tokens(total_tokens, static_cast<double>(tokens) / strategy.step_s, json);
  add_helps(helps, json);
  return json;
}

std::string run_time_text(int64_t tokens, double tokens_per_s, const char* more) {
  if (tokens == 0) return "";
  return strf("tokens    %s of them: %s%s\n", grouped_digits(tokens).c_str(),
              seconds_text(static_cast<double>(tokens) / tokens_per_s).c_str(), more);
}

std::string helps_text(const std::vector<ClusterChange>& helps) {
  std::string text;
  for (const ClusterChange& change : helps) {
    text += strf("%-9s %+5.0f %%  %s: %s\n", text.empty() ? "helps" : "", 100 * change.gain,
                 change.text.c_str(), change.strategy.c_str());
  }
  return text;
}

void add_tokens(int64_t tokens, double tokens_per_s, Json& json) {
  if (tokens == 0) return;
  json["total"] = {{"tokens", tokens}, {"seconds", static_cast<double>(tokens) / tokens_per_s}};
}

void add_helps(const std::vector<ClusterChange>& helps, Json& json) {
  for (const ClusterChange& change : helps) {
    json["helps"].push_back({{"change", change.text},
                             {"strategy", change.strategy},
                             {"gain", change.gain},
                             {"tokens_per_s", change.tokens_per_s}});
  }
}

std::string fits_with_text(const std::vector<ClusterChange>& changes) {
  std::string text;
  for (const ClusterChange& change : changes) {
    text += strf("%-9s %s: %s\n", text.empty() ? "fits with" : "     or", change.text.c_str(),
                 change.strategy.c_str());
  }
  return text;
}

}  // namespace pagoda
