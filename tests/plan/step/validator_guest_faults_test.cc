// The validator over plans that are broken on purpose and in which experts are guests of other
// ranks' devices: weights that go astray, and parts of gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "tests/plan/step/broken_ranks.h"

namespace pagoda {
namespace {

class BrokenGuests : public testing::Test {
 protected:
  static MergedRun& guests() {
    static MergedRun run(of_data());
    return run;
  }
  void SetUp() override { ASSERT_EQ(first_fault(guests().faults(guests().steps)), ""); }
  static void expect(PlanRule rule, const char* what, const std::function<void(Step&)>& mutate,
                     MergedRun& run = guests()) {
    expect_broken(rule, what, mutate, run);
  }
  static StepKind of_data() {
    StepKind kind;
    kind.sharing = Sharing::kData;
    kind.group_blocks = 2;
    return kind;
  }
  static bool of_expert(const PlacedTask& t) { return comes_to_guest(t.task); }
  static bool sends_sum(const PlacedTask& t) {
    return t.task.kind == TaskKind::kSend && t.task.expert >= 0 && t.task.elements > 0;
  }
  static bool receives_sum(const PlacedTask& t) {
    return t.task.kind == TaskKind::kReceive && t.task.expert >= 0 && t.task.elements > 0;
  }
  // In the backward, for a device of another rank than its home's.
  static bool computes(const PlacedTask& t) {
    const RunShape& shape = guests().ranks->shape();
    return t.task.kind == TaskKind::kExpertBackward && t.task.rows > 0 &&
           shape.rank_of(t.task.device) != shape.home_rank(t.task.record);
  }
};

// They are computed with what came for them.
TEST_F(BrokenGuests, HaveOtherWeights) {
  expect(PlanRule::kHome, "two experts come to each other's pages", [&](Step& step) {
    Task& first = step[find(step, of_expert)].task;
    Task& second =
        step[find(step, [&](const PlacedTask& t) {
          return of_expert(t) && t.task.device == first.device && t.task.record != first.record;
        })].task;
    std::swap(first.uses[0].page, second.uses[0].page);
  });
  expect(PlanRule::kHome, "weights come that were not updated", [&](Step& step) {
    const Task& first = step[find(step, of_expert)].task;
    const auto page = std::pair(first.record, first.device);
    std::erase_if(step, [&](const PlacedTask& t) {
      const bool of_page =
          t.task.kind == TaskKind::kSendPage || t.task.kind == TaskKind::kReceivePage;
      const bool sends = t.task.kind == TaskKind::kSendPage;
      return of_page && t.task.record == page.first &&
             (sends ? t.task.peer : t.task.device) == page.second;
    });
  });
  expect(PlanRule::kHome, "a guest computes with what its home has", [&](Step& step) {
    Task& guest = step[find(step, computes)].task;
    guest.uses[0].page = guests().ranks->ranks()[0]->pages.weights(guest.record);
  });
}

// Weights that come ahead take no page that the layer in work needs, and those that stayed until
// the backward are good for it.
TEST_F(BrokenGuests, HaveWeightsOfOtherLayers) {
  StepKind kind = of_data();
  kind.guest_layers = 2;
  static MergedRun run(kind);
  ASSERT_EQ(first_fault(run.faults(run.steps)), "");
  // The first that comes in the forward while experts of a lower layer have yet to compute.
  const auto comes_ahead = [](const Step& step) {
    return find(step, [&](const PlacedTask& t) {
      if (!of_expert(t) || t.task.phase != Phase::kForward) return false;
      const auto next = std::find_if(
          &t, &step.back(), [](const PlacedTask& other) { return computes_experts(other.task); });
      return next->task.layer < t.task.layer;
    });
  };
  expect(
      PlanRule::kHome, "they come to the page of an expert of the layer in work",
      [&](Step& step) {
        Task& ahead = step[comes_ahead(step)].task;
        const Task& needed =
            step[find(step, [&](const PlacedTask& t) {
              return of_expert(t) && t.task.device == ahead.device && t.task.layer < ahead.layer;
            })].task;
        ahead.uses[0].page = needed.uses[0].page;
      },
      run);
  expect(
      PlanRule::kHome, "nothing comes for the backward",
      [&](Step& step) {
        std::erase_if(step, [](const PlacedTask& t) {
          const bool of_page =
              t.task.kind == TaskKind::kSendPage || t.task.kind == TaskKind::kReceivePage;
          return of_page && t.task.phase == Phase::kBackward;
        });
      },
      run);
}

// What they have of a gradient, of their device's own rows, goes to their seat.
TEST_F(BrokenGuests, SumOtherwise) {
  expect(PlanRule::kSumOrder, "a part of a gradient stays away", [&](Step& step) {
    const Task sent = step[find(step, sends_sum)].task;
    std::erase_if(step, [&](const PlacedTask& t) {
      const bool end = t.task.kind == TaskKind::kSend || t.task.kind == TaskKind::kReceive;
      return end && t.task.elements > 0 && t.task.record == sent.record;
    });
  });
  const RunShape& shape = guests().ranks->shape();
  expect(PlanRule::kInputs, "a guest computes rows of another device's", [&](Step& step) {
    Task& guest = step[find(step, computes)].task;
    int64_t b = 0;
    while (shape.attending(guest.layer, b) == guest.device) ++b;
    guest.cell = static_cast<int32_t>(shape.sums.cell(b, shape.microbatches));
  });
  expect(PlanRule::kInputs, "a sum is sent to a seat twice", [&](Step& step) {
    const size_t at = find(step, sends_sum);
    step.insert(step.begin() + static_cast<int64_t>(at), step[at]);
  });
  expect(PlanRule::kMatched, "a sum comes as another expert's", [&](Step& step) {
    const int64_t record = step[find(step, sends_sum)].task.record;
    const size_t at =
        find(step, [&](const PlacedTask& t) { return receives_sum(t) && t.task.record == record; });
    step[at].task.record += 1;
  });
  expect(PlanRule::kMatched, "a sum is not received",
         [&](Step& step) { erase(step, find(step, receives_sum)); });
}

}  // namespace
}  // namespace pagoda
