// Prints what the planner's algorithms reach where the papers give figures: Aurora's speedups over
// its baselines and its heuristics against all places, placement and migration of experts on skewed
// loads, HeterMoE's and Piper's figures by the tasks of runs. All simulated, nothing is
// measured: the same on every machine. Not installed. Start it in the folder with configs/.
//
//   planner_figures [ROUTING]     ROUTING: of train --trace-routing, used beside drawn loads
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "plan/exchange/expert_migration.h"
#include "plan/exchange/heterogeneous_colocation.h"
#include "plan/step/expert_seats.h"
#include "tests/testing/plan/place_search.h"
#include "tests/testing/plan/random_traffic.h"
#include "tests/testing/plan/recorded_layers.h"
#include "tools/bench/figures/hetermoe_figures.h"
#include "tools/bench/figures/piper_figures.h"

namespace pagoda {
namespace {

// ---- Aurora ----

void print_row(const char* what, const std::vector<Speedup>& speedups) {
  std::printf("  %-52s", what);
  for (const Speedup& s : speedups) std::printf("  %5.2f (%.2f)", s.mean, s.most);
  std::printf("\n");
}

void print_speedups(const char* name, const LayerSource& layers) {
  constexpr int kTrials = 400;
  constexpr double kNoise[] = {0, 0.25, 0.50, 0.75};
  std::vector<ServedSpeedups> by_noise;
  for (const double noise : kNoise) by_noise.push_back(served_speedups(layers, noise, kTrials));
  const auto row = [&](const char* what, Speedup ServedSpeedups::*of) {
    std::vector<Speedup> speedups;
    for (const ServedSpeedups& s : by_noise) speedups.push_back(s.*of);
    print_row(what, speedups);
  };
  Speedup busiest;
  for (uint64_t seed = 1; seed <= kTrials; ++seed) {
    const std::vector<double> loads_s = layers(seed).ffn_s;
    const double sum_s = std::accumulate(loads_s.begin(), loads_s.end(), 0.0);
    busiest.note(*std::ranges::max_element(loads_s) * static_cast<double>(loads_s.size()) / sum_s);
  }
  std::printf(
      "\nAurora, %s, 8 experts, seeds 1 to %d: time over the planned one, mean (largest)\n"
      "  noise in the traffic that was planned for                     0 %%          "
      "25 %%          50 %%          75 %%\n"
      " one model, equal devices\n",
      name, kTrials);
  row("SJF, over the planned order", &ServedSpeedups::sjf);
  row("RCS, random order", &ServedSpeedups::rcs);
  std::printf(" two models, equal devices\n");
  row("REC, random pairs", &ServedSpeedups::rec);
  row("Lina's packing on half the devices, planned order", &ServedSpeedups::lina);
  row("Lina's packing on half the devices, random order", &ServedSpeedups::lina_rcs);
  row("planned with the noise unknown, over known", &ServedSpeedups::pairs_loss);
  std::printf(" two devices each of four kinds\n");
  row("one model: RGA, random devices", &ServedSpeedups::rga);
  row("one model: planned with the noise unknown", &ServedSpeedups::places_loss);
  row("two models: RGA and REC", &ServedSpeedups::rga_rec);
  row("two models: planned with the noise unknown", &ServedSpeedups::both_loss);
  std::printf(" share of the time in which equal devices compute\n");
  row("one model", &ServedSpeedups::busy_alone);
  row("two models", &ServedSpeedups::busy_together);
  std::printf(" the busiest expert of a layer has %.2f (%.2f) times the mean load\n", busiest.mean,
              busiest.most);
}

// What the paper has for these, and why it is otherwise here.
void print_paper_speedups() {
  std::printf(
      "\n"
      "Aurora's paper (Figures 11, 12 and 14): SJF up to 1.38, and RCS alike; RGA 1.36 to 1.81; "
      "Lina 1.25 to 2.38 on equal\n"
      "devices, 1.91 to 3.54 on unequal ones; with most models devices compute in less than 0.20 "
      "of the time, and 1.57 to 1.72\n"
      "times as much with two. With 75 %% noise RGA falls from 1.90 to 1.60, the 15.8 %% that "
      "the paper loses at most, and RGA and\n"
      "REC from 2.0 to 1.8.\n"
      "  Lina is not slower here if its exchanges have the planned order. By hand: where a device "
      "has two of the 8 experts of a model,\n"
      "  6/8 of a quarter of its tokens leave that; where it has one of each of two models, 7/8 of "
      "two eighths do, 7/6 times\n"
      "  as many. Exchanges take most of the time here, so that what computes beside them gains "
      "less than that. In random order\n"
      "  Lina is slower; the paper does not say which order it had there. Executed, where "
      "computing takes longer, it is slower too\n"
      "  (colocation_tables).\n"
      "  The largest for SJF and RCS are of 400 layers here, the paper's of its few models.\n"
      "  RGA loses less here. By hand: its devices, 1, 1.25, 2 and 2.5 times as slow as the "
      "fastest, make no difference where all experts have\n"
      "  equal loads, and (1 + 1.25 + 2 + 2.5) / 4 = 1.69 times on average where one has all. How "
      "unequal the paper's loads are is not known.\n"
      "  Two models lose more by noise here: the paper's is the traffic of other layers of the "
      "same model, which are alike;\n"
      "  drawn layers have nothing in common.\n");
}

void print_heuristics() {
  std::printf(
      "\nAurora's decoupled heuristic, over the best of all places (Figure 13; the paper 1.07 on "
      "average)\n"
      "  devices  instances  decoupled mean  worst\n");
  for (const auto& [n, instances] : {std::pair(4, 280), std::pair(5, 60), std::pair(6, 6)}) {
    constexpr double kBytesPerS[] = {12.5e9, 10e9, 6.25e9, 5e9};
    std::vector<ServingDevice> devices;
    for (int d = 0; d < n; ++d) {
      devices.push_back({kBytesPerS[d % 4], kBytesPerS[d % 4] / kBytesPerS[0]});
    }
    Speedup decoupled;
    for (int k = 1; k <= instances; ++k) {
      const uint64_t seed = 1000 * static_cast<uint64_t>(n) + static_cast<uint64_t>(k);
      const auto a = expert_demands(random_layer(n, 1, seed));
      const auto b = expert_demands(random_layer(n, 1, 100000 + seed));
      const double least_s = fastest_colocation_s(a, b, devices);
      decoupled.note(decoupled_colocation(a, b, devices)->slowest_s / least_s);
    }
    std::printf("  %7d  %9d  %14.4f  %5.3f\n", n, instances, decoupled.mean, decoupled.most);
  }
}

// ---- placement and migration ----

// Tokens of the experts of one layer in one step.
using Loads = std::vector<int64_t>;

// What an assignment is made from, and what it is used for.
struct KnownAndUsed {
  Loads known, used;
};

std::vector<KnownAndUsed> drawn_loads(int64_t experts, int count) {
  std::vector<KnownAndUsed> all;
  for (int k = 0; k < count; ++k) {
    Loads loads;
    for (int64_t e = 0; e < experts; ++e) {
      const double normal = random_normal(21, RandomPurpose::kTest, static_cast<uint64_t>(k),
                                          static_cast<uint64_t>(e));
      loads.push_back(static_cast<int64_t>(1000 * std::exp(0.7 * normal)));
    }
    all.push_back({loads, loads});
  }
  return all;
}

// Every layer of every step, with what it had `ahead` steps before, where that was recorded.
std::vector<KnownAndUsed> recorded_loads(const RoutingTrace& trace, int64_t ahead) {
  const auto loads = [](const RoutedStep& step, size_t layer) {
    return tokens_per_expert(layer_routing(step.routing, static_cast<int64_t>(layer)));
  };
  std::vector<KnownAndUsed> all;
  for (const RoutedStep& before : trace.steps) {
    for (const RoutedStep& step : trace.steps) {
      for (size_t l = 0; l < trace.shape.is_moe.size(); ++l) {
        if (!trace.shape.is_moe[l] || step.step != before.step + ahead) continue;
        all.push_back({loads(before, l), loads(step, l)});
      }
    }
  }
  return all;
}

ExpertDevices in_order(size_t experts, int32_t devices) {
  ExpertDevices at;
  for (size_t e = 0; e < experts; ++e) {
    at.push_back(static_cast<int32_t>(e * static_cast<size_t>(devices) / experts));
  }
  return at;
}

// The busiest device over the mean.
double imbalance(const Loads& tokens, const ExpertDevices& at, int32_t devices) {
  const std::vector<int64_t> loads = device_loads(tokens, at, devices);
  const auto sum = static_cast<double>(std::accumulate(loads.begin(), loads.end(), int64_t{0}));
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) * devices / sum;
}

struct Balance {
  Speedup in_order, longest, balanced, emptiest, any, swaps;
};

void note_balance(const KnownAndUsed& loads, int32_t devices, Balance& balance) {
  const Loads &known = loads.known, &used = loads.used;
  const ExpertDevices start = in_order(known.size(), devices);
  balance.in_order.note(imbalance(used, start, devices));
  const std::vector<double> speeds(static_cast<size_t>(devices), 1.0);
  balance.longest.note(imbalance(used, place_longest_first(known, speeds), devices));
  balance.balanced.note(imbalance(used, place_balanced(known, speeds), devices));
  const auto swapped = [&](SwapPartner partner, Speedup& ratios) {
    const Migration migration = balance_by_swaps(known, start, devices, partner).take();
    ratios.note(imbalance(used, migration.device_of_expert, devices));
    return migration.swaps.size();
  };
  swapped(SwapPartner::kEmptiest, balance.emptiest);
  balance.swaps.note(static_cast<double>(swapped(SwapPartner::kAny, balance.any)));
}

void print_balance(const char* name, const std::vector<KnownAndUsed>& loads) {
  if (loads.empty()) return;
  for (const int32_t devices : {4, 8}) {
    Balance balance;
    for (const KnownAndUsed& layer : loads) note_balance(layer, devices, balance);
    std::printf("  %-34s %3zu %3d", name, loads.front().used.size(), devices);
    for (const Speedup* s : {&balance.in_order, &balance.longest, &balance.balanced,
                             &balance.emptiest, &balance.any}) {
      std::printf("   %6.4f %6.4f", s->mean, s->most);
    }
    std::printf("   %4.1f\n", balance.swaps.mean);
  }
}

void print_placement(const std::optional<RoutingTrace>& trace) {
  std::printf(
      "\nBusiest device over the mean, mean and worst\n"
      "  loads                         experts  on      in order     longest first"
      "        balanced     Algorithm 2     any partner  swaps\n");
  for (const int64_t experts : {16, 64, 128}) {
    print_balance("drawn, lognormal (sigma 0.7)", drawn_loads(experts, 200));
  }
  if (!trace) return;
  print_balance("recorded, each step by itself", recorded_loads(*trace, 0));
  print_balance("recorded, by the step before", recorded_loads(*trace, 1));
}

void print_figures(const std::optional<RoutingTrace>& trace) {
  print_speedups("drawn layers", [](uint64_t seed) { return random_layer(8, 1, seed); });
  if (trace) print_speedups("recorded layers", recorded_layers(*trace));
  print_paper_speedups();
  print_heuristics();
  print_placement(trace);
  print_hetermoe_figures();
  print_piper_tables();
  print_piper_figures();
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
    std::fprintf(stderr, "planner_figures: usage: planner_figures [ROUTING]\n");
    return 2;
  }
  std::optional<pagoda::RoutingTrace> trace;
  if (argc == 2) trace = pagoda::read_routing(argv[1]);
  pagoda::print_figures(trace);
  return 0;
}
