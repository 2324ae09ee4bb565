// Experts as guests of devices that attend: which are, by counted bytes, and what then travels.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "plan/memory/memory_plan.h"
#include "plan/step/expert_seats.h"
#include "plan/step/step_plan.h"
#include "tests/testing/plan/dry_run.h"
#include "tests/testing/plan/two_ranks.h"

namespace pagoda {
namespace {

// One rank with the devices of both, and a layer.
RunShape two_devices(Sharing sharing) {
  RunShape shape = two_ranks({1}, sharing);
  shape.device_rank.clear();
  return shape;
}

struct Travelled {
  int64_t rows = 0, row_bytes = 0, sums = 0, sum_bytes = 0, weight_bytes = 0;
  bool operator==(const Travelled&) const = default;
};

// The tasks of the layer's experts in a step.
TaskList expert_tasks(const RunShape& shape, const LayerRouting& routing) {
  const StepPlan plan(shape, PageTable(shape), {});
  TaskList tasks;
  plan.forward_experts(0, all_microbatches(shape), routing, tasks);
  plan.backward_experts(0, all_microbatches(shape), routing, tasks);
  return tasks;
}

Travelled travelled(const TaskList& tasks) {
  Travelled all;
  for (const Task& task : tasks) {
    if (task.kind == TaskKind::kSendPage) all.weight_bytes += task.bytes;
    if (task.kind != TaskKind::kSend) continue;
    const bool sum = task.elements > 0;
    all.sums += sum;
    all.rows += task.rows;
    (sum ? all.sum_bytes : all.row_bytes) += task.bytes;
  }
  return all;
}

using Computed = std::map<std::tuple<Phase, int, int>, int64_t>;  // [phase, expert, device] rows

Computed computed(const TaskList& tasks) {
  Computed rows;
  for (const Task& task : tasks) {
    const bool expert = task.kind == TaskKind::kExpert || task.kind == TaskKind::kExpertBackward;
    if (expert) rows[{task.phase, task.expert, task.device}] += task.rows;
  }
  return rows;
}

std::vector<int> gradients(const TaskList& tasks) {
  std::vector<int> devices;
  for (const Task& task : tasks) {
    if (task.kind == TaskKind::kGradient) devices.push_back(task.device);
  }
  return devices;
}

// A row in bf16 has 2 d there, 2 d back, 4 d + 4 there (2 d + 4 if it was kept) and 2 d + 4 back;
// of weights 2 bytes an element in each phase, and 4 of its gradient.
TEST(ExpertGuests, BytesOfRowsAndOfWeights) {
  RunShape shape = two_devices(Sharing::kAuto);
  EXPECT_EQ(travelling_row_bytes(shape, false), 88);
  EXPECT_EQ(travelling_row_bytes(shape, true), 72);
  EXPECT_EQ(travelling_weight_bytes(shape, 2), 24 * 8 * 10);
  shape.dtype_bytes = 4;
  EXPECT_EQ(travelling_row_bytes(shape, false), 168);
  EXPECT_EQ(travelling_weight_bytes(shape, 2), 12 * 240);
}

// Weights have 1920 bytes, 21 rows 1848 and 22 rows 1936.
TEST(ExpertGuests, WeightsTravelWhereMoreBytesOfRowsWould) {
  const RunShape shape = two_devices(Sharing::kAuto);
  const auto guests = [&](const LayerRouting& routing) {
    return layer_seats(shape, 0, all_microbatches(shape), routing).guests;
  };
  EXPECT_EQ(guests({{21, 21}, {21, 21}}), (std::vector<int>{-1, -1, -1, -1}));
  EXPECT_EQ(guests({{21, 22}, {22, 21}}), (std::vector<int>{-1, 1, 0, -1}));
  EXPECT_EQ(guests({{90, 90}, {90, 90}}), (std::vector<int>{0, 1, 0, 1}));
}

// 26 rows of 72 bytes are 1872, and 27 are 1944. One wave of eight blocks of 16 rows is kept: 128
// rows of an expert, but not 129, of which 22 are enough again.
TEST(ExpertGuests, WeightsTravelForMoreRowsWhereTheseAreKept) {
  RunShape shape = two_devices(Sharing::kAuto);
  shape.kept_rows = 1;
  const auto guests = [&](const LayerRouting& routing) {
    return layer_seats(shape, 0, all_microbatches(shape), routing).guests;
  };
  EXPECT_EQ(guests({{26, 27}, {27, 26}}), (std::vector<int>{-1, 1, 0, -1}));
  EXPECT_EQ(guests({{22, 0}, {106, 0}}), (std::vector<int>{-1, 1, -1, -1}));
  EXPECT_EQ(guests({{22, 0}, {107, 0}}), (std::vector<int>{0, 1, -1, -1}));
}

// The paper's sizes: 2.4 f rows, where d is large beside what a routing weight takes.
TEST(ExpertGuests, AreForMoreThanTwelveFifthsOfTheHiddenSizeInRows) {
  RunShape shape = two_devices(Sharing::kAuto);
  shape.hidden_size = 2048;
  const int64_t f = 1024;
  shape.records[2].num_elements = shape.records[3].num_elements = 3 * 2048 * f;
  const auto is_guest = [&](int64_t rows) {
    const LayerRouting routing = {{0, 0}, {rows, 0}};
    return layer_seats(shape, 0, all_microbatches(shape), routing).guests[1] == 1;
  };
  EXPECT_FALSE(is_guest(2456));
  EXPECT_TRUE(is_guest(2457));  // 2.4 f = 2457.6, less the 8 bytes of a row's routing weight
}

TEST(ExpertGuests, ComputeTheirRowsWhereTheseAre) {
  const LayerRouting routing = {{5, 3}, {7, 2}};
  const TaskList rows = expert_tasks(two_devices(Sharing::kRows), routing);
  EXPECT_EQ(computed(rows), (Computed{{{Phase::kForward, 0, 0}, 12},
                                      {{Phase::kForward, 1, 1}, 5},
                                      {{Phase::kBackward, 0, 0}, 12},
                                      {{Phase::kBackward, 1, 1}, 5}}));
  // Seven rows of the first expert and three of the second, four times each.
  EXPECT_EQ(travelled(rows), (Travelled{40, 10 * 88}));
  const TaskList data = expert_tasks(two_devices(Sharing::kData), routing);
  EXPECT_EQ(computed(data), (Computed{{{Phase::kForward, 0, 0}, 5},
                                      {{Phase::kForward, 0, 1}, 7},
                                      {{Phase::kForward, 1, 0}, 3},
                                      {{Phase::kForward, 1, 1}, 2},
                                      {{Phase::kBackward, 0, 0}, 5},
                                      {{Phase::kBackward, 0, 1}, 7},
                                      {{Phase::kBackward, 1, 0}, 3},
                                      {{Phase::kBackward, 1, 1}, 2}}));
  EXPECT_EQ(travelled(data), (Travelled{0, 0, 2, 2 * 960}));
  EXPECT_EQ(gradients(data), (std::vector<int>{0, 1})) << "at their seats";
}

// Between ranks the weights travel in each phase: 480 bytes of each expert, and 960 of its
// gradient, which are the bytes that it is chosen by.
TEST(ExpertGuests, WeightsTravelToOtherRanksInEachPhase) {
  RunShape shape = two_devices(Sharing::kData);
  shape.device_rank = {0, 1};
  const TaskList tasks = expert_tasks(shape, {{5, 3}, {7, 2}});
  const Travelled all = travelled(tasks);
  EXPECT_EQ(all, (Travelled{0, 0, 2, 2 * 960, 2 * 2 * 480}));
  EXPECT_EQ(all.sum_bytes + all.weight_bytes,
            travelling_weight_bytes(shape, 2) + travelling_weight_bytes(shape, 3));
  for (const Task& task : tasks) {
    if (task.kind == TaskKind::kReceivePage) {
      EXPECT_EQ(shape.records[static_cast<size_t>(task.record)].device, 1 - task.device);
      EXPECT_EQ(task.uses[0].place, Place::on_device(task.device));
      EXPECT_EQ(task.lane, Lane::kWeights) << "what else arrives does not wait for them";
    }
  }
}

// Five experts of one rank's device are guests of the other's, in groups of two blocks: each comes
// once in a phase, to one of four pages.
TEST(ExpertGuests, TakePagesByTurns) {
  RunShape shape = two_devices(Sharing::kData);
  shape.device_rank = {0, 1};
  shape.num_experts = 5;
  shape.group_blocks = 2;
  shape.records = {{1000}, {500, 0}};
  for (int64_t e = 0; e < 5; ++e) shape.records.push_back({240, 0, e, 0});
  shape.records.push_back({1008});
  const std::vector<int64_t> rows = {20, 20, 40, 5, 5};  // of 16 a block
  const PageTable pages(shape);
  std::vector<int64_t> taken;
  for (const Task& task : expert_tasks(shape, {rows, rows})) {
    if (task.kind != TaskKind::kReceivePage || task.phase != Phase::kForward) continue;
    taken.push_back(static_cast<int64_t>(task.uses[0].page) - pages.guest(1, 0));
  }
  EXPECT_EQ(taken, (std::vector<int64_t>{0, 1, 2, 3, 0}));
}

TEST(ExpertGuests, AreChosenForEachExpertAndDevice) {
  const TaskList tasks = expert_tasks(two_devices(Sharing::kAuto), {{30, 21}, {22, 30}});
  EXPECT_EQ(travelled(tasks), (Travelled{4 * 21, 21 * 88, 1, 960}));
  const Computed rows = computed(tasks);
  EXPECT_EQ(rows.at({Phase::kForward, 0, 1}), 22);
  EXPECT_EQ(rows.at({Phase::kForward, 1, 1}), 51);
  EXPECT_EQ(rows.size(), 6u);
}

// The first expert has rows on both devices, the second at home alone.
TEST(ExpertGuests, SumsThatComeAreTakenBesideTheComputation) {
  const TaskList tasks = expert_tasks(two_devices(Sharing::kData), {{5, 0}, {7, 2}});
  std::vector<std::tuple<TaskKind, int, Lane>> taken;
  for (const Task& task : tasks) {
    const bool sum = task.kind == TaskKind::kAddSums || task.kind == TaskKind::kGradient;
    if (sum) taken.emplace_back(task.kind, task.expert, task.lane);
  }
  using Taken = decltype(taken);
  EXPECT_EQ(taken, (Taken{{TaskKind::kAddSums, 0, Lane::kSums},
                          {TaskKind::kGradient, 0, Lane::kSums},
                          {TaskKind::kGradient, 1, Lane::kCompute}}));
}

// Its rows are all on the other device: what it has of the gradient is the whole.
TEST(ExpertGuests, SendTheWholeSumToASeatWithoutRows) {
  const TaskList tasks = expert_tasks(two_devices(Sharing::kData), {{0, 0}, {9, 0}});
  EXPECT_EQ(travelled(tasks), (Travelled{0, 0, 1, 960}));
  EXPECT_EQ(gradients(tasks), (std::vector<int>{0}));
  EXPECT_EQ(std::count_if(tasks.begin(), tasks.end(),
                          [](const Task& task) { return task.kind == TaskKind::kAddSums; }),
            0);
}

// 30 rows of device 0 stay there as a guest's or at home, so that the ten of the second expert,
// which are too few for a guest, are computed on the other device, though that is not its home.
TEST(ExpertGuests, AreCountedWhereSeatsAreChosen) {
  RunShape shape = two_devices(Sharing::kAuto);
  shape.seat_speeds = {1, 1};
  shape.records[3].device = 0;
  const LayerSeats chosen = layer_seats(shape, 0, all_microbatches(shape), {{30, 0}, {0, 10}});
  EXPECT_EQ(chosen.guests, (std::vector<int>{0, -1, -1, -1}));
  EXPECT_EQ(chosen.seats, (std::vector<int>{0, 1}));
}

// Twelve rows have 1056 bytes, and weights without a gradient 960.
TEST(ExpertGuests, HaveNoPartOfAGradientIfTheyDoNotTrain) {
  RunShape shape = two_devices(Sharing::kAuto);
  shape.records[2].frozen_elements = shape.records[2].num_elements;
  const LayerRouting routing = {{12, 12}, {12, 12}};
  EXPECT_EQ(layer_seats(shape, 0, all_microbatches(shape), routing).guests,
            (std::vector<int>{0, 1, -1, -1}));
  const TaskList tasks = expert_tasks(shape, routing);
  EXPECT_EQ(travelled(tasks), (Travelled{4 * 12, 12 * 88}));
  EXPECT_EQ(gradients(tasks), (std::vector<int>{1}));
}

// A run of rank 0, whose states stay in the host. Of the tasks of all ranks it keeps those by which
// weights come to guests, and of experts.
class GuestSteps {
 public:
  explicit GuestSteps(const RunShape& shape)
      : shape_(shape),
        pages_(shape),
        run_(shape, pages_, slots(), false,
             Ledger(false, 0, std::vector<int64_t>(shape.records.size(), 0))) {}

