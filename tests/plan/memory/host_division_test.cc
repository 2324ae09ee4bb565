// Host memory divided by benefit: against every division there is, and against the one in
// proportion to bytes, on small plans; what each division moves is counted by replaying the run as
// a trainer issues it.
#include "plan/memory/host_division.h"

#include <gtest/gtest.h>

#include <map>

#include "plan/memory/memory_plan.h"
#include "plan/memory/slot_share.h"
#include "tests/testing/plan/random_plan.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

constexpr uint32_t kSeeds = kUnderSanitizer ? 4 : 40;
constexpr int64_t kHeaderBytes = 4096;
constexpr int kUntilSettled = 4, kSteps = 8;
constexpr int64_t kNoLimit = int64_t{1} << 40;

struct Case {
  RunShape shape;
  PageTable pages;
  MemoryPlan least;  // with the smallest host memory

  static RunShape small_shape(std::mt19937& random) {
    RunShape shape = random_shape(random, static_cast<int>(1 + random() % 2));
    shape.set_microbatches(1 + static_cast<int64_t>(random() % 2));
    shape.options.microbatch_major = random() % 4 == 0;
    shape.options.whole_layers = random() % 6 == 0;
    shape.options.optimizer_at_end = random() % 6 == 0;
    return shape;
  }
  explicit Case(std::mt19937& random)
      : shape(small_shape(random)), pages(shape) {
    shape.eager_adam = random() % 3 == 0;
    MemoryPlan roomy = plan(kNoLimit, kNoLimit);
    int64_t most = *std::max_element(roomy.device_slot_bytes.begin(),
                                     roomy.device_slot_bytes.end());
    const int64_t range = std::max<int64_t>(0, most - roomy.min_device_bytes);
    device_bytes = roomy.min_device_bytes + range * static_cast<int64_t>(random() % 4) / 8;
    least = plan(device_bytes, roomy.min_host_bytes);
  }
  MemoryPlan plan(int64_t device, int64_t host) const {
    const MemoryBudget budget{device, host, std::vector<int64_t>(shape.devices, 0)};
    return plan_memory(shape, pages, budget, kHeaderBytes).take();
  }
  // Bytes between host and disk by class, of the steps of a run that has settled: from step to step
  // it may be at another point of a cycle of a few steps.
  std::vector<int64_t> moved(const std::vector<SlotClass>& slots) const {
    DryRun run(shape, pages, slots, false,
               Ledger(false, 0, std::vector<int64_t>(shape.records.size(), 0)));
    Replay replay(&pages, all_on_disk(shape, pages, slots));
    std::vector<std::vector<int64_t>> routing(shape.num_layers);
    for (int64_t l = 0; l < shape.num_layers; ++l) {
      if (shape.is_moe[l]) routing[l].assign(shape.num_experts, shape.row_block + 1);
    }
    const Routing turns(static_cast<size_t>(shape.microbatches), routing);
    std::vector<int64_t> bytes;
    for (int step = 0; step < kUntilSettled + kSteps; ++step) {
      if (step <= kUntilSettled) bytes.assign(slots.size(), 0);
      run.train(turns, [&](const StepPiece& piece) {
        foresee(piece, replay);
        for (const Task& task : piece.tasks) {
          for (const Move& move : replay.place(task).moves) {
            const PageTable::Page& page = pages.pages[move.page];
            const bool disk =
                move.kind == Move::Kind::kFetch || move.kind == Move::Kind::kWriteBack;
            bytes[page.slot_class] += disk ? page.bytes : 0;
          }
        }
      });
    }
    return bytes;
  }
  int64_t moved_in_all(const std::vector<SlotClass>& slots) const {
    int64_t all = 0;
    for (const int64_t bytes : moved(slots)) all += bytes;
    return all;
  }
  int64_t slot_bytes(size_t c) const { return pages.classes[c].page_bytes + kHeaderBytes; }
  int32_t most(size_t c) const {
    const PageTable::Class& info = pages.classes[c];
    const int32_t fewest = least.classes[c].host_slots;
    return info.stays() ? fewest : std::max(fewest, static_cast<int32_t>(info.num_pages));
  }
  int64_t wanted_bytes() const {
    int64_t bytes = 0;
    for (size_t c = 0; c < pages.classes.size(); ++c) {
      bytes += (most(c) - least.classes[c].host_slots) * slot_bytes(c);
    }
    return bytes;
  }
  std::vector<SlotClass> in_proportion(int64_t left) const {
    std::vector<SlotClass> slots = least.classes;
    std::vector<SlotShare> shares;
    for (size_t c = 0; c < slots.size(); ++c) {
      shares.push_back({&slots[c].host_slots, slot_bytes(c), most(c)});
    }
    share_out(shares, left);
    return slots;
  }

  int64_t device_bytes = 0;
};

// The traffic of each class by itself with these host slots. Classes do not disturb each other:
// together they move the sum.
std::vector<std::map<int32_t, int64_t>> curves_of(const Case& c) {
  std::vector<std::map<int32_t, int64_t>> curves(c.pages.classes.size());
  int32_t steps = 0;
  for (size_t i = 0; i < curves.size(); ++i) {
    steps = std::max(steps, c.most(i) - c.least.classes[i].host_slots);
  }
  for (int32_t more = 0; more <= steps; ++more) {
    std::vector<SlotClass> slots = c.least.classes;
    for (size_t i = 0; i < slots.size(); ++i) {
      slots[i].host_slots = std::min(c.most(i), slots[i].host_slots + more);
    }
    const std::vector<int64_t> bytes = c.moved(slots);
    for (size_t i = 0; i < slots.size(); ++i) curves[i][slots[i].host_slots] = bytes[i];
  }
  return curves;
}

