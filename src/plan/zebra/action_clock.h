// The fast clock of searches: times a list of actions (plan/step/action.h) on devices of two kinds,
// those of a kind alike, if nothing is paged. So zebra, expert parallelism and disaggregated
// experts are lists of the actions that a run executes, and differ by who does what. Pure.
//
// The simulator (plan/forecast/simulator.h) gives the tasks of a list the same times, but for this:
// a run has room for two waves of rows on their way, so a transfer may wait that takes longer than
// the experts it feeds, and a device that runs far ahead of others; and where both kinds attend, a
// pair of devices exchanges as soon as it is ready, but here once all are.
//
// The devices of a kind do the same at the same time, so that a kind computes in one stream. A
// chunk's actions follow each other, and each waits for what the one before it left. The backward
// of experts begins on the devices that attend, in the order of their stream.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/step/action.h"
#include "plan/zebra/stream_times.h"

namespace pagoda {

// Seconds of the forward, and of the backward with what it computes again.
struct PassSeconds {
  double forward_s = 0;
  double backward_s = 0;

  double both_s() const { return forward_s + backward_s; }
};
inline PassSeconds operator+(const PassSeconds& a, const PassSeconds& b) {
  return {a.forward_s + b.forward_s, a.backward_s + b.backward_s};
}
inline PassSeconds operator*(const PassSeconds& pass, double times) {
  return {pass.forward_s * times, pass.backward_s * times};
}
inline PassSeconds operator/(const PassSeconds& pass, double parts) {
  return {pass.forward_s / parts, pass.backward_s / parts};
}

// The end of a step waits for sums of gradients over devices, and nothing else does.
enum class StepStream : int32_t {
  kFaster,  // what a faster device computes
  kSlower,
  kToExperts,
  kToAttention,
  kSums,
  kSlowerSums
};
inline constexpr int kStepStreams = static_cast<int>(StepStream::kSlowerSums) + 1;

// Seconds of one chunk in one layer.
struct ChunkTimes {
  struct Kind {
    std::optional<PassSeconds> attention, experts;  // none: such devices do not do it
    double head_s = 0;
    double replay_s = 0;  // before the backward of experts: what they get again
  };
  Kind faster, slower;
  // Whether the faster devices get rows of their experts from each other, by the transfers.
  bool faster_exchange = true;
  PassSeconds to_experts, to_attention;
};

struct ActionTimes {
  std::function<ChunkTimes(int32_t layer, int32_t chunk)> of;
  int32_t chunks = 1;       // whose microbatches the actions take together
  int32_t parts = 1;        // of an exchange, so that experts compute beside transfers
  bool send_again = false;  // rows go to their experts again, ahead of their gradients
  bool one_wire = false;    // transfers in both directions share the rate of a device
  // Sums of a layer's gradients, once a step.
  double attention_sum_s = 0, experts_sum_s = 0;
  StepStream experts_sums = StepStream::kSlowerSums;
};

// What a task of a stream does; the stream says on which kind of device.
struct TimedTask {
  TaskKind kind = TaskKind::kAttention;
  Phase phase = Phase::kForward;
  int32_t layer = 0, chunk = 0;
};

struct TimedActions {
  std::vector<TimedTask> tasks;
  std::vector<StreamTask> queue;  // [tasks]; a task waits for earlier ones only
};

class ActionClock {
 public:
  // Appends to `timed`, which may have other tasks in it. Streams count from `first_stream`.
  ActionClock(ActionTimes times, int32_t first_stream, TimedActions* timed);

  // REQUIRES: an action stands behind those that it waits for.
  void add(const Action& action);

  // What the chunk's next action waits for: indices of the queue.
  using After = std::array<int32_t, 3>;
  const After& after(int64_t chunk) const { return after_[static_cast<size_t>(chunk)]; }
  // The chunk's next action waits for this task alone.
  void wait_for(int64_t chunk, int32_t task) {
    after_[static_cast<size_t>(chunk)] = {task, -1, -1};
  }

 private:
  void attention(const Action& action, int32_t chunk);
  void head(const Action& action, int32_t chunk);
  void experts(const Action& action, int32_t chunk);
  // The backward of experts, of which a faster device does a part, until attention of another chunk
  // has been added.
  struct Held {
    TimedTask task;
    ChunkTimes times;
    std::vector<int32_t> sent;
    After before;
  };
  void give_back(const Held& part);
  void release();
  // Adds a task to the stream of each kind of device that has seconds for it.
  After compute(const TimedTask& task, std::optional<double> faster_s,
                std::optional<double> slower_s, const After& after);
  void sum(StepStream stream, double seconds, const After& after, const TimedTask& of);
  int32_t add(const TimedTask& task, StepStream stream, double seconds, const After& after);

  ActionTimes times_;
  int32_t first_stream_;
  TimedActions& timed_;
  std::vector<After> after_;  // [chunk]
  std::optional<Held> held_;
};

// The tasks of a list of actions by themselves.
TimedActions time_actions(const ActionList& actions, ActionTimes times);

}  // namespace pagoda