  // A step in which every layer has this routing. Returns the layers in the order in which their
  // weights come (w) and their experts compute, forward (x) and backward (y), each run of them
  // once.
  std::string order(const LayerRouting& routing) {
    Routing all;
    for (const std::vector<int64_t>& counts : routing) {
      LayerRouting& of_layers = all.emplace_back();
      for (const uint8_t moe : shape_.is_moe) {
        of_layers.push_back(moe != 0 ? counts : std::vector<int64_t>());
      }
    }
    std::string order, newest;
    came_ = 0;
    run_.train(all, [&](const StepPiece& piece) {
      for (const Task& task : piece.all_tasks()) {
        const char* kind = kind_of(task);
        if (kind == nullptr) continue;
        came_ += *kind == 'w';
        const std::string name = kind + std::to_string(task.layer);
        if (name != newest) order += (order.empty() ? "" : " ") + name;
        newest = name;
      }
    });
    return order;
  }
  int64_t came() const { return came_; }  // weights of experts in the newest step

 private:
  std::vector<SlotClass> slots() const {
    MemoryBudget budget{kRoomForAll, kRoomForAll, {0}};
    budget.device_updates = false;
    return plan_memory(shape_, pages_, budget, 0).take().classes;
  }
  static const char* kind_of(const Task& task) {
    if (task.kind == TaskKind::kReceivePage && task.expert >= 0) return "w";
    if (task.kind == TaskKind::kExpert) return "x";
    return task.kind == TaskKind::kExpertBackward ? "y" : nullptr;
  }

