// HeterMoE's tables, executed: zebra and what the paper compares it with, trained on CPU devices
// that are slowed by kind of work as its GPUs differ, each beside the time that the simulator has
// for it. Not installed.
//
//   zebra_tables [DIR] [--only overall,ratios,orders,errors,choice,spread] [--rounds N]
//                [--repeats N] [--slowness X] [--tiny]
//                                       pages go to a new folder in DIR, removed at the end
//
//   overall  zebra with and without Asym-EA, EP in equal shares and by speed, EP (Ideal), which is
//            the sum of two runs on each kind alone, and DistEP, at short and long rows (Figures 7,
//            8, 11 and 12, Table 3)
//   ratios   two faster devices and one to four slower ones (Figure 10)
//   orders   all orders of a step timed; Theorem 1's, the five best and the best lags executed
//   errors   simulated against executed zebra on drawn devices, lags, kept experts and wires
//   choice   the layout that the simulator would choose against the fastest executed one
//   spread   steps of shifting, skewed routing: standard deviation over mean
//
// What is compared takes turns in the same rounds, and the figures are medians over them
// (tools/bench/zebra_runs.h). A round while others used the cores is made again, --repeats times at
// most. --slowness multiplies how much devices are slowed: with less than 1 more of the cores are
// busy, and a step takes less time. --tiny shows in minutes that the program works; its figures say
// nothing.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "bench/race/timing.h"
#include "tools/bench/order_search.h"
#include "tools/bench/zebra_runs.h"

namespace pagoda {
namespace {

using Devices = std::vector<Throttle>;

// A pair of GPUs as the paper's, by how much slower they are at experts and at the rest.
struct Pair {
  const char* name;
  Throttle faster, slower_short, slower_long;  // at short rows, at long ones
};
constexpr Pair kA40AndV100 = {"like A40 and V100", {8, 8}, {10, 16}, {10, 30}};
constexpr Pair kL40sAndT4 = {"like L40S and T4", {4, 4}, {28, 40}, {28, 54}};

// What the run asks for.
struct Setting {
  std::string directory;
  std::unique_ptr<Storage> storage;
  int rounds = 3;
  double slowness = 1;
  bool tiny = false;
  int races = 0, repeats = 0, most_repeats = 3;  // repeats: of a round
  // How much slower than the fastest layout those were that the simulator would choose.
  std::vector<double> regrets = {};

