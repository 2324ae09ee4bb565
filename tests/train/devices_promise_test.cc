// The root promise over devices: a run file has one hash, whichever devices compute it, how many of
// them attend, in which shares, with which budgets and switches of the plan, whether experts read
// rows in place or copies and add in place what they give or not, whether rows travel to experts or
// experts' weights to rows, with links that are late, and resumed on other devices and with another
// of these ways. Rows have every pair of these; started with --full-product, the program runs every
// combination.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "tests/testing/sanitizer.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"
#include "tests/train/pairwise.h"

namespace pagoda {
namespace {

constexpr int64_t kSteps = kUnderSanitizer ? 2 : 4;
constexpr uint64_t kSeedsOfDelays = 20;

enum Factor {
  kDevices,
  kAttend,
  kDeal,
  kBudget,
  kClip,
  kPlan,
  kExpertShards,
  kResumed,
  kSharing,
  kEarlierSharing
};
const Levels kCounts = {4, 3, 2, 3, 2, 8, 2, 2, 3, 3};
constexpr Sharing kSharings[] = {Sharing::kRows, Sharing::kData, Sharing::kAuto};

const PlanOptions kPlans[] = {{},
                              {.prefetch = false},
                              {.optimizer_at_end = true},
                              {.whole_layers = true},
                              {.microbatch_major = true},
                              {.padded_experts = true},
                              {.group_blocks = 4, .waves_in_flight = 3},
                              {.in_place = false}};

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
  const PlanOptions& plan = kPlans[row[kPlan]];
  const bool may_have_guests = row[kExpertShards] == 1 && plan.same_blocks() && !plan.whole_layers;
  if (row[kSharing] > 0 && (!may_have_guests || devices_of(row) == 1)) return false;
  if (row[kEarlierSharing] > 0 && (!may_have_guests || row[kResumed] == 0)) return false;
  return devices_of(row) > 1 || row[kDeal] == 0;
}

std::string text_of(const Levels& row) {
  std::string text;
  for (const int level : row) text += strf("%d ", level);
  return "devices, attend, deal, budget, clip, plan, expert shards, resumed, sharing, earlier: " +
         text;
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

void set_devices(const Levels& row, int64_t devices, int64_t attending, Sharing sharing,
                 TinyRun& run) {
  RunConfig& config = run.config();
  config.parallel.sharing = sharing;
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

// Weights came to all devices that attend, and no row to another device.
void expect_guests(const Session& session) {
  const std::vector<int64_t>& rows = session.executor().expert_rows();
  const auto devices = static_cast<size_t>(session.shape().devices);
  for (size_t d = 0; d < devices; ++d) {
    int64_t computed = 0;
    for (size_t i = d; i < rows.size(); i += devices) computed += rows[i];
    EXPECT_EQ(computed > 0, session.shape().attends(static_cast<int>(d))) << "device " << d;
  }
  for (const auto& [pair, count] : session.link()->counts()) {
    EXPECT_EQ(count.rows, 0) << pair.first << " to " << pair.second;
  }
}

// Experts read rows where they are if the plan has that and there is room, and else nowhere. On one
// device they then also add what they give.
void expect_planned_rows(const Levels& row, const Session& session) {
  const PlanOptions& plan = kPlans[row[kPlan]];
  const bool reads = session.shape().in_place;
  if (row[kBudget] == 2) {
    EXPECT_EQ(reads, plan.in_place && !plan.padded_experts);
  }
  if (!plan.in_place) {
    EXPECT_FALSE(reads);
  }
  expect_in_place(session.executor().row_bytes(), reads, reads && devices_of(row) == 1);
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
  if (session.shape().sharing == Sharing::kData) expect_guests(session);
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
    set_devices(row, others, others, kSharings[row[kEarlierSharing]], run);
    auto trainer = Trainer::start(run.config(), false, &storage);
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    run_steps(**trainer, kSteps / 2, seed, losses);
    const Status saved = (*trainer)->save();
    ASSERT_TRUE(saved.ok()) << saved.message();
  }
  const Sharing sharing = kSharings[row[kSharing]];
  set_devices(row, devices_of(row), attending_of(row), sharing, run);
  auto trainer = Trainer::start(run.config(), row[kResumed] == 1, &storage);
  ASSERT_TRUE(trainer.ok()) << trainer.status().message();
  Session& session = (*trainer)->session();
  EXPECT_EQ(std::ssize(session.shape().attending_devices()), attending_of(row));
  const Paging before = Paging::so_far(session);
  run_steps(**trainer, kSteps, seed, losses);
  const bool at_home = session.memory().state_on_device;
  const bool all_attend = attending_of(row) == devices_of(row);
  const bool may_travel = sharing == Sharing::kData || (sharing == Sharing::kAuto && all_attend);
  EXPECT_EQ(session.shape().sharing, may_travel && !at_home ? sharing : Sharing::kRows);
  if (row[kBudget] == 0) expect_paged(Paging::so_far(session) - before);
  expect_planned_rows(row, session);
  EXPECT_EQ(outcome_hash(**trainer, losses), reference(row));
}

// What a run of a way to share experts' rows sends from device to device.
struct Shared {
  std::string hash;
  Link::Count sent;
  // Parts of experts in steps, each a device's rows of an expert that is at home on another one.
  int64_t away = 0;
};

// An expert has about 32 rows on either of two devices, and its weights as many bytes as 18.7 rows.
Shared shared_by(Sharing sharing, int64_t devices) {
  TinyRun run(DType::kBF16, tiny_with(R"({"num_experts": 4, "moe_intermediate_size": 8})").c_str());
  RunConfig& config = run.config();
  config.train.steps = config.train.save_steps = kSteps;
  config.train.micro_batch_tokens = 32;
  config.train.expert_shards = 4;
  config.parallel.sharing = sharing;
  config.parallel.place = PlaceKind::kHome;
  config.train.devices = cpus(devices);
  run.use_minimum_budgets();
  SimStorage storage(7);
  auto trainer = Trainer::start(config, false, &storage).take();
  const RunShape& shape = trainer->session().shape();
  Shared shared;
  std::vector<double> losses;
  while (trainer->steps_done() < kSteps) {
    const StepResult step = trainer->step().take();
    losses.push_back(step.loss);
    std::set<std::tuple<size_t, size_t, int>> parts;  // layer, expert, device
    for (size_t b = 0; b < step.routing.size(); ++b) {
      const int device = shape.attending(0, static_cast<int64_t>(b));
      for (size_t l = 0; l < step.routing[b].size(); ++l) {
        for (size_t e = 0; e < step.routing[b][l].size(); ++e) {
          const auto home = static_cast<int>(e) % static_cast<int>(devices);
          if (step.routing[b][l][e] > 0 && device != home) parts.insert({l, e, device});
        }
      }
    }
    shared.away += std::ssize(parts);
  }
  for (const auto& [pair, count] : trainer->session().link()->counts()) {
    shared.sent.bytes += count.bytes;
    shared.sent.rows += count.rows;
  }
  shared.hash = outcome_hash(*trainer, losses);
  return shared;
}

// Weights and rows travel in one step, as the counts of each expert and device say.
TEST(DevicesPromise, WeightsOrRowsByTheirBytes) {
  for (const int64_t devices : {2, 4}) {
    const Shared rows = shared_by(Sharing::kRows, devices);
    const Shared data = shared_by(Sharing::kData, devices);
    const Shared chosen = shared_by(Sharing::kAuto, devices);
    EXPECT_EQ(data.hash, rows.hash);
    EXPECT_EQ(chosen.hash, rows.hash);
    EXPECT_EQ(data.sent.rows, 0);
    EXPECT_GT(chosen.sent.rows, 0);
    EXPECT_LT(chosen.sent.rows, rows.sent.rows);
    // A row there and back has five times 32 numbers of 2 bytes, a routing weight and its gradient.
    // Sums of dense gradients travel in any case; and where weights do, a device's part of a
    // gradient goes to the expert's home: 3 x 8 x 32 numbers of 4 bytes.
    const int64_t dense = rows.sent.bytes - rows.sent.rows / 4 * (5 * 32 * 2 + 8);
    EXPECT_EQ(data.sent.bytes - dense, data.away * 4 * (3 * 8 * 32));
    std::printf("%lld devices: %lld, %lld and %lld rows, %lld, %lld and %lld bytes on links\n",
                (long long)devices, (long long)rows.sent.rows, (long long)data.sent.rows,
                (long long)chosen.sent.rows, (long long)rows.sent.bytes, (long long)data.sent.bytes,
                (long long)chosen.sent.bytes);
  }
}

TEST(DevicesPromise, OneHash) {
  const std::vector<Levels> rows = rows_of_table(kCounts, is_valid);
  if (!all_combinations) {
    EXPECT_LE(rows.size(), 60u);
  }
  run_rows(rows, kUnderSanitizer ? 5 : 1, expect_reference);
}

}  // namespace

}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::run_table(argc, argv); }