// The fewest bytes that any division of `left` moves: all of them, but for those that take as much
// memory as another and move more.
int64_t fewest(const Case& c, const std::vector<std::map<int32_t, int64_t>>& curves,
               int64_t left) {
  std::map<int64_t, int64_t> best = {{0, 0}};  // memory -> bytes moved, of the classes so far
  for (size_t i = 0; i < curves.size(); ++i) {
    std::map<int64_t, int64_t> next;
    for (const auto& [memory, moved] : best) {
      for (const auto& [slots, bytes] : curves[i]) {
        const int64_t taken =
            memory + (slots - c.least.classes[i].host_slots) * c.slot_bytes(i);
        if (taken > left) continue;
        const auto [at, is_new] = next.try_emplace(taken, moved + bytes);
        if (!is_new) at->second = std::min(at->second, moved + bytes);
      }
    }
    best.clear();
    for (const auto& [memory, moved] : next) {
      if (best.empty() || moved < best.rbegin()->second) best[memory] = moved;
    }
  }
  return best.rbegin()->second;
}

TEST(HostDivision, IsNearTheBestAndSeldomWorseThanInProportion) {
  int64_t all_best = 0, all_ours = 0, all_proportional = 0;
  int cases = 0, worse = 0;
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    std::mt19937 random(seed);
    const Case c(random);
    const auto curves = curves_of(c);
    for (const double share : {0.1, 0.25, 0.5, 0.75}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", share " << share);
      const auto left = static_cast<int64_t>(share * static_cast<double>(c.wanted_bytes()));
      const MemoryPlan plan = c.plan(c.device_bytes, c.least.min_host_bytes + left);
      ASSERT_LE(plan.host_slot_bytes, c.least.min_host_bytes + left);
      const int64_t ours = c.moved_in_all(plan.classes);
      const int64_t proportional = c.moved_in_all(c.in_proportion(left));
      const int64_t best = fewest(c, curves, left);
      cases += 1;
      worse += ours > proportional;
      EXPECT_LE(10 * ours, 11 * proportional);
      EXPECT_GE(ours, best) << "classes disturb each other";
      all_best += best;
      all_ours += ours;
      all_proportional += proportional;
    }
  }
  const auto over_best = [&](int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(all_best);
  };
  std::printf("bytes over the fewest: ours %.3f, in proportion %.3f\n", over_best(all_ours),
              over_best(all_proportional));
  EXPECT_LT(over_best(all_ours), 1.1);
  // The count it goes by takes steps one by one; what comes of it runs from step to step.
  EXPECT_LE(20 * worse, cases) << worse << " of " << cases;
}

TEST(HostDivision, WithTheMemoryItNamesNothingGoesToDisk) {
  for (uint32_t seed = 1; seed <= kSeeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const Case c(random);
    const MemoryPlan plan = c.plan(c.device_bytes, c.least.whole_host_bytes);
    // With several devices, how many rows experts have decides which of them go in a wave.
    if (c.shape.devices == 1) {
      EXPECT_EQ(c.moved_in_all(plan.classes), 0);
    }
    const MemoryPlan whole = c.plan(c.least.whole_device_bytes, c.least.min_host_bytes);
    EXPECT_TRUE(whole.state_on_device);
    EXPECT_FALSE(c.plan(c.least.whole_device_bytes - 1, c.least.min_host_bytes).state_on_device);
  }
}

// Planned before every start, also for models of thousands of experts.
TEST(HostDivision, IsMadeForThousandsOfExperts) {
  RunShape shape;
  shape.num_layers = 48;
  shape.num_experts = 128;
  shape.hidden_size = 2048;
  shape.experts_per_token = 8;
  shape.microbatches = 4;
  shape.microbatch_tokens = 4096;
  shape.row_block = 256;
  const auto add = [&](int64_t elements, int64_t layer, int64_t expert) {
    shape.records.push_back({elements, layer, expert, 0, 12 * elements});
  };
  add(151936 * 2048, -1, -1);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    shape.is_moe.push_back(1);
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    add(20 * 1000 * 1000, l, -1);
    for (int64_t e = 0; e < shape.num_experts; ++e) add(3 * 2048 * 768, l, e);
  }
  add(151936 * 2048, -1, -1);
  const PageTable pages(shape);
  MemoryBudget budget{24 * kGiB, 64 * kGiB, {0}};
  auto plan = plan_memory(shape, pages, budget, kHeaderBytes);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_LE(plan->host_slot_bytes, budget.host_bytes);
  // The same division by itself, from the fewest slots.
  const int64_t left = budget.host_bytes - plan->min_host_bytes;
  budget.host_bytes = plan->min_host_bytes;
  std::vector<SlotClass> slots = plan_memory(shape, pages, budget, kHeaderBytes)->classes;
  const DividedHost divided = divide_host(StepPlan(shape, pages, {}), left, kHeaderBytes, slots);
  for (size_t c = 0; c < slots.size(); ++c) {
    EXPECT_EQ(slots[c].host_slots, plan->classes[c].host_slots) << "class " << c;
  }
  EXPECT_GE(divided.replays, 7) << "no curve was sampled";
  EXPECT_LE(divided.replays, 12) << "a start of such a run waits for them";
}

}  // namespace
}  // namespace pagoda
