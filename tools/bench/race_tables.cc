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
    std::printf(
        "%zu sets of devices: the layout forecast to be the fastest was at most %.1f %% slower "
        "than the one that was\n",
        setting.regrets.size(), 100 * std::ranges::max(setting.regrets));
  }
  if (!setting.searched.empty()) {
    std::printf("of %zu of these the search's layout was at most %.1f %% slower\n",
                setting.searched.size(), 100 * std::ranges::max(setting.searched));
  }
  if (setting.errors.empty()) return;
  std::printf("sizes of %zu errors: median %.1f %%, ninth decile %.1f %%, worst %.1f %%\n",
              setting.errors.size(), 100 * quantile(setting.errors, 0.5),
              100 * quantile(setting.errors, 0.9), 100 * std::ranges::max(setting.errors));
}

}  // namespace

namespace {

// Whether both are the same run: Asym-EA may find that no expert is to stay.
bool alike(const Layout& a, const Layout& b) {
  return names_of(a.devices) == names_of(b.devices) && a.stages == b.stages &&
         a.copies == b.copies && a.pipeline == b.pipeline && a.zebra == b.zebra &&
         a.attention_devices == b.attention_devices && a.chunks == b.chunks &&
         a.shares == b.shares && a.lags == b.lags && a.offloaded == b.offloaded &&
         a.shards == b.shards && a.stage_layers == b.stage_layers && a.order == b.order;
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
  std::printf("  forecast to be the fastest of %zu: %s; it was %s: %.1f %% slower\n",
              layouts.size(), chosen.c_str(), fastest.c_str(), 100 * setting.regrets.back());
  if (found.empty()) return;
  setting.searched.push_back(seconds(found, &LayoutTimes::measured_s) / least_s - 1);
  std::printf("  %s was %.1f %% slower than the fastest\n", found.c_str(),
              100 * setting.searched.back());
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
