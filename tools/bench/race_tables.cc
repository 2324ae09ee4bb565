#include "tools/bench/race_tables.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "base/bytes.h"
#include "base/clock.h"
#include "bench/race/timing.h"

namespace pagoda {
namespace {

struct Asked {
  RaceSetting setting;
  std::string parent = std::filesystem::temp_directory_path(), only;

  bool wants(const RaceTable& table) const {
    return only.empty() || ("," + only + ",").find(strf(",%s,", table.name)) != std::string::npos;
  }
};

std::optional<Asked> read_arguments(int argc, char** argv) {
  Asked asked;
  RaceSetting& setting = asked.setting;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      setting.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--repeats") == 0 && i + 1 < argc) {
      setting.most_repeats = std::max(0, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--hidden") == 0 && i + 1 < argc) {
      setting.hidden_size = 64 * std::max(1, std::atoi(argv[++i]) / 64);
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      asked.only = argv[++i];
    } else if (std::strcmp(argv[i], "--tiny") == 0) {
      setting.tiny = true;
      setting.rounds = 1;
      setting.hidden_size = 64;
      setting.most_repeats = 0;
    } else if (argv[i][0] != '-') {
      asked.parent = argv[i];
    } else {
      return std::nullopt;
    }
  }
  return asked;
}

// What is asked of simulated steps: how far from executed ones they are, of so many at least, and
// how much slower than the fastest the layout is that they have one choose.
constexpr double kMostMedian = 0.05, kMostDecile = 0.10, kMostRegret = 0.05;
constexpr size_t kLeastErrors = 40;

std::string held(double value, double most) {
  return strf("%s (<= %.0f %%)", value <= most ? "held" : "NOT HELD", 100 * most);
}

// "median 1.8 %, held (<= 5 %), ninth decile 7.3 %, held (<= 10 %), worst 10.2 %"
std::string describe_errors(const std::vector<double>& errors) {
  const double median = quantile(errors, 0.5), decile = quantile(errors, 0.9);
  return strf("median %.1f %%, %s, ninth decile %.1f %%, %s, worst %.1f %%", 100 * median,
              held(median, kMostMedian).c_str(), 100 * decile, held(decile, kMostDecile).c_str(),
              100 * std::ranges::max(errors));
}

void print_summary(const RaceSetting& setting) {
  std::printf("\n%d rounds were repeated since the cores were not to be had\n", setting.repeats);
  if (!setting.slowness.empty()) {
    std::printf(
        "%zu timings: attention took %.2f to %.2f times what it did in the same round's run of "
        "expert parallelism, nine in ten up to %.2f\n",
        setting.slowness.size(), std::ranges::min(setting.slowness),
        std::ranges::max(setting.slowness), quantile(setting.slowness, 0.9));
  }
  if (!setting.regrets.empty()) {
    const double most = std::ranges::max(setting.regrets);
    std::printf(
        "%zu sets of devices: the layout forecast to be the fastest was at most %.1f %% slower "
        "than the one that was, %s\n",
        setting.regrets.size(), 100 * most, held(most, kMostRegret).c_str());
  }
  if (!setting.searched.empty()) {
    const double most = std::ranges::max(setting.searched);
    std::printf("of %zu of these the search's layout was at most %.1f %% slower, %s\n",
                setting.searched.size(), 100 * most, held(most, kMostRegret).c_str());
  }
  if (setting.errors.empty()) return;
  const size_t count = setting.errors.size();
  std::printf("sizes of %zu errors%s: %s\n", count,
              count < kLeastErrors ? strf(", too few (>= %zu)", kLeastErrors).c_str() : "",
              describe_errors(setting.errors).c_str());
}

}  // namespace

namespace {

// Whether both are the same run: Asym-EA may find that no expert is to stay. Lags and experts that
// stay are zebra's alone, and the order is one of stages.
bool alike(const Layout& a, const Layout& b) {
  const bool as_zebra = !a.zebra || (a.lags == b.lags && a.offloaded == b.offloaded);
  const bool as_pipeline = a.stages == 1 || a.pipeline == b.pipeline;
  return names_of(a.devices) == names_of(b.devices) && a.stages == b.stages &&
         a.copies == b.copies && a.zebra == b.zebra && as_zebra && as_pipeline &&
         a.attention_devices == b.attention_devices && a.chunks == b.chunks &&
         a.shares == b.shares && a.shards == b.shards && a.stage_layers == b.stage_layers &&
         a.order == b.order;
}

}  // namespace