  RunShape shape_;
  PageTable pages_;
  DryRun run_;
  int64_t came_ = 0;
};

// Two row blocks of either expert on either device, which are a wave; and six, which are two.
const LayerRouting kAllHaveRows = {{30, 30}, {30, 30}}, kTwoWaves = {{90, 90}, {90, 90}};

// Guests take pages by turns. Weights come when a layer's experts are due, in both phases.
TEST(GuestLayers, WithoutThemWeightsComeWhenTheyAreDue) {
  GuestSteps steps(two_ranks({1, 1, 1, 1}, Sharing::kData));
  for (int step = 0; step < 2; ++step) {
    EXPECT_EQ(steps.order(kAllHaveRows), "w0 x0 w1 x1 w2 x2 w3 x3 w3 y3 w2 y2 w1 y1 w0 y0");
    EXPECT_EQ(steps.came(), 2 * 4 * 2);
  }
}

// Two layers' weights are there at a time: those of the next layer come before this one's experts
// compute, and those of the last two are still there when the backward begins. The first step has
// nothing to guess by in the forward.
TEST(GuestLayers, WeightsComeALayerAheadOfUse) {
  RunShape shape = two_ranks({1, 1, 1, 1}, Sharing::kData);
  shape.guest_layers = 2;
  GuestSteps steps(shape);
  EXPECT_EQ(steps.order(kAllHaveRows), "w0 x0 w1 x1 w2 x2 w3 x3 y3 w1 y2 w0 y1 y0");
  for (int step = 1; step < 3; ++step) {
    EXPECT_EQ(steps.order(kAllHaveRows), "w0 w1 x0 w2 x1 w3 x2 x3 y3 w1 y2 w0 y1 y0");
    EXPECT_EQ(steps.came(), 2 * (4 + 2));
  }
}

// In the backward half of them come with each of two waves.
TEST(GuestLayers, ComeAheadBetweenTheWavesOfABackward) {
  RunShape shape = two_ranks({1, 1, 1, 1}, Sharing::kData);
  shape.guest_layers = 2;
  GuestSteps steps(shape);
  steps.order(kTwoWaves);
  EXPECT_EQ(steps.order(kTwoWaves), "w0 w1 x0 w2 x1 w3 x2 x3 y3 w1 y2 w1 y2 w0 y1 w0 y1 y0");
  EXPECT_EQ(steps.came(), 2 * (4 + 2));
}

TEST(GuestLayers, ComeWhenTheyAreDueWithoutPrefetchOrIfNothingIsSentAhead) {
  for (const PlanOptions& plan :
       {PlanOptions{.prefetch = false}, PlanOptions{.send_ahead = false}}) {
    RunShape shape = two_ranks({1, 1, 1, 1}, Sharing::kData);
    shape.guest_layers = 2;
    shape.options = plan;
    GuestSteps steps(shape);
    for (int step = 0; step < 2; ++step) {
      EXPECT_EQ(steps.order(kAllHaveRows), "w0 x0 w1 x1 w2 x2 w3 x3 y3 y2 w1 y1 w0 y0");
    }
  }
}

// With room for all layers weights come once a step.
TEST(GuestLayers, OfAllLayersStayUntilTheirBackward) {
  RunShape shape = two_ranks({1, 1, 1, 1}, Sharing::kData);
  shape.guest_layers = 4;
  GuestSteps steps(shape);
  steps.order(kAllHaveRows);
  EXPECT_EQ(steps.order(kAllHaveRows), "w0 w1 x0 w2 x1 w3 x2 x3 y3 y2 y1 y0");
  EXPECT_EQ(steps.came(), 2 * 4);
}

// A layer without experts has no turn.
TEST(GuestLayers, AreThoseWithExperts) {
  RunShape shape = two_ranks({1, 0, 1, 1}, Sharing::kData);
  shape.guest_layers = 2;
  GuestSteps steps(shape);
  EXPECT_EQ(steps.order(kAllHaveRows), "w0 x0 w2 x2 w3 x3 y3 w0 y2 y0");
  EXPECT_EQ(steps.order(kAllHaveRows), "w0 x0 w2 w3 x2 x3 y3 w0 y2 y0");
}

// Thirty rows are enough for weights to travel in each layer: 22 are in the first two, and 17 where
// they stay. Ten are not: in the second step those of the other rank's expert travel to it, though
// its weights come, and in the third, when it is a guest again, these come when they are due.
TEST(GuestLayers, AreGuessedByTheStepBeforeWithAuto) {
  RunShape shape = two_ranks({1, 1, 1, 1}, Sharing::kAuto);
  shape.guest_layers = 2;
  GuestSteps steps(shape);
  EXPECT_EQ(steps.order(kAllHaveRows), "w0 x0 w1 x1 w2 x2 w3 x3 y3 w1 y2 w0 y1 y0");
  EXPECT_EQ(steps.order({{30, 10}, {30, 30}}), "w0 w1 x0 w2 x1 w3 x2 x3 y3 w1 y2 w0 y1 y0");
  EXPECT_EQ(steps.came(), 4 * 2 + 2);
  EXPECT_EQ(steps.order(kAllHaveRows), "w0 w1 w0 x0 w2 w1 x1 w3 w2 x2 w3 x3 y3 w1 y2 w0 y1 y0");
  EXPECT_EQ(steps.came(), 4 * 2 + 2 * 2);
  EXPECT_EQ(steps.order(kAllHaveRows), "w0 w1 x0 w2 x1 w3 x2 x3 y3 w1 y2 w0 y1 y0");
  EXPECT_EQ(steps.came(), 2 * (4 + 2));
}

// Weights that do not change do not come again as long as nobody takes their place.
TEST(GuestLayers, StayFromStepToStepIfTheyDoNotTrain) {
  RunShape shape = two_ranks({1, 1, 1, 1}, Sharing::kData);
  for (RecordShape& record : shape.records) {
    if (record.expert >= 0) record.frozen_elements = record.num_elements;
  }
  shape.guest_layers = 2;
  GuestSteps two(shape);
  two.order(kAllHaveRows);
  EXPECT_EQ(two.order(kAllHaveRows), "x0 w2 x1 w3 x2 x3 y3 w1 y2 w0 y1 y0");
  shape.guest_layers = 4;
  GuestSteps all(shape);
  all.order(kAllHaveRows);
  EXPECT_EQ(all.order(kAllHaveRows), "x0 x1 x2 x3 y3 y2 y1 y0");
}

// Device 0 has no rows of the other's expert in the second step: its weights come for nothing, and
// in the third step, when it has some again, they come when they are due.
TEST(GuestLayers, AreGuessedByTheStepBefore) {
  RunShape shape = two_ranks({1, 1, 1, 1}, Sharing::kData);
  shape.guest_layers = 2;
  GuestSteps steps(shape);
  steps.order(kAllHaveRows);
  EXPECT_EQ(steps.order({{30, 0}, {30, 30}}), "w0 w1 x0 w2 x1 w3 x2 x3 y3 w1 y2 w0 y1 y0");
  EXPECT_EQ(steps.came(), 4 * 2 + 2);
  EXPECT_EQ(steps.order(kAllHaveRows), "w0 w1 w0 x0 w2 w1 x1 w3 w2 x2 w3 x3 y3 w1 y2 w0 y1 y0");
  EXPECT_EQ(steps.came(), 4 * 2 + 2 * 2);
}

// Weights that travel once have 240 x (2 + 4) bytes, as many as 16.4 rows.
TEST(GuestLayers, TravelForFewerRowsWhereTheyStay) {
  RunShape shape = two_ranks({1, 1, 1, 1}, Sharing::kAuto);
  shape.guest_layers = 2;
  for (int64_t l = 0; l < 4; ++l) {
    const auto is_guest = [&](int64_t rows) {
      const LayerRouting routing = {{0, 0}, {rows, 0}};
      return layer_seats(shape, l, all_microbatches(shape), routing).guests[1] == 1;
    };
    const int64_t enough = l < 2 ? 22 : 17;
    EXPECT_FALSE(is_guest(enough - 1)) << "layer " << l;
    EXPECT_TRUE(is_guest(enough)) << "layer " << l;
  }
}

// What loads homes: of the routings above, the rows that no guest computes.
TEST(ExpertGuests, LoadNoSeat) {
  const auto at_seats = [](Sharing sharing, const LayerRouting& routing) {
    const RunShape shape = two_devices(sharing);
    return rows_at_seats(shape, 0, all_microbatches(shape), routing);
  };
  EXPECT_EQ(at_seats(Sharing::kRows, {{30, 21}, {22, 30}}), (std::vector<int64_t>{52, 51}));
  EXPECT_EQ(at_seats(Sharing::kAuto, {{30, 21}, {22, 30}}), (std::vector<int64_t>{0, 21}));
  EXPECT_EQ(at_seats(Sharing::kData, {{30, 21}, {22, 30}}), (std::vector<int64_t>{0, 0}));
}

}  // namespace
}  // namespace pagoda
