// Searches of a machine's settings: on small runs a search finds what simulating every combination
// finds, for any budgets; combinations do not fit exactly if their least memory is above the
// budgets; and the message when none fits.
#include "preview/settings_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <random>

#include "base/bytes.h"
#include "cli/sheet_file.h"
#include "preview/plan_changes.h"
#include "tests/preview/published_configs.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

ModelSizes tiny_model() { return parse_model_sizes(kTinyConfig, "tiny").take(); }

// 12 rows a step: parts of 12, 6, 3 and 1 are tried, and 4 where it is the run's own.
constexpr int64_t kRow = 32;
RunConfig tiny_run(int64_t own_rows) {
  RunConfig config;
  config.data.sequence_len = kRow;
  config.train.tokens_per_step = 12 * kRow;
  config.train.micro_batch_tokens = own_rows * kRow;
  config.train.save_steps = 0;
  return config;
}

struct Exhaustive {
  int64_t tried = 0, fit = 0;
  double best_s = std::numeric_limits<double>::infinity();
  RunConfig best;
};

// The order is that of the search, so that among equal times the same one is first.
Exhaustive simulate_all(const ModelSizes& model, const RunConfig& config, const MachineSheet& sheet,
                        const std::vector<int64_t>& rows,
                        const std::vector<RunConfig::Memory>& divisions) {
  Exhaustive all;
  for (const int64_t r : rows) {
    for (int format = 0; format < 3; ++format) {
      for (const ClipKind clip : {ClipKind::kGlobal, ClipKind::kPerExpert}) {
        for (const RunConfig::Memory& memory : divisions) {
          RunConfig tried = config;
          tried.train.micro_batch_tokens = r * kRow;
          tried.optim.state = static_cast<StateFormat>(format);
          tried.optim.clip = clip;
          tried.memory = memory;
          ++all.tried;
          const RunForecast plan = forecast_run(model, tried, sheet, kFinePlan).take();
          const bool room = plan.device_bytes >= plan.least.device_bytes &&
                            plan.host_bytes >= plan.least.host_bytes;
          EXPECT_EQ(plan.step.has_value(), room);
          if (!room) continue;
          ++all.fit;
          if (plan.step->step_s() >= all.best_s) continue;
          all.best_s = plan.step->step_s();
          all.best = tried;
        }
      }
    }
  }
  return all;
}

void expect_best(const SettingsSearch& search, const Exhaustive& all) {
  EXPECT_EQ(search.tried, all.tried);
  ASSERT_EQ(static_cast<int64_t>(search.runs.size()), all.fit);
  EXPECT_EQ(search.fits.ok(), all.fit > 0);
  if (all.fit == 0) return;
  const SearchedRun& best = search.runs.front();
  EXPECT_EQ(best.step_s, all.best_s) << best.text();
  EXPECT_EQ(best.config.train.micro_batch_tokens, all.best.train.micro_batch_tokens);
  EXPECT_EQ(best.config.optim.state, all.best.optim.state);
  EXPECT_EQ(best.config.optim.clip, all.best.optim.clip);
  EXPECT_EQ(best.config.memory.device, all.best.memory.device);
  EXPECT_TRUE(std::is_sorted(
      search.runs.begin(), search.runs.end(),
      [](const SearchedRun& a, const SearchedRun& b) { return a.step_s < b.step_s; }));
}

// Budgets from too small for anything to enough for all.
TEST(SettingsSearch, FindsWhatSimulatingEverythingFinds) {
  const ModelSizes model = tiny_model();
  int none = 0, some = 0, all_fit = 0, own = 0;
  for (uint32_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const MachineSheet sheet = machine(seed % 2 == 0 ? "gpu-24gb" : "cpu-2-cores");
    const bool has_own = seed % 4 < 2;
    RunConfig config = tiny_run(has_own ? 4 : 12);
    const std::vector<int64_t> rows =
        has_own ? std::vector<int64_t>{12, 6, 4, 3, 1} : std::vector<int64_t>{12, 6, 3, 1};
    RunConfig large = config;
    large.train.micro_batch_tokens = 12 * kRow;
    RunConfig small = config;
    small.train.micro_batch_tokens = kRow;
    small.optim.state = StateFormat::k8Bit;
    const LeastMemory most = forecast_memory(model, large, sheet)->least;
    const LeastMemory least = forecast_memory(model, small, sheet)->least;
    // A tenth below the least that any needs up to twice what the largest does.
    const auto between = [&](int64_t low, int64_t high) {
      const double share = static_cast<double>(random() % 1000) / 1000;
      return static_cast<int64_t>(0.9 * static_cast<double>(low) +
                                  share * (2.0 * static_cast<double>(high) -
                                                   0.9 * static_cast<double>(low)));
    };
    config.memory.device =
        MemorySize::of_bytes(between(least.device_bytes, most.device_bytes));
    config.memory.host = MemorySize::of_bytes(between(least.host_bytes, most.host_bytes));
    const Exhaustive all = simulate_all(model, config, sheet, rows, {config.memory});
    const auto search = search_settings(model, config, sheet, kFinePlan);
    ASSERT_TRUE(search.ok()) << search.status().message();
    expect_best(search.value(), all);
    (all.fit == 0 ? none : all.fit < all.tried ? some : all_fit) += 1;
    for (const SearchedRun& run : search.value().runs) {
      EXPECT_LE(run.device_bytes, config.memory.device.of(0).resolve(0, 0)) << run.text();
      const bool as_it_is = run.config.train.micro_batch_tokens ==
                                config.train.micro_batch_tokens &&
                            run.config.optim.state == StateFormat::kFp32 &&
                            run.config.optim.clip == ClipKind::kGlobal;
      EXPECT_EQ(run.as_it_is, as_it_is);
      own += run.as_it_is;
    }
  }
  std::printf("nothing fits in %d cases, some settings in %d, all in %d\n", none, some, all_fit);
  EXPECT_GT(some, 2);
  EXPECT_GT(all_fit, 0);
  EXPECT_GT(own, 0);
}