  Throttle slowed(const Throttle& by) const { return {slowness * by.experts, slowness * by.rest}; }
  std::string folder() { return directory + strf("/race-%d", ++races); }
};

TrainedStep trained(const Setting& setting, int64_t layers, int64_t row_tokens, int64_t chunks = 4,
                    int64_t width = 2) {
  const int64_t d = setting.tiny ? 128 : 256;
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
constexpr const char* kLayouts[] = {kZebra, kPlain, kEqual, kBySpeed, kApart};

// The layouts of a set of devices.
void add_layouts(LayoutRace& race, const Devices& faster, const Devices& slower) {
  race.add(race.plan_zebra(kZebra, faster, slower, true));
  race.add(race.plan_zebra(kPlain, faster, slower, false));
  Devices all = faster;
  all.insert(all.end(), slower.begin(), slower.end());
  race.add(expert_parallel(kEqual, all, ShareKind::kUniform));
  race.add(expert_parallel(kBySpeed, all, ShareKind::kSpeed));
  race.add(disaggregated(kApart, faster, slower));
}

// The layout that a planner would choose, which knows no routing, against the fastest.
void note_choice(Setting& setting, const LayoutRace& race) {
  const auto least = [&](double LayoutTimes::*of) {
    return *std::min_element(
        std::begin(kLayouts), std::end(kLayouts),
        [&](const char* a, const char* b) { return race.times(a).*of < race.times(b).*of; });
  };
  const char* chosen = least(&LayoutTimes::forecast_s);
  const char* fastest = least(&LayoutTimes::measured_s);
  const double regret = race.times(chosen).measured_s / race.times(fastest).measured_s - 1;
  std::printf("  forecast to be the fastest of five: %s; it was %s: %.1f %% slower\n", chosen,
              fastest, 100 * regret);
  setting.regrets.push_back(regret);
}

void finish(Setting& setting, const LayoutRace& race) {
  setting.repeats += race.repeats();
  std::fflush(stdout);
}

void race_overall(Setting& setting, const Pair& pair, bool long_rows, size_t count_faster,
                  size_t count_slower, bool homogeneous) {
  const Devices faster(count_faster, setting.slowed(pair.faster));
  const Devices slower(count_slower,
                       setting.slowed(long_rows ? pair.slower_long : pair.slower_short));
  const int64_t row_tokens = long_rows ? 384 : 128;
  LayoutRace race(setting.folder(), setting.storage.get(), trained(setting, 3, row_tokens), 1);
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
  race.run(setting.rounds, setting.most_repeats);
  const LayoutTimes zebra = race.times(kZebra);
  std::printf(
      "\nOverall, %s: %s, rows of %lld tokens (%s)\n"
      "                     s/step simulated    error  of zebra simulated      busy %% "
      "simulated\n",
      pair.name, names_of(race.layout(kZebra).devices).c_str(), (long long)row_tokens,
      describe(race.layout(kZebra)).c_str());
  for (const char* name : kLayouts) print_row(name, race.times(name), zebra, count_faster);
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
  note_choice(setting, race);
  finish(setting, race);
}

void overall(Setting& setting) {
  race_overall(setting, kA40AndV100, false, 2, 2, true);
  if (setting.tiny) return;
  race_overall(setting, kA40AndV100, true, 2, 2, true);
  race_overall(setting, kL40sAndT4, false, 1, 3, false);
  race_overall(setting, kL40sAndT4, true, 1, 3, false);
  std::printf(
      "  The paper: zebra 1.18 x EP (Ideal) on average and 1.38 at most (A40 + V100), 1.17 "
      "(L40S + T4); EP 0.82 of zebra at\n  4K, 1 / 1.67 at 16K and 1 / 1.89 at 32K, 1 / "
      "2.89 (L40S + T4); DistEP 0.55, 1 / 1.96 (L40S + T4); Asym-EA 1.14 to 1.20 x\n  at "
      "4K; busy shares at 8K 55/89 without and 83/78 with it; 4 faster devices 1 / 0.95, 4 "
      "slower ones 1 / 1.66 on average.\n");
}

void ratios(Setting& setting) {
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
      const Devices faster(2, setting.slowed(kA40AndV100.faster));
      const Devices slower(
          count, setting.slowed(long_rows ? kA40AndV100.slower_long : kA40AndV100.slower_short));
      LayoutRace race(setting.folder(), setting.storage.get(), trained(setting, 2, row_tokens), 1);
      race.add(race.plan_zebra(kZebra, faster, slower, true));
      race.add(race.plan_zebra(kPlain, faster, slower, false));
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

// All orders up to three layers and chunks, timed. What is left of three of both is searched.
void print_orders(Setting& setting, const Devices& faster, const Devices& slower) {
  constexpr double kMostOrders = 4e6;
  std::printf("  layers  chunks           orders  Theorem 1  best lags  best order  by search\n");
  for (const int64_t layers : {1, 2, 3}) {
    for (const int64_t chunks : {2, 3}) {
      if (setting.tiny && (layers != 2 || chunks != 2)) continue;
      LayoutRace race(setting.folder(), setting.storage.get(),
                      trained(setting, layers, 128, chunks, 1), 1);
      Layout layout = race.plan_zebra(kZebra, faster, slower, false);
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

void orders(Setting& setting) {
  // Experts are slower than attention here.
  const Devices faster = {setting.slowed({6, 6})}, slower = {setting.slowed({12, 12})};
  std::printf("\nOrders of a step on %s: seconds by the clock of actions\n",
              (names_of(faster) + "," + names_of(slower)).c_str());
  print_orders(setting, faster, slower);
  const int64_t chunks = setting.tiny ? 2 : 3;
  LayoutRace race(setting.folder(), setting.storage.get(), trained(setting, 2, 128, chunks, 1), 1);
  Layout layout = race.plan_zebra("best lags", faster, slower, false);
  const Lags best_lags = layout.lags;
  std::vector<std::pair<std::string, double>> names = {{layout.name, clocked(race, layout)}};
  race.add(layout);
  const auto last = static_cast<int32_t>(chunks - 1);
  layout.lags = {last, last, last};
  layout.name = "Theorem 1";
  names.emplace_back(layout.name, clocked(race, layout));
  race.add(layout);
  const OrderSearch found = search_orders(race.shape_of(layout), race.times_of(layout), 200);
  for (size_t i = 0; i < std::min<size_t>(5, found.best.size()); ++i) {
    Layout other = with_order(race, layout, strf("order %zu", i + 1), found.best[i].orders);
    names.emplace_back(other.name, found.best[i].step_s);
    race.add(other);
  }
  race.run(setting.tiny ? 1 : std::max(9, setting.rounds), setting.most_repeats);
  std::printf(
      "Executed, 2 layers of %lld chunks, %lld orders timed; best lags %d %d %d\n"
      "                     s/step simulated  clocked  of Theorem 1  simulated\n",
      (long long)chunks, (long long)found.orders, best_lags.head, best_lags.attention,
      best_lags.expert);
  const LayoutTimes theorem = race.times("Theorem 1");
  for (const auto& [name, clocked_s] : names) {
    const LayoutTimes t = race.times(name);
    std::printf("  %-18s %8.4f %9.4f %8.4f  %12.3f  %9.3f\n", name.c_str(), t.measured_s,
                t.simulated_s, clocked_s, t.measured_s / theorem.measured_s,
                t.simulated_s / theorem.simulated_s);
  }
  finish(setting, race);
}

void print_errors(const char* what, const std::vector<double>& errors) {
  std::printf("%s: median %.1f %%, ninth decile %.1f %%, worst %.1f %%\n", what,
              100 * quantile(errors, 0.5), 100 * quantile(errors, 0.9),
              100 * *std::max_element(errors.begin(), errors.end()));
}

Layout draw_zebra(const Setting& setting, int number, const TrainedStep& step,
                  std::mt19937& random) {
  const auto pick = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  const int64_t count = 2 + number % 3, attend = 1 + pick(std::min<int64_t>(2, count - 1));
  Devices faster, slower;
  for (int64_t d = 0; d < count; ++d) {
    const double factor = 2 * static_cast<double>(count) * (1 + 0.5 * static_cast<double>(pick(3)));
    if (d < attend) {
      faster.push_back(setting.slowed({factor, factor}));
    } else {
      slower.push_back(setting.slowed({factor, factor * (1 + 0.5 * static_cast<double>(pick(3)))}));
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
  if (number % 2 == 1 && !setting.tiny) layout.exchange = 0.2 + 0.1 * static_cast<double>(pick(5));
  return layout;
}

void errors(Setting& setting) {
  const int count = setting.tiny ? 2 : 44;
  std::printf("\nErrors of simulated zebra steps\n");
  std::mt19937 random(1);
  std::vector<double> sizes;
  for (int i = 0; i < count; ++i) {
    const TrainedStep step = trained(setting, 2, 128, 2 + i % 3, 2);
    const Layout layout = draw_zebra(setting, i, step, random);
    LayoutRace race(setting.folder(), setting.storage.get(), step, 3);
    race.add(layout);
    race.run(setting.rounds, setting.most_repeats);
    const LayoutTimes t = race.times("drawn");
    std::printf(
        "  %2d %s, %lld attend, %lld chunks, %s: %.3f s, simulated %.3f s, error %+.1f "
        "%%; a wire works %.0f %%\n",
        i, names_of(layout.devices).c_str(), (long long)layout.attention_devices,
        (long long)layout.chunks, describe(layout).c_str(), t.measured_s, t.simulated_s,
        100 * t.error(), 100 * t.wire_share);
    sizes.push_back(std::abs(t.error()));
    finish(setting, race);
  }
  print_errors("sizes of the errors", sizes);
}

// Two sets of devices beside those of `overall`.
void choice(Setting& setting) {
  std::printf("\nChoice of a layout\n");
  const auto race_set = [&](const Devices& faster, const Devices& slower) {
    LayoutRace race(setting.folder(), setting.storage.get(), trained(setting, 2, 128), 1);
    add_layouts(race, faster, slower);
    race.run(setting.rounds, setting.most_repeats);
    std::printf("  %s\n", names_of(race.layout(kZebra).devices).c_str());
    for (const char* name : kLayouts) {
      const LayoutTimes t = race.times(name);
      std::printf("    %-18s %.3f s, forecast %.3f s\n", name, t.measured_s, t.forecast_s);
    }
    note_choice(setting, race);
    finish(setting, race);
  };
  const Throttle eight = setting.slowed({8, 8});
  race_set({setting.slowed({4, 4})}, {setting.slowed({6, 12})});
  race_set({eight, eight}, {eight});
  const double worst = *std::max_element(setting.regrets.begin(), setting.regrets.end());
  std::printf(
      "%zu sets of devices, five layouts each: the chosen one was at most %.1f %% slower "
      "than the fastest\n",
      setting.regrets.size(), 100 * worst);
}

double spread(const std::vector<double>& seconds) {
  const double average = mean(seconds, 0, seconds.size());
  double square = 0;
  for (const double s : seconds) square += (s - average) * (s - average);
  return std::sqrt(square / static_cast<double>(seconds.size() - 1)) / average;
}

void spread_of_steps(Setting& setting) {
  const Devices faster(1, setting.slowed(kA40AndV100.faster));
  const Devices slower(1, setting.slowed(kA40AndV100.slower_short));
  const int steps = setting.tiny ? 3 : 50;
  LayoutRace race(setting.folder(), setting.storage.get(), trained(setting, 2, 128), steps);
  race.add(race.plan_zebra(kZebra, faster, slower, true));
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

constexpr std::pair<const char*, void (*)(Setting&)> kTables[] = {
    {"overall", overall}, {"ratios", ratios}, {"orders", orders},
    {"errors", errors},   {"choice", choice}, {"spread", spread_of_steps}};

int run(Setting& setting, const std::string& only) {
  for (const auto& [name, table] : kTables) {
    if (!only.empty() && ("," + only + ",").find(strf(",%s,", name)) == std::string::npos) continue;
    const int64_t began_us = monotonic_us();
    table(setting);
    std::printf("%s took %.0f s\n", name, 1e-6 * static_cast<double>(monotonic_us() - began_us));
    std::fflush(stdout);
  }
  std::printf("\n%d rounds were repeated since the cores were not to be had\n", setting.repeats);
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  pagoda::Setting setting;
  std::string parent = std::filesystem::temp_directory_path(), only;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      setting.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--repeats") == 0 && i + 1 < argc) {
      setting.most_repeats = std::max(0, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--slowness") == 0 && i + 1 < argc) {
      setting.slowness = std::max(0.1, std::atof(argv[++i]));
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = argv[++i];
    } else if (std::strcmp(argv[i], "--tiny") == 0) {
      setting.tiny = true;
      setting.rounds = 1;
      setting.most_repeats = 0;
    } else if (argv[i][0] != '-') {
      parent = argv[i];
    } else {
      std::fprintf(stderr,
                   "zebra_tables: usage: zebra_tables [DIR] [--only TABLES] [--rounds N] "
                   "[--repeats N] [--slowness X] [--tiny]\n");
      return 2;
    }
  }
  setting.directory = parent + pagoda::strf("/zebra_tables-%d", static_cast<int>(getpid()));
  CHECK(std::filesystem::create_directories(setting.directory), "%s exists",
        setting.directory.c_str());
  setting.storage = pagoda::need(pagoda::open_storage(pagoda::IoKind::kAuto, setting.directory));
  const int code = pagoda::run(setting, only);
  setting.storage.reset();
  std::filesystem::remove_all(setting.directory);
  return code;
}