void note_choice(RaceSetting& setting, const LayoutRace& race, std::span<const std::string> layouts,
                 const std::string& found) {
  // The mean of all that are the same run.
  const auto seconds = [&](const std::string& name, double LayoutTimes::*of) {
    double sum_s = 0, count = 0;
    for (const std::string& other : layouts) {
      if (!alike(race.layout(name), race.layout(other))) continue;
      sum_s += race.times(other).*of;
      ++count;
    }
    return sum_s / count;
  };
  const auto least = [&](double LayoutTimes::*of) {
    return *std::ranges::min_element(layouts, {},
                                     [&](const std::string& name) { return seconds(name, of); });
  };
  const std::string fastest = least(&LayoutTimes::measured_s);
  const std::string chosen = least(&LayoutTimes::forecast_s);
  const double least_s = seconds(fastest, &LayoutTimes::measured_s);
  setting.regrets.push_back(seconds(chosen, &LayoutTimes::measured_s) / least_s - 1);
  std::printf("  forecast to be the fastest of %zu: %s; it was %s: %.1f %% slower, %s\n",
              layouts.size(), chosen.c_str(), fastest.c_str(), 100 * setting.regrets.back(),
              held(setting.regrets.back(), kMostRegret).c_str());
  if (found.empty()) return;
  const double found_s = seconds(found, &LayoutTimes::measured_s);
  setting.searched.push_back(found_s / least_s - 1);
  std::string same;
  for (const std::string& other : layouts) {
    if (other != found && alike(race.layout(found), race.layout(other))) same = ", as " + other;
  }
  std::printf("  the search's choice is %s%s\n", race.layout(found).settings.c_str(), same.c_str());
  std::printf("  it took %.3f s, the fastest executed one, %s, %.3f s: %.1f %% slower, %s\n",
              found_s, fastest.c_str(), least_s, 100 * setting.searched.back(),
              held(setting.searched.back(), kMostRegret).c_str());
}

void note_errors(RaceSetting& setting, const LayoutRace& race,
                 std::span<const std::string> layouts) {
  std::vector<double> errors;
  for (auto name = layouts.begin(); name != layouts.end(); ++name) {
    const bool again = std::any_of(layouts.begin(), name, [&](const std::string& before) {
      return alike(race.layout(before), race.layout(*name));
    });
    if (!again) errors.push_back(std::abs(race.times(*name).error()));
  }
  std::printf("  sizes of %zu errors: %s\n", errors.size(), describe_errors(errors).c_str());
  setting.errors.insert(setting.errors.end(), errors.begin(), errors.end());
}

void finish(RaceSetting& setting, const LayoutRace& race) {
  setting.repeats += race.repeats();
  const std::vector<double>& slowness = race.slowness();
  setting.slowness.insert(setting.slowness.end(), slowness.begin(), slowness.end());
  std::fflush(stdout);
}

int print_tables(int argc, char** argv, const char* program, std::span<const RaceTable> tables) {
  std::optional<Asked> asked = read_arguments(argc, argv);
  if (!asked) {
    std::fprintf(stderr,
                 "%s: usage: %s [DIR] [--only TABLES] [--rounds N] [--repeats N] [--hidden D] "
                 "[--tiny]\n",
                 program, program);
    return 2;
  }
  RaceSetting& setting = asked->setting;
  setting.directory = asked->parent + strf("/%s-%d", program, static_cast<int>(getpid()));
  CHECK(std::filesystem::create_directories(setting.directory), "%s exists",
        setting.directory.c_str());
  setting.storage = need(open_storage(IoKind::kAuto, setting.directory));
  for (const RaceTable& table : tables) {
    if (!asked->wants(table)) continue;
    const int64_t began_us = monotonic_us();
    table.print(setting);
    std::printf("%s took %.0f s\n", table.name,
                1e-6 * static_cast<double>(monotonic_us() - began_us));
    std::fflush(stdout);
  }
  print_summary(setting);
  setting.storage.reset();
  std::filesystem::remove_all(setting.directory);
  return 0;
}

}  // namespace pagoda
