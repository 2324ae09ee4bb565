// Prints what the planner's algorithms reach where the papers give figures: Aurora's speedups over
// its baselines and its heuristics against all places, placement and migration of experts on skewed
// loads, HeterMoE's sweeps, Piper's figures by the tasks of runs. All simulated, nothing is
// measured: the same on every machine. Not installed. Start it in the folder with configs/.
//
//   planner_figures [ROUTING]     ROUTING: of train --trace-routing, used beside drawn loads
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/random.h"
#include "plan/exchange/expert_migration.h"
#include "plan/exchange/heterogeneous_colocation.h"
#include "plan/step/expert_seats.h"
#include "plan/zebra/zebra_join.h"
#include "plan/zebra/zebra_pipeline.h"
#include "tests/testing/plan/heterogeneous_sweep.h"
#include "tests/testing/plan/place_search.h"
#include "tests/testing/plan/random_traffic.h"
#include "tests/testing/plan/recorded_layers.h"
#include "tools/bench/piper_figures.h"

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
  std::printf("\nAurora, %s, 8 experts, seeds 1 to %d: time over the planned one, mean (largest)\n"
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
}

void print_heuristics() {
  std::printf("\nAurora's decoupled heuristic and alternating matching (10 restarts), over the "
              "best of all places\n  devices  instances  decoupled mean  worst   rematched mean  "
              "worst\n");
  for (const auto& [n, instances] : {std::pair(4, 280), std::pair(5, 60), std::pair(6, 6)}) {
    constexpr double kBytesPerS[] = {12.5e9, 10e9, 6.25e9, 5e9};
    std::vector<ServingDevice> devices;
    for (int d = 0; d < n; ++d) {
      devices.push_back({kBytesPerS[d % 4], kBytesPerS[d % 4] / kBytesPerS[0]});
    }
    Speedup decoupled, rematched;
    for (int k = 1; k <= instances; ++k) {
      const uint64_t seed = 1000 * static_cast<uint64_t>(n) + static_cast<uint64_t>(k);
      const auto a = expert_demands(random_layer(n, 1, seed));
      const auto b = expert_demands(random_layer(n, 1, 100000 + seed));
      const double least_s = fastest_colocation_s(a, b, devices);
      decoupled.note(decoupled_colocation(a, b, devices)->slowest_s / least_s);
      rematched.note(rematched_colocation(a, b, devices, 10, seed)->slowest_s / least_s);
    }
    std::printf("  %7d  %9d  %14.4f  %5.3f   %14.4f  %5.3f\n", n, instances, decoupled.mean,
                decoupled.most, rematched.mean, rematched.most);
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
  Speedup in_order, longest, balanced, emptiest, any, any_twice, swaps;
};

void note_balance(const KnownAndUsed& loads, int32_t devices, Balance& balance) {
  const auto& [known, used] = loads;
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
  swapped(SwapPartner::kAnyTwice, balance.any_twice);
}

void print_balance(const char* name, const std::vector<KnownAndUsed>& loads) {
  if (loads.empty()) return;
  for (const int32_t devices : {4, 8}) {
    Balance balance;
    for (const KnownAndUsed& layer : loads) note_balance(layer, devices, balance);
    std::printf("  %-34s %3zu %3d", name, loads.front().used.size(), devices);
    for (const Speedup* s : {&balance.in_order, &balance.longest, &balance.balanced,
                             &balance.emptiest, &balance.any, &balance.any_twice}) {
      std::printf("   %6.4f %6.4f", s->mean, s->most);
    }
    std::printf("   %4.1f\n", balance.swaps.mean);
  }
}

void print_placement(const std::optional<RoutingTrace>& trace) {
  std::printf("\nBusiest device over the mean, mean and worst\n"
              "  loads                         experts  on      in order     longest first"
              "        balanced     Algorithm 2     any partner  two swaps too  swaps\n");
  for (const int64_t experts : {16, 64, 128}) {
    print_balance("drawn, lognormal (sigma 0.7)", drawn_loads(experts, 200));
  }
  if (!trace) return;
  print_balance("recorded, each step by itself", recorded_loads(*trace, 0));
  print_balance("recorded, by the step before", recorded_loads(*trace, 1));
}

// ---- HeterMoE ----

// A row of a table for sequences of each length, in 1024 tokens; `cells`: prints what is of one.
template <typename Cells>
void print_rows(std::initializer_list<int> lengths, const Cells& cells) {
  for (const int k : lengths) {
    std::printf("  %7dK", k);
    cells(k * 1024.0);
    std::printf("\n");
  }
}

void print_sequences(const SweepModel& model) {
  std::printf(
      "\n%s, 6 + 6 devices like A40 and V100: throughput against zebra with Asym-EA (Figures 7, 9 "
      "and 12; in the paper,\nover its models, EP has 0.82 at 4K, 0.60 at 16K and 0.53 at 32K, "
      "DistEP 0.55, a pipeline 0.78)\n"
      "  sequence     EP  DistEP  EP (Ideal)  pipeline  zebra alone\n",
      model.name);
  Speedup ideal;
  print_rows({4, 8, 12, 16, 20, 24, 28, 32}, [&](double tokens) {
    const SweepPoint p = sweep_point(sweep_step(model, 6, 6, tokens), model.experts);
    ideal.note(1 / p.ideal);
    std::printf("  %5.2f  %6.2f  %10.2f  %8.2f  %11.2f", p.expert_parallel, p.disaggregated,
                p.ideal, p.pipeline, p.plain);
  });
  std::printf("  zebra over EP (Ideal): %.2f on average, %.2f at most; the paper 1.18 and 1.38\n",
              ideal.mean, ideal.most);
}

// The paper does not say which model it ran on which of its two setups.
void print_slow_experts() {
  std::printf(
      "\nDevices like L40S and T4 at 200 Gb/s: throughput against zebra with Asym-EA, sequences of "
      "4K to 32K\n(Figure 8; there zebra has 1.17 times EP (Ideal) on average and 1.25 at most, "
      "2.89 times EP and 1.96 times DistEP)\n"
      "  model       devices  zebra over:      EP  DistEP  EP (Ideal), mean  most\n");
  struct Setup {
    const SweepModel& model;
    int32_t slower;
  };
  for (const auto& [model, slower] :
       {Setup{kMixtralD1, 6}, Setup{kMixtralW1, 6}, Setup{kMixtralD3, 8}, Setup{kMixtralW2, 8}}) {
    Speedup expert_parallel, disaggregated, ideal;
    for (const int k : {4, 8, 12, 16, 20, 24, 28, 32}) {
      const HeterogeneousStep step = sweep_step(model, 2, slower, k * 1024.0, kL40sAndT4);
      const SweepPoint p = sweep_point(step, model.experts);
      expert_parallel.note(1 / p.expert_parallel);
      disaggregated.note(1 / p.disaggregated);
      ideal.note(1 / p.ideal);
    }
    std::printf("  %s    2 + %d               %6.2f  %6.2f  %17.2f  %4.2f\n", model.name, slower,
                expert_parallel.mean, disaggregated.mean, ideal.mean, ideal.most);
  }
}

void print_equal_devices() {
  constexpr int32_t kExperts = 8;
  std::printf(
      "\nMixtral-D1 with %d experts: throughput of EP on equal devices against zebra on 2 + 2 like "
      "A40 and V100 (Figure 11;\nthere four A40 have 1.05 on average, four V100 0.60, 0.84 at 4K "
      "and 0.52 at 32K, two A100 1.14 and 1.20 at most)\n"
      "  sequence  4 x A40  4 x V100  2 x A100\n",
      kExperts);
  print_rows({4, 8, 12, 16, 20, 24, 28, 32}, [&](double tokens) {
    const HeterogeneousStep two_kinds = sweep_step(kMixtralD1, 2, 2, tokens);
    const auto against = [&](const DeviceRates& rates, int32_t half, double link) {
      const SweepDevices equal = {rates, rates, link};
      return equal_devices(two_kinds, sweep_step(kMixtralD1, half, half, tokens, equal), kExperts);
    };
    std::printf("  %7.2f  %8.2f  %8.2f", against(kA40Like, 2, 12.5e9),
                against(kV100Like, 2, 12.5e9), against(kA100Like, 1, 25e9));
  });
}

void print_busy_shares() {
  std::printf(
      "\nMixtral-D1, 6 + 6 devices like A40 and V100: %% of the step in which a device computes, "
      "the faster and the slower\n(Table 3; there 55 and 89 without Asym-EA and 83 and 78 with it "
      "at 8K, 77 and 89, and 86 and 84 at 16K)\n"
      "  sequence   DistEP  zebra alone  with Asym-EA\n");
  print_rows({8, 16}, [&](double tokens) {
    const SweepShares p = busy_shares(sweep_step(kMixtralD1, 6, 6, tokens), kMixtralD1.experts);
    std::printf("  %2.0f / %2.0f      %2.0f / %2.0f       %2.0f / %2.0f",
                100 * p.disaggregated.faster, 100 * p.disaggregated.slower, 100 * p.plain.faster,
                100 * p.plain.slower, 100 * p.zebra.faster, 100 * p.zebra.slower);
  });
}

// The paper's gains, where it gives them: Figure 12, and at 8K on D1 what the busy shares of Table
// 3 come to. There 89 % of the slower devices' time was busy without Asym-EA.
struct PaperGain {
  const SweepModel& model;
  int tokens_k;
  double gain;
};
constexpr PaperGain kPaperGains[] = {
    {kMixtralD1, 4, 1.14}, {kMixtralD1, 8, 1.15}, {kMixtralW1, 4, 1.20}, {kMixtralW1, 24, 1.04}};

void print_asym_gains() {
  constexpr double kBusyWithout = 0.89;
  std::printf(
      "\nWhat Asym-EA gains on 6 + 6 devices, by hand: attention and head take A of the time that "
      "experts take on\nthe slower devices. If experts move until both kinds end together, and "
      "both "
      "are busy all the time, the bound\nis gained. The planner's clock loses nothing between "
      "tasks, and its search goes on from Algorithm 1, so it comes\nto the bound but for whole "
      "experts and the ends of a step. In the paper devices wait: %.0f %% of the slower "
      "ones'\ntime "
      "was busy without Asym-EA (Table 3), and with it, by its own gain, the last column of both, "
      "which is\n%.2f x gain / bound (Table 3 has 83 and 78 %% at 8K).\n"
      "  model       sequence     A  bound  planner  Algorithm 1  paper  busy there\n",
      100 * kBusyWithout, kBusyWithout);
  for (const auto& [model, tokens_k, gain] : kPaperGains) {
    const AsymGain ours = asym_gain(sweep_step(model, 6, 6, tokens_k * 1024.0), model.experts);
    std::printf("  %s  %7dK  %4.2f  %5.2f  %7.2f  %11.2f  %5.2f  %10.2f\n", model.name, tokens_k,
                ours.attention, ours.bound, ours.planned, ours.algorithm_1, gain,
                kBusyWithout * gain / ours.bound);
  }
}

void print_ratios(const SweepModel& model) {
  std::printf(
      "\n%s, 4 faster devices, experts in proportion to the slower ones: throughput of "
      "zebra against EP (Ideal), in parentheses without Asym-EA (Figure 10;\nthe paper's most is "
      "1.22 at 4:5 for 12K, and 1.10 at 4:7 for 4K, where 4:3 has 0.76 and 4:2 1.03)\n  sequence ",
      model.name);
  for (int32_t slower = 2; slower <= 8; ++slower) std::printf("          4:%d", slower);
  std::printf("\n");
  print_rows({4, 12, 20, 32}, [&](double tokens) {
    std::printf(" ");
    for (int32_t slower = 2; slower <= 8; ++slower) {
      const SweepPoint p = sweep_point(sweep_step(model, 4, slower, tokens), 4 * slower);
      std::printf("  %5.2f (%4.2f)", 1 / p.ideal, p.plain / p.ideal);
    }
  });
}

// Two groups of 3 + 3 devices, or one of 4 + 2 beside one of 2 + 4, with the tokens shared out:
// what unequal groups cost, and the sums of attention's gradients over all of them.
void print_joined(const SweepModel& model) {
  constexpr int32_t kMicrobatches = 16;
  std::printf("\n%s, two zebra groups of 12 devices in all, %d microbatches: seconds of a step, "
              "of which waiting for sums of attention's gradients\n"
              "  sequence   3 + 3 and 3 + 3             4 + 2 and 2 + 4\n",
              model.name, kMicrobatches);
  print_rows({4, 16, 32}, [&](double tokens) {
    for (const auto& [faster, slower] : {std::pair(3, 3), std::pair(4, 2)}) {
      ZebraJoin join;
      // An all-reduce of 4 d^2 bf16 gradients a layer over 6 attention devices at the sweep's rate.
      join.attention_reduce_s = 50e-6 + 2 * 5 / 6.0 * 8 * model.hidden * model.hidden / 12.5e9;
      for (const auto& [m, n] : {std::pair(faster, slower), std::pair(slower, faster)}) {
        join.groups.push_back(
            zebra_group(sweep_step(model, m, n, tokens), kMicrobatches, model.experts).take());
      }
      const auto shares = share_microbatches(join.groups, kMicrobatches).take();
      for (size_t g = 0; g < shares.size(); ++g) join.groups[g].microbatches = shares[g];
      const JoinedStep step = best_zebra_join(join).take();
      std::printf("   %2d + %2d: %7.3f (%.4f)", shares[0], shares[1], step.step_s,
                  step.attention_wait_s);
    }
  });
}

// Seconds of a step in one zebra group of 6 + 6 devices, and in two stages of 3 + 3 with half of
// the layers each.
void print_stages(const SweepModel& model) {
  constexpr int32_t kMicrobatches = 4;
  std::printf("\n%s, 12 devices: seconds of a step in one zebra group of 6 + 6 with 2 to 16 "
              "microbatches, and in two stages of 3 + 3 (1F1B, chunks of %d microbatches)\n"
              "  sequence  one group  two stages, 1 chunk  2 chunks  4 chunks  8 chunks\n",
              model.name, kMicrobatches);
  print_rows({4, 16, 32}, [&](double tokens) {
    Speedup one;
    for (const int32_t r : {2, 4, 8, 16}) {
      const HeterogeneousStep step = sweep_step(model, 6, 6, tokens);
      one.note(best_zebra(zebra_group(step, r, model.experts).take())->times.makespan_s);
    }
    std::printf("  %9.3f", one.least);
    for (const int32_t chunks : {1, 2, 4, 8}) {
      HeterogeneousStep half = sweep_step(model, 3, 3, tokens);
      half.layers /= 2;
      ZebraGroup stage = zebra_group(half, chunks * kMicrobatches, model.experts).take();
      stage.microbatches = kMicrobatches;
      ZebraPipeline pipeline;
      pipeline.stages.assign(2, stage);
      pipeline.chunks = chunks;
      const double bytes = half.boundary_bytes / (chunks * kMicrobatches) / half.faster.devices;
      pipeline.boundary_s = half.latency_s + bytes / half.link_bytes_per_s;
      std::printf(chunks == 1 ? "  %19.3f" : "  %8.3f",
                  best_zebra_pipeline(pipeline)->times.makespan_s);
    }
  });
}

void print_figures(const std::optional<RoutingTrace>& trace) {
  print_speedups("drawn layers", [](uint64_t seed) { return random_layer(8, 1, seed); });
  if (trace) print_speedups("recorded layers", recorded_layers(*trace));
  print_heuristics();
  print_placement(trace);
  for (const SweepModel& model : {kMixtralD1, kMixtralW1}) print_sequences(model);
  print_asym_gains();
  print_slow_experts();
  print_ratios(kMixtralD1);
  print_equal_devices();
  print_busy_shares();
  print_joined(kMixtralD1);
  print_stages(kMixtralD1);
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
