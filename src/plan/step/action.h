// The order of a pass as a list of actions. An action says what is done for some microbatches of a
// layer; its tasks follow from it and from the routing (plan/step/step_plan.h), once that is known.
// A generator makes the list from the run's shape alone, so that whoever runs, times or checks a
// pass goes through the same list. (Pipeline schedules of PyTorch call the same notion an action.)
// Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/step/run_shape.h"
#include "plan/step/task.h"

namespace pagoda {

// Neighbouring microbatches of a step.
struct Microbatches {
  int64_t first = 0, count = 0;
  int64_t end() const { return first + count; }
  bool has(int64_t b) const { return b >= first && b < end(); }
  bool operator==(const Microbatches&) const = default;
};
inline Microbatches all_microbatches(const RunShape& shape) { return {0, shape.microbatches}; }

enum class ActionKind : uint8_t {
  kEmbed,
  kAttention,  // forward: attention, then the router or the dense MLP; backward: their gradients
  kExperts,    // dispatch, experts and combine of a layer with experts
  kResidual,   // forward: what its experts gave joins the residual stream, before it is read next
  kHead,       // forward: the loss, with its gradient in a step; or logits
};

// REQUIRES of a list: an action stands behind all it waits for. The head and the backward take all
// microbatches together, since gradients are sums over all of them.
struct Action {
  ActionKind kind = ActionKind::kEmbed;
  Phase phase = Phase::kForward;
  int64_t layer = -1;  // kAttention, kExperts, kResidual
  Microbatches microbatches;
  bool operator==(const Action&) const = default;
};
using ActionList = std::vector<Action>;

// Numbers what a chunk goes through in its order: attention and experts of each layer forward, the
// head, and back.
class ChunkPath {
 public:
  // [layer] whether its experts have a place of their own, and in the forward kResidual too.
  explicit ChunkPath(std::vector<uint8_t> experts, std::vector<uint8_t> residual = {});
  // How many places come before it. REQUIRES: kAttention, kHead, or what has a place of its own.
  int64_t place(const Action& action) const;

 private:
  std::vector<uint8_t> experts_;
  std::vector<int64_t> forward_, backward_;  // [layer] its first place
  int64_t head_ = 0;
};

// Whether it is attention, or what comes right before it.
constexpr bool leads_to_attention(const Action& action) {
  return action.kind == ActionKind::kAttention || action.kind == ActionKind::kResidual ||
         (action.kind == ActionKind::kEmbed && action.phase == Phase::kForward);
}

// How far a pass goes.
enum class PassExtent : uint8_t {
  kLayers,   // forward without the head
  kForward,  // evaluation, generation
  kStep,     // and backward
};

// All microbatches go through a layer before the next one begins, so that weights are read once
// forward and once backward (ES-MoE 4.1).
ActionList layer_major(const RunShape& shape, PassExtent extent);
// The forward takes one microbatch after the other through all layers (PlanOptions).
ActionList microbatch_major(const RunShape& shape, PassExtent extent);
// RunShape::order, or the one of these, zebra's and a pipeline's that the run asks for.
ActionList make_actions(const RunShape& shape, PassExtent extent);

}  // namespace pagoda
