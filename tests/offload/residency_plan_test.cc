// What the backward of a real plan misses, against the fewest misses there could be.
#include <gtest/gtest.h>

#include <random>

#include "plan/step/replay.h"
#include "plan/step/step_plan.h"
#include "tests/testing/storage/page_history.h"

namespace pagoda {
namespace {

int pick(std::mt19937& random, int n) {
  return static_cast<int>(random() % static_cast<uint32_t>(n));
}

// A replay of a plan's tasks, with a history of each class of pages.
class PlanMachine {
 public:
  PlanMachine(const RunShape& shape, const PageTable& pages, const std::vector<SlotClass>& classes)
      : replay_(&pages, all_on_disk(shape, pages, classes)) {
    for (size_t c = 0; c < classes.size(); ++c) {
      histories_.emplace_back(&replay_.residency(), static_cast<uint16_t>(c));
    }
  }

  // From here on misses count, and exactly these tasks come.
  void foresee(const TaskList& tasks) {
    std::vector<PageUse> uses;
    add_uses(tasks, uses);
    for (PageHistory& history : histories_) history.start();
    replay_.foresee(uses);
  }

  void run(const TaskList& tasks) {
    for (const Task& task : tasks) {
      const auto moves = replay_.place(task).moves;
      for (const PageUse& use : task.used()) {
        histories_[replay_.residency().page_class(use.page)].note(use, moves);
      }
    }
    replay_.residency().check_invariants();
  }

  const std::vector<PageHistory>& histories() const { return histories_; }

 private:
  Replay replay_;
  std::vector<PageHistory> histories_;
};

RunShape shape_with_experts() {
  RunShape shape;
  shape.num_layers = 4;
  shape.is_moe = {1, 1, 0, 1};
  shape.num_experts = 12;
  shape.hidden_size = 64;
  shape.experts_per_token = 2;
  shape.microbatches = 2;
  shape.microbatch_tokens = 300;
  shape.row_block = 64;
  shape.records.push_back({10000});
  for (int64_t l = 0; l < 4; ++l) {
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({20000, l});
    for (int64_t e = 0; e < (shape.is_moe[l] ? 12 : 0); ++e) shape.records.push_back({9000, l, e});
  }
  shape.records.push_back({10064});
  return shape;
}

// The forward of a real plan as far as it is resolved, and its backward.
struct PlannedStep {
  PlannedStep(const StepPlan& plan, std::mt19937& random) {
    const RunShape& shape = plan.shape();
    std::vector<LayerRouting> tokens(4,
                                     LayerRouting(shape.microbatches, std::vector<int64_t>(12, 0)));
    plan.embed(all_microbatches(shape), forward);
    for (int64_t l = 0; l < 4; ++l) {
      for (auto& of_one : tokens[l]) {
        for (int64_t& count : of_one) count = pick(random, 3) == 0 ? 0 : 1 + pick(random, 150);
      }
      plan.forward_attention(l, all_microbatches(shape), forward);
      if (!shape.is_moe[l]) continue;
      plan.forward_experts(l, all_microbatches(shape), tokens[l], forward);
      plan.residual(l, all_microbatches(shape), forward);
    }
    plan.head(all_microbatches(shape), forward);
    for (int64_t l = 3; l >= 0; --l) {
      if (shape.is_moe[l]) {
        plan.backward_experts(l, all_microbatches(shape), tokens[l], backward);
      }
      plan.backward_attention(l, all_microbatches(shape), backward);
    }
  }
  TaskList forward, backward;
};

struct Misses {
  int uploads = 0, fetches = 0;
};

// Counts the misses of a backward, and expects the fewest possible in each class of pages.
Misses misses_of_backward(const RunShape& shape, uint32_t seed) {
  const PageTable pages(shape);
  const uint16_t experts = pages.pages[pages.weights(shape.expert(0, 0))].slot_class;
  std::mt19937 random(seed);
  std::vector<SlotClass> classes;
  for (size_t c = 0; c < pages.classes.size(); ++c) {
    classes.push_back({{4 + pick(random, 4)},
                       5 + pick(random, 8),
                       1 + pick(random, 3),
                       1 + pick(random, 3)});
  }
  classes[experts].device_slots = {4 + pick(random, 28)};
  const StepPlan plan(shape, pages, {});
  const PlannedStep step(plan, random);
  PlanMachine machine(shape, pages, classes);
  machine.run(step.forward);
  machine.foresee(step.backward);
  machine.run(step.backward);
  Misses misses;
  for (size_t c = 0; c < classes.size(); ++c) {
    SCOPED_TRACE(testing::Message() << "class " << c << " of kind "
                                    << static_cast<int>(pages.classes[c].kind));
    const PageHistory& history = machine.histories()[c];
    EXPECT_EQ(history.uploads(), belady_misses(history.device()));
    EXPECT_EQ(history.fetches(), belady_misses(history.host()));
    misses.uploads += history.uploads();
    misses.fetches += history.fetches();
  }
  return misses;
}

// The backward of a real plan, with skipped experts, blocks of rows, gradients that leave,
// activations that die, and optimizer work on the host or none. The devices' misses are the fewest
// possible in every class of pages, and so are the host's fetches for them. Uploading updated
// weights at once costs next to no misses: only pages used just now make room too late.
TEST(ResidencyPlan, BackwardOfAPlanMissesTheMinimum) {
  RunShape shape = shape_with_experts();
  for (const bool eager : {false, true}) {
    Misses sums[2];
    for (const bool prefetch : {false, true}) {
      shape.options.prefetch = prefetch;
      shape.eager_adam = eager;
      for (uint32_t seed = 1; seed <= 30; ++seed) {
        SCOPED_TRACE(testing::Message() << "seed " << seed << (eager ? ", eager" : "")
                                        << (prefetch ? ", prefetches" : ""));
        const Misses misses = misses_of_backward(shape, seed);
        sums[prefetch].uploads += misses.uploads;
        sums[prefetch].fetches += misses.fetches;
      }
    }
    EXPECT_GT(sums[0].uploads, 500);
    EXPECT_GT(sums[0].fetches, 300);
    EXPECT_LE(sums[1].uploads, 1.01 * sums[0].uploads);
    EXPECT_LE(sums[1].fetches, 1.01 * sums[0].fetches);
  }
}

}  // namespace
}  // namespace pagoda
