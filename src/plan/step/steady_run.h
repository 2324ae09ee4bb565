// A run whose every step uses every expert, each with as many tokens: what a step certainly needs,
// what memory is divided for, and what traffic is predicted by before any routing is known. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/step/replay.h"
#include "plan/step/step_schedule.h"

namespace pagoda {

class SteadyRun {
 public:
  using Visit = std::function<void(const StepPiece&)>;

  enum class Tokens : uint8_t {
    // Of each expert one in all that the plan takes at a time, from microbatches by turns. That is
    // enough to use every page of weights, gradients, states and activations, and much less to run
    // through.
    kOne,
    kEven,  // of each expert its even share of each microbatch, at least one
    // Of each expert its even share of the whole step, from microbatches by turns: the same rows in
    // fewer pieces, for times.
    kGathered,
  };

  // Of a plan for training the steps, of any other the forward passes. Nothing is owned.
  // `forecast`: nullptr: nothing is brought up on a guess.
  SteadyRun(const StepPlan* plan, Tokens tokens, ExpertForecast* forecast = nullptr);

  // From the next step on this share of each layer's experts stays on devices
  // (plan/step/pinning.h). `classes`: the slots of plan_memory.
  void pin(const std::vector<SlotClass>& classes, double share);
  // The next step. The first has nothing to update yet; those after it are all alike.
  void step(const Visit& visit);
  // Applies the pending updates, as before a checkpoint.
  void drain(const Visit& visit);

 private:
  // A gradient makes an update pending; its kAdam task applies it.
  class Gradients final : public PendingUpdates {
   public:
    explicit Gradients(size_t records) : waits_(records, 0) {}
    int64_t pending(int64_t record) const override { return waits_[record]; }
    bool has_gradient(int64_t record) const override { return waits_[record] > 0; }
    bool overdue(int64_t) const override { return false; }
    void account(const TaskList& tasks);

   private:
    std::vector<int64_t> waits_;  // 1: for its update
  };

  void update(StepPiece piece, const Visit& visit);

  const StepPlan& plan_;
  ExpertForecast* forecast_;
  Routing routing_;
  std::vector<PageId> pinned_;
  Gradients gradients_;
};

// All in-layer buffers have their room on device 0. Else the tokens of a block decide how often
// they move.
bool layer_buffers_stays(const PageTable& pages, const std::vector<SlotClass>& classes);

// What a settled run moves in a step, guesses of last step's experts included; every expert gets as
// many tokens, at least one. Replays some steps as a trainer issues them, from all on disk.
PageTraffic steady_step(const StepPlan& plan, const std::vector<SlotClass>& classes);

struct SteadyTraffic {
  PageTraffic step;
  PageTraffic checkpoint;  // beyond what the step after it then has less to do
};

// With the run's pinned experts. REQUIRES: a plan for training.
SteadyTraffic steady_traffic(const StepPlan& plan, const std::vector<SlotClass>& classes);

}  // namespace pagoda