// Where device and host are the same memory and it is not divided yet, divisions are tried too.
TEST(SettingsSearch, DividesMemoryThatIsFree) {
  const ModelSizes model = tiny_model();
  MachineSheet sheet = machine("cpu-2-cores");
  const RunConfig config = tiny_run(12);
  // So little that places are scarce: the auto device budget is a little above what a row needs.
  RunConfig small = config;
  small.train.micro_batch_tokens = kRow;
  const LeastMemory least = forecast_memory(model, small, sheet)->least;
  sheet.host.memory = MemorySize::of_bytes(4 * least.device_bytes + 4 * least.host_bytes);
  std::vector<RunConfig::Memory> divisions = {config.memory};
  for (const auto& [device, host] : {std::pair{15.0, 55.0}, {50.0, 20.0}}) {
    divisions.emplace_back(config.memory);
    divisions.back().device = MemorySize::of_percent(device);
    divisions.back().host = MemorySize::of_percent(host);
  }
  const Exhaustive all = simulate_all(model, config, sheet, {12, 6, 3, 1}, divisions);
  ASSERT_GT(all.fit, 0);
  const auto search = search_settings(model, config, sheet, kFinePlan);
  ASSERT_TRUE(search.ok()) << search.status().message();
  expect_best(search.value(), all);
  EXPECT_EQ(search.value().tried, 4 * 3 * 2 * 3);
  // A budget of its own is kept.
  RunConfig given = config;
  given.memory.host = MemorySize::of_percent(40);
  EXPECT_EQ(search_settings(model, given, sheet, kFinePlan)->tried, 4 * 3 * 2);
}

// More of the host's memory than `train` takes by itself, and the run as it is beside it.
TEST(SettingsSearch, TakesMoreOfAHostThatIsFree) {
  const ModelSizes model = tiny_model();
  const MachineSheet sheet = machine("gpu-24gb");
  const auto search = search_settings(model, tiny_run(12), sheet, kFinePlan).take();
  ASSERT_EQ(search.runs.size(), 4u * 3 * 2 + 1);
  int own = 0;
  for (const SearchedRun& run : search.runs) {
    own += run.as_it_is;
    EXPECT_EQ(run.config.memory.host,
              run.as_it_is ? MemorySize() : MemorySize::of_percent(80));
  }
  EXPECT_EQ(own, 1);
}

TEST(SettingsSearch, SaysWhatWouldFit) {
  const ModelSizes model = tiny_model();
  const MachineSheet sheet = machine("gpu-24gb");
  RunConfig config = tiny_run(12);
  config.memory.device = MemorySize::of_bytes(1000);
  auto search = search_settings(model, config, sheet, kFinePlan);
  ASSERT_TRUE(search.ok()) << search.status().message();
  EXPECT_TRUE(search->runs.empty());
  EXPECT_EQ(search->tried, 4 * 3 * 2 + 1);  // with more of the host's memory, and as it is
  EXPECT_EQ(search->fits.code(), Exit::kDoesNotFit);
  // What the leanest lacks: no combination needs less.
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const RunConfig& choice : setting_choices(config, sheet)) {
    least = std::min(least, forecast_memory(model, choice, sheet)->least.device_bytes);
  }
  EXPECT_NE(search->fits.message().find(format_bytes_up(least)), std::string::npos)
      << search->fits.message();
  EXPECT_NE(search->fits_with.find("memory.device"), std::string::npos) << search->fits_with;
}

TEST(SettingsSearch, RefusesWhatIsNoRun) {
  const ModelSizes model = tiny_model();
  MachineSheet box = machine("gpu-4x48gb");
  box.device.count = 65;  // more than a run has
  auto search = search_settings(model, tiny_run(12), box, kFinePlan);
  EXPECT_EQ(search.status().code(), Exit::kUsage);
  EXPECT_NE(search.status().message().find("65 devices"), std::string::npos);
}

}  // namespace
}  // namespace pagoda
