// A run in which every step uses every expert with the same number of tokens. It shows what a step
// certainly needs; memory is divided for it, and traffic is predicted by it before any routing is
// known. Pure.
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
    // One token per expert in all microbatches that the plan takes together, drawn from the
    // microbatches round-robin. That uses every page of weights, gradients, states and activations,
    // and is much less to run through.
    kOne,
    kEven,  // each expert's even share of each microbatch, at least one token
    // Each expert's even share of what the plan takes together, drawn from its microbatches
    // round-robin: as many rows as kEven in fewer pieces, to predict times.
    kGathered,
  };

  // Runs the steps of a plan for training, the forward passes of any other plan. Nothing is owned.
  // Without a `forecast` (nullptr) nothing is uploaded on a guess.
  SteadyRun(const StepPlan* plan, Tokens tokens, ExpertForecast* forecast = nullptr);

  // Takes this routing in every step, in place of an even one.
  void set_routing(const Routing& routing) { routing_ = routing; }
  // Pins this share of each layer's experts to devices from the next step on (plan/step/pinning.h).
  // `classes`: the slots of plan_memory.
  void pin(const std::vector<SlotClass>& classes, double share);
  // For those who read the tasks alone: what a residency should foresee is not in the pieces.
  void foresee_nothing() { foresees_ = false; }
  // Goes on as if the first step had been run, which would take as long as any. REQUIRES: none was
  // run, and there is no forecast.
  void skip_first();
  // Runs the next step. The first has nothing to update yet; the steps after it are all alike.
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
    void make(int64_t record) { waits_[record] = 1; }

   private:
    std::vector<int64_t> waits_;  // 1: the gradient waits for its update
  };

  void update(StepPiece piece, const Visit& visit);
  void account(const StepPiece& piece);

  const StepPlan& plan_;
  ExpertForecast* forecast_;
  Routing routing_;
  std::vector<PageId> pinned_;
  bool foresees_ = true;
  Gradients gradients_;
  WeightCopies copies_;
};

// Whether devices have room for all in-layer buffers. Otherwise the tokens of a block decide how
// often the buffers move.
bool layer_buffers_stay(const RunShape& shape, const PageTable& pages,
                        const std::vector<SlotClass>& classes);

// The traffic of a step in a settled run, uploads on a guess included. Every expert gets the same
// number of tokens, at least one. The function replays some steps as a trainer issues them,
// starting with everything on disk.
PageTraffic steady_step(const StepPlan& plan, const std::vector<SlotClass>& classes);

struct SteadyTraffic {
  PageTraffic step;
  PageTraffic checkpoint;  // beyond what it saves the step after it
};

// With the run's pinned experts. REQUIRES: a plan for training.
SteadyTraffic steady_traffic(const StepPlan& plan, const std::vector<SlotClass>& classes);

}  // namespace pagoda
