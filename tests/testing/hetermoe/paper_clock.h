// The clock of HeterMoE's figures: times a list of actions (plan/step/action.h) on devices of two
// kinds, as the paper's streams have them: what is computed, transfers each way, and sums of
// gradients, which nothing but the end of a step waits for. So zebra, expert parallelism and
// disaggregated experts differ by who does what. What a run's tasks wait for beyond that is in
// plan/zebra/action_clock.h.
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
#include "plan/zebra/action_clock.h"

namespace pagoda {

// The end of a step waits for sums of gradients over devices, and nothing else does.
enum class PaperStream : int32_t {
  kFaster,  // what a faster device computes
  kSlower,
  kToExperts,
  kToAttention,
  kSums,
  kSlowerSums
};
inline constexpr int kPaperStreams = static_cast<int>(PaperStream::kSlowerSums) + 1;
// The streams of a stage: these, then one to the next stage and one to the stage before.
inline constexpr int kPaperStageStreams = kPaperStreams + 2;

struct PaperTimes {
  std::function<ChunkTimes(int32_t layer, int32_t chunk)> of;
  int32_t chunks = 1;       // whose microbatches the actions take together
  bool send_again = false;  // rows go to their experts again, ahead of their gradients
  // Sums of a layer's gradients, once a step.
  double attention_sum_s = 0, experts_sum_s = 0;
};

class PaperClock {
 public:
  // Appends to `timed`, which may have other tasks in it. Streams count from `first_stream`.
  PaperClock(PaperTimes times, int32_t first_stream, TimedActions* timed);

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
    int32_t arrival;
    After before;
  };
  void give_back(const Held& held);
  void release();
  // Adds a task to the stream of each kind of device that has seconds for it.
  After compute(const TimedTask& task, std::optional<double> faster_s,
                std::optional<double> slower_s, const After& after);
  void sum(PaperStream stream, double seconds, const After& after, const TimedTask& of);
  int32_t add(const TimedTask& task, PaperStream stream, double seconds, const After& after);

  PaperTimes times_;
  int32_t first_stream_;
  TimedActions& timed_;
  std::vector<After> after_;  // [chunk]
  std::optional<Held> held_;
};

// The tasks of a list of actions by themselves.
TimedActions time_on_paper(const ActionList& actions, PaperTimes times);

}  // namespace pagoda
