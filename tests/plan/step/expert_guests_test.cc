// Experts as guests of devices that attend: which are, by counted bytes, and what then travels.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "plan/step/expert_seats.h"
#include "plan/step/step_plan.h"

namespace pagoda {
namespace {

// Two devices, each of which attends to a microbatch and is the home of an expert of 3 d f = 240
// elements: d = 8, f = 10.
RunShape two_devices(Sharing sharing) {
  RunShape shape;
  shape.num_layers = 1;
  shape.is_moe = {1};
  shape.num_experts = 2;
  shape.hidden_size = 8;
  shape.experts_per_token = 2;
  shape.microbatches = 2;
  shape.microbatch_tokens = 100;
  shape.row_block = 16;
  shape.group_blocks = 8;
  shape.devices = 2;
  shape.shard_device = {0, 1};
  shape.sums = {1, 2, 2};
  shape.sharing = sharing;
  shape.layer_record = {1};
  shape.records = {{1000}, {500, 0}, {240, 0, 0, 0}, {240, 0, 1, 1}, {1008}};
  for (RecordShape& record : shape.records) record.state_bytes = 10 * record.num_elements;
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
