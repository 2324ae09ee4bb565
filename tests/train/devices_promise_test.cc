// The root promise over devices: a run file has one hash, whichever devices compute it, how many of
// them attend, in which shares, with which budgets and switches of the plan, with links that are
// late, and resumed on other devices. Rows have every pair of these; started with --full-product,
// the program runs every combination.
#include <gtest/gtest.h>

#include <map>

#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"
#include "tests/train/pairwise.h"

namespace pagoda {
namespace {

constexpr int64_t kSteps = kUnderSanitizer ? 2 : 4;
constexpr uint64_t kSeedsOfDelays = 20;

enum Factor { kDevices, kAttend, kDeal, kBudget, kClip, kPlan, kExpertShards, kResumed };
const Levels kCounts = {4, 3, 2, 3, 2, 7, 2, 2};

const PlanOptions kPlans[] = {{},
                              {.prefetch = false},
                              {.optimizer_at_end = true},
                              {.whole_layers = true},
                              {.microbatch_major = true},
                              {.padded_experts = true},
                              {.group_blocks = 4}};

int64_t devices_of(const Levels& row) { return 1 + row[kDevices]; }

// One of the devices, all but one, or all.
int64_t attending_of(const Levels& row) {
  const int64_t devices = devices_of(row);
  return row[kAttend] == 0 ? 1 : row[kAttend] == 1 ? devices - 1 : devices;
}

bool is_valid(const Levels& row) {
  const bool some_of_them = attending_of(row) > 1 && attending_of(row) < devices_of(row);
  if (row[kAttend] < 2 && devices_of(row) == 1) return false;
  if (row[kAttend] == 1 && !some_of_them) return false;
  return devices_of(row) > 1 || row[kDeal] == 0;
}

std::string text_of(const Levels& row) {
  std::string text;
  for (const int level : row) text += strf("%d ", level);
  return "devices, attend, deal, budget, clip, plan, expert shards, resumed: " + text;
}

// Ten to six, by turns, or alike.
std::vector<std::string> listed(int64_t devices, bool unequal) {
  std::string text;
  for (int64_t d = 0; d < devices; ++d) {
    text += std::string(d > 0 ? "," : "") + (!unequal ? "cpu" : d % 2 == 0 ? "cpu/1.2" : "cpu/2");
  }
  return {text};
}

void configure(const Levels& row, RunConfig& config) {
  config.train.steps = config.train.save_steps = kSteps;
  config.train.micro_batch_tokens = 32;  // four a step, so four shards
  config.train.expert_shards = row[kExpertShards] == 0 ? 1 : 4;
  config.optim.clip = row[kClip] == 0 ? ClipKind::kGlobal : ClipKind::kPerExpert;
}

void set_devices(const Levels& row, int64_t devices, int64_t attending, TinyRun& run) {
  RunConfig& config = run.config();
  config.train.devices = listed(devices, row[kDeal] == 1);
  config.parallel.attention_devices = attending;
  config.plan = kPlans[row[kPlan]];
  config.memory.device = config.memory.host = MemorySize::of_bytes(64 * kMiB);
  if (row[kBudget] == 2) return;
  run.use_minimum_budgets();
  if (row[kBudget] == 0) return;
  config.memory.device = MemorySize::of_bytes(config.device_bytes() + 150 * kKiB);
  config.memory.host = MemorySize::of_bytes(config.host_bytes() + 300 * kKiB);
}

// Steps up to `end`, with links that are late.
void run_steps(Trainer& trainer, int64_t end, uint64_t seed, std::vector<double>& losses) {
  Session& session = trainer.session();
  const bool linked = session.link() != nullptr;
  if (linked) session.slow_link({.latency_s = 1e-5, .jitter_s = 4e-4, .seed = seed});
  while (trainer.steps_done() < end) {
    auto step = trainer.step();
    ASSERT_TRUE(step.ok()) << step.status().message();
    losses.push_back(step->loss);
  }
  if (!linked) return;
  int64_t travelled = 0;
  for (const auto& [pair, count] : session.link()->counts()) travelled += count.bytes;
  EXPECT_GT(travelled, 0) << "nothing travelled";
}

std::string reference(const Levels& row) {
  static std::map<std::pair<int, int>, std::string> known;
  std::string& hash = known[{row[kClip], row[kExpertShards]}];
  if (!hash.empty()) return hash;
  TinyRun run;
  configure(row, run.config());
  SimStorage storage(99);
  const Outcome outcome = run_to_end(run.config(), &storage);
  CHECK(outcome.status.ok(), "%s", outcome.status.message().c_str());
  return hash = outcome.sha256;
}

void expect_reference(const Levels& row, uint64_t number) {
  SCOPED_TRACE(text_of(row));
  TinyRun run;
  configure(row, run.config());
  SimStorage storage(number);
  const uint64_t seed = number % kSeedsOfDelays + 1;
  std::vector<double> losses;
  if (row[kResumed] == 1) {
    const int64_t others = devices_of(row) % 4 + 1;
    set_devices(row, others, others, run);
    auto trainer = Trainer::start(run.config(), false, &storage);
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    run_steps(**trainer, kSteps / 2, seed, losses);
    const Status saved = (*trainer)->save();
    ASSERT_TRUE(saved.ok()) << saved.message();
  }
  set_devices(row, devices_of(row), attending_of(row), run);
  auto trainer = Trainer::start(run.config(), row[kResumed] == 1, &storage);
  ASSERT_TRUE(trainer.ok()) << trainer.status().message();
  Session& session = (*trainer)->session();
  EXPECT_EQ(std::ssize(session.shape().attending_devices()), attending_of(row));
  const Paging before = Paging::so_far(session);
  run_steps(**trainer, kSteps, seed, losses);
  if (row[kBudget] == 0) expect_paged(Paging::so_far(session) - before);
  EXPECT_EQ(outcome_hash(**trainer, losses), reference(row));
}

TEST(DevicesPromise, OneHash) {
  const std::vector<Levels> rows = rows_of_table(kCounts, is_valid);
  if (!all_combinations) {
    EXPECT_LE(rows.size(), 120u);
  }
  run_rows(rows, kUnderSanitizer ? 5 : 1, expect_reference);
}

}  // namespace

}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::run_table(argc, argv); }
