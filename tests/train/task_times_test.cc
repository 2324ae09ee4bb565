// A device's times are told apart by what they grow with: its tokens, experts' rows, or neither.
#include "train/task_times.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "device/device.h"
#include "tests/testing/plan/two_ranks.h"

namespace pagoda {
namespace {

Task task_of(TaskKind kind, const RunShape& shape) {
  Task task;
  task.kind = kind;
  task.layer = 0;
  task.expert = 0;
  task.record = shape.expert(0, 0);
  task.microbatch = 0;
  task.rows = 10;
  return task;
}

// What rank 0's device did if it ran one task of a kind, for a millisecond or more.
TaskTimes::OfDevice ran(TaskKind kind) {
  const RunShape shape = two_ranks({1}, Sharing::kRows);
  const auto stream = make_host_stream({"compute", WorkKind::kCompute, nullptr, nullptr},
                                       std::make_shared<ThreadPool>(1));
  TaskTimes times(&shape);
  times.begin(task_of(kind, shape), 1, *stream);
  stream->enqueue([] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  times.end(*stream);
  stream->synchronize();
  return times.devices()[0];
}

// A device that attends to half of the tokens still finishes all gradients of its experts, so that
// these say nothing of its speed in attention (ShareBalance).
TEST(TaskTimes, OfWeightsAreNotOfTokens) {
  for (const TaskKind kind : {TaskKind::kGradient, TaskKind::kAddSums, TaskKind::kAdam}) {
    const TaskTimes::OfDevice device = ran(kind);
    EXPECT_GT(device.weights_s, 0) << task_row(kind).name;
    EXPECT_EQ(device.tokens_s, 0) << task_row(kind).name;
    EXPECT_EQ(device.experts_s, 0) << task_row(kind).name;
  }
}

TEST(TaskTimes, OfExpertsHaveTheirRows) {
  for (const TaskKind kind : {TaskKind::kExpert, TaskKind::kExpertBackward}) {
    const TaskTimes::OfDevice device = ran(kind);
    EXPECT_GT(device.experts_s, 0) << task_row(kind).name;
    EXPECT_EQ(device.tokens_s + device.weights_s, 0) << task_row(kind).name;
    EXPECT_EQ(device.expert_rows, kind == TaskKind::kExpert ? 10 : 0) << task_row(kind).name;
  }
}

TEST(TaskTimes, AllElseIsOfTokens) {
  for (const TaskKind kind : {TaskKind::kAttention, TaskKind::kRouteBackward, TaskKind::kHead,
                              TaskKind::kDispatch, TaskKind::kCombineBackward}) {
    const TaskTimes::OfDevice device = ran(kind);
    EXPECT_GT(device.tokens_s, 0) << task_row(kind).name;
    EXPECT_EQ(device.experts_s + device.weights_s, 0) << task_row(kind).name;
  }
}

}  // namespace
}  // namespace pagoda
