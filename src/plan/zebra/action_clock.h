// The fast clock of searches: times a list of zebra's actions (plan/step/zebra_actions.h) on
// devices of two kinds, those of a kind alike, if nothing is paged. The faster ones attend, and may
// have experts too; the slower ones have the others. Pure.
//
// The devices of a kind do the same at the same time, so that a kind has one stream for what each
// of them computes, and one for each of its lanes (plan/step/task.h). The clock has what the tasks
// of a run wait for, each in its lane's order: the rows of an action leave once it is routed, are
// taken in the order in which they were sent, and have pages that are free again two actions later,
// since a run has room for two waves on their way. So it gives the times that the simulator
// (plan/forecast/simulator.h) gives the tasks, but for these:
//   - Sums of gradients go from the other devices that attend to the one that is their home. Here
//     all of these wait as the home does. So a step takes as long as here at most, and no less than
//     it would here without sums.
//   - Experts of which a device's groups have no room at once take several waves, here one.
//   - Between ranks rows go through network cards (ChunkTimes::one_card). Here a device's go to all
//     of a kind at once, and what it sends back does not share its card with what it sends there.
//   - Where rows stay on their devices until the backward (RunShape::kept_rows), each action has
//     pages of its own.
//
// A chunk's actions follow each other, and each waits for what the one before it left. The backward
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
inline double seconds_of(const PassSeconds& pass, Phase phase) {
  return phase == Phase::kBackward ? pass.backward_s : pass.forward_s;
}

enum class StepStream : int32_t {
  kFaster,  // what a faster device computes
  kSlower,
  kToExperts,  // the wire from a faster device to a slower one
  kToAttention,
  kBeside,  // the wire from a faster device to another
  // Lanes, which take no time but keep their order: what leaves a device, and what it takes.
  kFasterOut,
  kFasterIn,
  kFasterOutBack,
  kFasterInBack,
  kSlowerOut,
  kSlowerIn,
  kSlowerSums  // sums of experts that come from other copies
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
  // Whether there are several faster devices, which get rows of their experts from each other.
  bool faster_exchange = true;
  // Whether rows go from rank to rank: those for experts leave a device through its network card
  // one behind the other, and each transfer begins when the lane that takes it has come to it.
  bool one_card = false;
  PassSeconds to_experts, to_attention;  // between a faster device and a slower one
  // Between two faster devices.
  PassSeconds to_faster_experts = {}, from_faster_experts = {};
};

// Seconds of sums of gradients, once a step: from a dense record's last gradient until its home has
// the sum over devices and has finished it.
struct SumTimes {
  double layer_s = 0, head_s = 0, embedding_s = 0;
  double experts_s = 0;  // of a layer's experts on a slower device, behind their last rows
  bool experts_wait = false;  // for sums of other copies, beside what the device computes
};

struct ActionTimes {
  std::function<ChunkTimes(int32_t layer, int32_t chunk)> of;
  int32_t chunks = 1;                 // whose microbatches the actions take together
  std::optional<SumTimes> sums = {};  // none: gradients are not summed
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

  // REQUIRES: an action of zebra's, which stands behind those that it waits for.
  void add(const Action& action);

  // What the chunk's next action waits for: an index of the queue; -1: nothing.
  int32_t after(int64_t chunk) const { return after_[static_cast<size_t>(chunk)]; }
  // The chunk's next action waits for this task alone.
  void wait_for(int64_t chunk, int32_t task) { after_[static_cast<size_t>(chunk)] = task; }

 private:
  using After = std::array<int32_t, 3>;
  // The newest tasks that use an action's pages of every second action.
  struct Pages {
    int32_t taken = -1, computed = -1, packed = -1, received = -1;  // of slower devices' experts
    // Experts that faster devices have use these.
    int32_t own_taken = -1, own_packed = -1, own_received = -1, own_combined = -1;
  };
  // What is left of an action once its rows are on their way: in the backward it waits until
  // attention of another chunk has been added, if the devices that attend have a part of it.
  struct Held {
    TimedTask task;
    ChunkTimes times;
    int32_t indexed = -1;
    Pages before;  // of the action whose pages it takes
    Pages* pages;  // its own
  };

  void attention(const Action& action, int32_t chunk);
  void residual(const Action& action, int32_t chunk);
  void head(const Action& action, int32_t chunk);
  void experts(const Action& action, int32_t chunk);
  Held send(const TimedTask& task, const ChunkTimes& times, int32_t before);
  int32_t exchange_own(const Held& held);
  int32_t compute_slower(const Held& held);
  int32_t compute_own(const Held& held, int32_t ready);
  void give_back(const Held& held);
  void release();
  void sum(const TimedTask& of, double SumTimes::*seconds_of_sum);
  int32_t add(const TimedTask& task, StepStream stream, double seconds, const After& after);
  int32_t travel(const TimedTask& task, const ChunkTimes& times, StepStream wire, double seconds,
                 int32_t sent, StepStream to);
  // Takes its turn in a lane.
  int32_t pass(const TimedTask& of, StepStream lane, const After& after);

  ActionTimes times_;
  int32_t first_stream_;
  TimedActions& timed_;
  std::vector<int32_t> after_;  // [chunk]
  std::array<Pages, 2> pages_;  // of even and of odd actions of experts
  int64_t actions_ = 0;         // of experts
  std::optional<Held> held_;
  std::array<int32_t, kStepStreams> newest_;  // [stream] what passed a lane last; -1: nothing
};

// The tasks of a list of actions by themselves.
TimedActions time_actions(const ActionList& actions, ActionTimes times);

}  // namespace pagoda
