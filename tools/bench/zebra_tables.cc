// HeterMoE's tables, executed: zebra and what the paper compares it with, trained on CPU devices
// that are slowed by kind of work as its GPUs differ, each beside the time that the simulator has
// for it. Not installed.
//
//   zebra_tables [DIR] [--only a40_v100,l40s_t4,ratios,orders,errors,choice,spread]
//                and what tools/bench/race_tables.h says
//
//   a40_v100  zebra with and without Asym-EA, EP in equal shares and by speed, EP (Ideal), which is
//             the sum of two runs on each kind alone, and DistEP, at short and long rows (Figures
//             7, 11 and 12, Table 3)
//   l40s_t4   the same (Figure 8)
//   ratios    two faster devices and one to four slower ones (Figure 10)
//   orders    all orders of a step timed; Theorem 1's, the five best and some lags executed
//   errors    simulated against executed zebra on drawn devices, lags, kept experts and wires
//   choice    the layout that the simulator would choose against the fastest executed one
//   spread    steps of shifting, skewed routing: standard deviation over mean
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "bench/race/timing.h"
#include "tools/bench/order_search.h"
#include "tools/bench/race_tables.h"

namespace pagoda {
namespace {

using Devices = std::vector<Throttle>;

TrainedStep trained(const RaceSetting& setting, int64_t layers, int64_t row_tokens,
                    int64_t chunks = 4, int64_t width = 2) {
  const int64_t d = setting.hidden_size;
  return {.model = {.layers = setting.tiny ? 2 : layers,
                    .hidden_size = d,
                    .heads = 8,
                    .kv_heads = 4,
                    .head_dim = d / 8,
                    .experts = 24,
                    .experts_per_token = 2,
                    .expert_size = 2 * d,
                    .vocab_size = 1024,
                    .initializer_range = 0.02},
          .chunks = chunks,
          .width = width,
          .row_tokens = setting.tiny ? 16 : row_tokens};
}

// In the proportions of the paper's models, on which depends what each kind of device takes:
// experts as wide as Mixtral's (14,336 by a hidden size of 4,096), and a head that takes, at a
// hidden size of 128 and long rows, a fifth of what attention does, as Mixtral-D1's (8 layers, a
// hidden size of 1,024, 32,000 tokens) does at 16K. There are four experts for each slower device
// (Figure 10), so that one has as many rows of a chunk as fill its products. Weights are so small
// that a token stays what it is from layer to layer: experts have about as many tokens in each.
TrainedStep compared(const RaceSetting& setting, int64_t layers, int64_t row_tokens,
                     size_t count_slower) {
  TrainedStep step = trained(setting, layers, row_tokens, 4, row_tokens < 256 ? 4 : 2);
  step.model.experts = 4 * static_cast<int64_t>(count_slower);
  step.model.expert_size = 7 * setting.hidden_size / 2;
  step.model.vocab_size = 512;
  step.model.initializer_range = 0.002;
  return step;
}

double mean(const std::vector<double>& of, size_t first, size_t end) {
  return std::accumulate(of.begin() + static_cast<std::ptrdiff_t>(first),
                         of.begin() + static_cast<std::ptrdiff_t>(end), 0.0) /
         static_cast<double>(end - first);
}

// Busy shares of devices that attend and of the others, in percent.
std::string busy(const std::vector<double>& shares, size_t faster) {
  const size_t all = shares.size();
  if (faster == all) return strf("%.0f", 100 * mean(shares, 0, all));
  return strf("%.0f/%.0f", 100 * mean(shares, 0, faster), 100 * mean(shares, faster, all));
}

void print_row(const std::string& name, const LayoutTimes& t, const LayoutTimes& zebra,
               size_t faster) {
  std::printf("  %-18s %8.3f %9.3f %+6.1f %%  %8.2f %9.2f   %9s %9s\n", name.c_str(), t.measured_s,
              t.simulated_s, 100 * t.error(), zebra.measured_s / t.measured_s,
              zebra.simulated_s / t.simulated_s, busy(t.busy, faster).c_str(),
              busy(t.simulated_busy, faster).c_str());
}

// Both throughputs together.
LayoutTimes together(const LayoutTimes& a, const LayoutTimes& b) {
  const auto sum = [](double x, double y) { return 1 / (1 / x + 1 / y); };
  return {sum(a.measured_s, b.measured_s), sum(a.simulated_s, b.simulated_s),
          sum(a.forecast_s, b.forecast_s)};
}

void print_ideal(const LayoutTimes& t, const LayoutTimes& zebra) {
  std::printf("  %-18s %8.3f %9.3f %+6.1f %%  %8.2f %9.2f\n", "EP (Ideal)", t.measured_s,
              t.simulated_s, 100 * t.error(), zebra.measured_s / t.measured_s,
              zebra.simulated_s / t.simulated_s);
}

constexpr const char* kZebra = "zebra";
constexpr const char* kPlain = "zebra, no Asym-EA";
constexpr const char* kEqual = "EP";
constexpr const char* kBySpeed = "EP by speed";
constexpr const char* kApart = "DistEP";
const std::vector<std::string> kLayouts = {kZebra, kPlain, kEqual, kBySpeed, kApart};

// The layouts of a set of devices.
void add_layouts(LayoutRace& race, const Devices& faster, const Devices& slower) {
  race.add(race.plan_zebra(disaggregated(kZebra, faster, slower), true));
  race.add(race.plan_zebra(disaggregated(kPlain, faster, slower), false));
  Devices all = faster;
  all.insert(all.end(), slower.begin(), slower.end());
  race.add(expert_parallel(kEqual, all, ShareKind::kUniform));
  race.add(expert_parallel(kBySpeed, all, ShareKind::kSpeed));
  race.add(disaggregated(kApart, faster, slower));
}

void race_overall(RaceSetting& setting, const DevicePair& pair, bool long_rows, size_t count_faster,
                  size_t count_slower, bool homogeneous) {
  const Devices faster(count_faster, pair.faster);
  const Devices slower(count_slower, long_rows ? pair.slower_long : pair.slower_short);
  const int64_t row_tokens = long_rows ? 384 : 128;
  LayoutRace race = setting.race(compared(setting, 4, row_tokens, count_slower), 1);
  add_layouts(race, faster, slower);
  race.add(expert_parallel("faster alone", faster, ShareKind::kSpeed));
  race.add(expert_parallel("slower alone", slower, ShareKind::kSpeed));
  const std::string equal_faster = strf("EP on %zu faster", count_faster + count_slower);
  const std::string equal_slower = strf("EP on %zu slower", count_faster + count_slower);
  if (homogeneous) {
    const size_t all = count_faster + count_slower;
    race.add(expert_parallel(equal_faster, Devices(all, faster.front()), ShareKind::kSpeed));
    race.add(expert_parallel(equal_slower, Devices(all, slower.front()), ShareKind::kSpeed));
  }
  setting.run(race);
  const LayoutTimes zebra = race.times(kZebra);
  std::printf(
      "\nOverall, %s: %s, rows of %lld tokens (%s)\n"
      "                     s/step simulated    error  of zebra simulated      busy %% "
      "simulated\n",
      pair.name, names_of(race.layout(kZebra).devices).c_str(), (long long)row_tokens,
      describe(race.layout(kZebra)).c_str());
  for (const std::string& name : kLayouts) print_row(name, race.times(name), zebra, count_faster);
  const LayoutTimes alone = race.times("faster alone"), others = race.times("slower alone");
  print_ideal(together(alone, others), zebra);
  print_row("faster alone", alone, zebra, count_faster);
  print_row("slower alone", others, zebra, count_slower);
  if (homogeneous) {
    print_row(equal_faster, race.times(equal_faster), zebra, count_faster + count_slower);
    print_row(equal_slower, race.times(equal_slower), zebra, count_faster + count_slower);
  }
  const LayoutTimes plain = race.times(kPlain), by_speed = race.times(kBySpeed);
  std::printf("  Asym-EA %.2f x (simulated %.2f); zebra over EP by speed %.2f x (simulated %.2f)\n",
              plain.measured_s / zebra.measured_s, plain.simulated_s / zebra.simulated_s,
              by_speed.measured_s / zebra.measured_s, by_speed.simulated_s / zebra.simulated_s);
  note_choice(setting, race, kLayouts);
  finish(setting, race);
}

void a40_v100(RaceSetting& setting) {
  const size_t each = setting.tiny ? 1 : 2;
  race_overall(setting, kA40AndV100, false, each, each, !setting.tiny);
  if (!setting.tiny) race_overall(setting, kA40AndV100, true, 2, 2, true);
  std::printf(
      "  The paper: zebra 1.18 x EP (Ideal) on average and 1.38 at most; EP 0.82 of zebra at 4K, "
      "1 / 1.67 at 16K and\n  1 / 1.89 at 32K; DistEP 0.55; Asym-EA 1.14 to 1.20 x at 4K; busy "
      "shares at 8K 55/89 without and 83/78 with it;\n  4 faster devices 1 / 0.95, 4 slower ones "
      "1 / 1.66 on average.\n");
}

void l40s_t4(RaceSetting& setting) {
  for (const bool long_rows : {false, true}) {
    if (!setting.tiny || !long_rows) race_overall(setting, kL40sAndT4, long_rows, 1, 3, false);
  }
  std::printf("  The paper: zebra 1.17 x EP (Ideal), 2.89 x EP and 1.96 x DistEP on average.\n");
}

void ratios(RaceSetting& setting) {
  std::printf(
      "\nRatios, %s: throughput of zebra against EP (Ideal), simulated in parentheses, and "
      "without Asym-EA\n  rows   ",
      kA40AndV100.name);
  for (int slower = 1; slower <= 4; ++slower) std::printf("                  2:%d", slower);
  std::printf("\n");
  for (const bool long_rows : {false, true}) {
    const int64_t row_tokens = long_rows ? 384 : 128;
    std::printf("  %6s ", long_rows ? "long" : "short");
    for (size_t count = 1; count <= (setting.tiny ? 1 : 4); ++count) {
      const Devices faster(2, kA40AndV100.faster);
      const Devices slower(count, long_rows ? kA40AndV100.slower_long : kA40AndV100.slower_short);
      LayoutRace race = setting.race(compared(setting, 3, row_tokens, count), 1);
      race.add(race.plan_zebra(disaggregated(kZebra, faster, slower), true));
      race.add(race.plan_zebra(disaggregated(kPlain, faster, slower), false));
      race.add(expert_parallel("faster alone", faster, ShareKind::kSpeed));
      race.add(expert_parallel("slower alone", slower, ShareKind::kSpeed));
      race.run(std::min(2, setting.rounds), setting.most_repeats);
      const LayoutTimes ideal = together(race.times("faster alone"), race.times("slower alone"));
      const LayoutTimes zebra = race.times(kZebra), plain = race.times(kPlain);
      std::printf("  %4.2f (%4.2f) %4.2f (%4.2f)", ideal.measured_s / zebra.measured_s,
                  ideal.simulated_s / zebra.simulated_s, ideal.measured_s / plain.measured_s,
                  ideal.simulated_s / plain.simulated_s);
      finish(setting, race);
    }
    std::printf("\n");
  }
}

Layout with_order(const LayoutRace& race, Layout layout, std::string name,
                  const ZebraOrders& orders) {
  const RunShape shape = race.shape_of(layout);
  layout.order = std::make_shared<const ActionList>(join_orders(shape, orders, PassExtent::kStep));
  layout.name = std::move(name);
  return layout;
}

double clocked(LayoutRace& race, const Layout& layout) {
  const TimedActions timed =
      time_actions(zebra_actions(race.shape_of(layout), PassExtent::kStep), race.times_of(layout));
  return time_streams(timed.queue, kStepStreams).makespan_s;
}

// The vocabulary is as small as bytes allow: a head that takes long would hide how a step turns.
TrainedStep ordered_step(const RaceSetting& setting, int64_t row_tokens, int64_t layers,
                         int64_t chunks) {
  TrainedStep step = trained(setting, layers, row_tokens, chunks, 1);
  step.model.vocab_size = 272;
  return step;
}

// All orders up to three layers and chunks, timed. What is left of three of both is searched.
void print_orders(RaceSetting& setting, const Devices& faster, const Devices& slower,
                  int64_t row_tokens) {
  constexpr double kMostOrders = 4e6;
  std::printf("  layers  chunks           orders  Theorem 1  best lags  best order  by search\n");
  for (const int64_t layers : {1, 2, 3}) {
    for (const int64_t chunks : {2, 3}) {
      if (setting.tiny && (layers != 2 || chunks != 2)) continue;
      LayoutRace race = setting.race(ordered_step(setting, row_tokens, layers, chunks), 1);
      Layout layout = race.plan_zebra(disaggregated(kZebra, faster, slower), false);
      const double lags_s = clocked(race, layout);
      const auto last = static_cast<int32_t>(chunks - 1);
      layout.lags = {last, last, last};
      const double all_first_s = clocked(race, layout);
      const RunShape shape = race.shape_of(layout);
      const ActionTimes times = race.times_of(layout);
      const double orders = count_orders(shape.num_layers, chunks);
      std::string best = "-";
      if (orders <= kMostOrders) {
        best = strf("%.4f", search_orders(shape, times, 200).best.front().step_s);
      }
      const LeastTime least = least_time(shape, times, lags_s);
      std::printf("  %6lld  %6lld  %15.0f  %9.4f  %9.4f  %10s  %9.4f%s\n",
                  (long long)shape.num_layers, (long long)chunks, orders, all_first_s, lags_s,
                  best.c_str(), least.step_s, least.certain ? "" : " (cut short)");
      finish(setting, race);
    }
  }
}

void race_orders(RaceSetting& setting, const Devices& faster, const Devices& slower,
                 int64_t row_tokens) {
  std::printf("\nOrders of a step on %s, rows of %lld tokens: seconds by the clock of actions\n",
              (names_of(faster) + "," + names_of(slower)).c_str(), (long long)row_tokens);
  print_orders(setting, faster, slower, row_tokens);
  const int64_t chunks = setting.tiny ? 2 : 3;
  LayoutRace race = setting.race(ordered_step(setting, row_tokens, 2, chunks), 1);
  Layout layout = race.plan_zebra(disaggregated("best lags", faster, slower), false);
  const Lags best_lags = layout.lags;
  std::vector<std::pair<std::string, double>> names;
  const auto add = [&](std::string name) {
    layout.name = std::move(name);
    names.emplace_back(layout.name, clocked(race, layout));
    race.add(layout);
  };
  add("best lags");
  const auto last = static_cast<int32_t>(chunks - 1);
  for (int32_t lag = 0; lag < last; ++lag) {
    layout.lags = {lag, lag, lag};
    add(strf("lags %d %d %d", lag, lag, lag));
  }
  layout.lags = {last, last, last};
  add("Theorem 1");
  const double theorem_s = names.back().second;
  const OrderSearch found = search_orders(race.shape_of(layout), race.times_of(layout), 200);
  for (size_t i = 0; i < std::min<size_t>(setting.tiny ? 1 : 5, found.best.size()); ++i) {
    Layout other = with_order(race, layout, strf("order %zu", i + 1), found.best[i].orders);
    names.emplace_back(other.name, found.best[i].step_s);
    race.add(other);
  }
  race.run(setting.tiny ? 1 : std::max(9, setting.rounds), setting.most_repeats);
  std::printf(
      "Executed, 2 layers of %lld chunks, %lld orders timed; best lags %d %d %d\n"
      "                     s/step simulated  clocked  of Theorem 1  simulated  clocked\n",
      (long long)chunks, (long long)found.orders, best_lags.head, best_lags.attention,
      best_lags.expert);
  const LayoutTimes theorem = race.times("Theorem 1");
  for (const auto& [name, clocked_s] : names) {
    const LayoutTimes t = race.times(name);
    std::printf("  %-18s %8.4f %9.4f %8.4f  %12.3f  %9.3f %8.3f\n", name.c_str(), t.measured_s,
                t.simulated_s, clocked_s, race.ratio(name, "Theorem 1"),
                t.simulated_s / theorem.simulated_s, clocked_s / theorem_s);
  }
  finish(setting, race);
}

// Experts slower than attention, where Theorem 1's order is among the best that there are, and
// attention some one and a half times as slow as experts, where those are better that turn sooner:
// while the head takes less time than experts, and so with long rows.
void orders(RaceSetting& setting) {
  race_orders(setting, {{6, 6}}, {{24, 12}}, 128);
  if (!setting.tiny) race_orders(setting, {{6, 9}}, {{6, 6}}, 512);
}

Layout draw_zebra(int number, const TrainedStep& step, std::mt19937& random) {
  const auto pick = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const int64_t count = 2 + number % 3, attend = 1 + pick(std::min<int64_t>(2, count - 1));
  Devices faster, slower;
  for (int64_t d = 0; d < count; ++d) {
    const double factor = 2 * static_cast<double>(count) * (1 + 0.5 * static_cast<double>(pick(3)));
    if (d < attend) {
      faster.push_back({factor, factor});
    } else {
      slower.push_back({factor, factor * (1 + 0.5 * static_cast<double>(pick(3)))});
    }
  }
  Layout layout = disaggregated("drawn", faster, slower);
  layout.chunks = step.chunks;
  const int64_t most = layout.chunks;
  layout.lags.head = static_cast<int32_t>(pick(most));
  layout.lags.attention = static_cast<int32_t>(pick(most));
  const int64_t ahead = layout.lags.head + layout.lags.attention + 1;
  layout.lags.expert = static_cast<int32_t>(pick(std::min(most, ahead)));
  layout.offloaded.clear();
  const int64_t kept = pick(2) == 0 ? 0 : pick(9);
  for (int64_t l = 0; l < step.model.layers; ++l) layout.offloaded.push_back(pick(kept + 1));
  return layout;
}

void errors(RaceSetting& setting) {
  const int count = setting.tiny ? 1 : 44;
  std::printf("\nErrors of simulated zebra steps\n");
  std::mt19937 random(1);
  for (int i = 0; i < count; ++i) {
    const TrainedStep step = trained(setting, 2, 128, 2 + i % 3, 2);
    Layout layout = draw_zebra(i, step, random);
    LayoutRace race = setting.race(step, 3);
    if (i % 2 == 1 && !setting.tiny) {
      layout.wire = race.wire_for(layout, 0.3 + 0.15 * static_cast<double>(random() % 5));
    }
    race.add(layout);
    setting.run(race);
    const LayoutTimes t = race.times("drawn");
    std::printf(
        "  %2d %s, %lld attend, %lld chunks, %s: %.3f s, simulated %.3f s, error %+.1f "
        "%%; a wire works %.0f %%\n",
        i, names_of(layout.devices).c_str(), (long long)layout.attention_devices,
        (long long)layout.chunks, describe(layout).c_str(), t.measured_s, t.simulated_s,
        100 * t.error(), 100 * t.wire_share);
    setting.errors.push_back(std::abs(t.error()));
    finish(setting, race);
  }
}

// Two sets of devices beside those of the pairs.
void choice(RaceSetting& setting) {
  std::printf("\nChoice of a layout\n");
  const auto race_set = [&](const Devices& faster, const Devices& slower) {
    LayoutRace race = setting.race(trained(setting, 2, 128), 3);
    add_layouts(race, faster, slower);
    setting.run(race);
    std::printf("  %s\n", names_of(race.layout(kZebra).devices).c_str());
    for (const std::string& name : kLayouts) {
      const LayoutTimes t = race.times(name);
      std::printf("    %-18s %.3f s, simulated %.3f s, forecast %.3f s\n", name.c_str(),
                  t.measured_s, t.simulated_s, t.forecast_s);
    }
    note_choice(setting, race, kLayouts);
    finish(setting, race);
  };
  race_set({{4, 4}}, {{6, 12}});
  race_set({{8, 8}, {8, 8}}, {{12, 8}});
}

double spread(const std::vector<double>& seconds) {
  const double average = mean(seconds, 0, seconds.size());
  double square = 0;
  for (const double s : seconds) square += (s - average) * (s - average);
  return std::sqrt(square / static_cast<double>(seconds.size() - 1)) / average;
}

void spread_of_steps(RaceSetting& setting) {
  const Devices faster(1, kA40AndV100.faster);
  const Devices slower(1, kA40AndV100.slower_short);
  const int steps = setting.tiny ? 3 : 50;
  LayoutRace race = setting.race(trained(setting, 2, 128), steps);
  race.add(race.plan_zebra(disaggregated(kZebra, faster, slower), true));
  race.add(expert_parallel(kBySpeed, {faster.front(), slower.front()}, ShareKind::kSpeed));
  race.add(expert_parallel(kEqual, {faster.front(), slower.front()}, ShareKind::kUniform));
  std::printf(
      "\nSpread of %d steps of shifting, skewed routing on %s: standard deviation over "
      "mean\n                     s/step simulated   spread simulated\n",
      steps, names_of(race.layout(kZebra).devices).c_str());
  for (const char* name : {kZebra, kBySpeed, kEqual}) race.draw_for(name, shifting_batches());
  race.run(1, setting.most_repeats);
  for (const char* name : {kZebra, kBySpeed, kEqual}) {
    const LayoutTimes t = race.times(name);
    std::printf("  %-18s %8.3f %9.3f  %7.3f %9.3f\n", name, t.measured_s, t.simulated_s,
                spread(race.step_seconds(name)), spread(race.simulated_seconds(name)));
  }
  finish(setting, race);
}

const RaceTable kTables[] = {{"a40_v100", a40_v100},     {"l40s_t4", l40s_t4}, {"ratios", ratios},
                             {"orders", orders},         {"errors", errors},   {"choice", choice},
                             {"spread", spread_of_steps}};

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  return pagoda::print_tables(argc, argv, "zebra_tables", pagoda::kTables);
}
