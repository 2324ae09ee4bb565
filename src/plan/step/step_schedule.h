// What a pass does, piece by piece: the one place that knows the order of a step, shared by whoever
// runs it, times it, checks it or budgets for it.
//
//   StepSchedule schedule(&plan, &updates, &forecast, StepSchedule::Extent::kStep);
//   for (StepPiece piece; schedule.next(piece);) {
//     ... piece.tasks ...
//     if (piece.wait == StepPiece::Wait::kResolve) schedule.resolve(routing of piece.layer);
//   }
//
// Optimizer work that was put off runs a layer ahead of the computation: while the routing of layer
// l is awaited, the pending updates of layer l + 1 are applied. They come after all that layer l
// wants on the devices as far as it is known, so that weights are on their way up before others
// take their room in the host. Those of experts that routing chose are applied when it is known.
//
// The tasks of a piece must be accounted for in `updates` (kAdam applies them, kGradient of an
// eager plan makes one pending) before the next piece is asked for. Pure: same answers, same tasks.
// A copy runs ahead by itself; in the backward it needs no answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/step/expert_forecast.h"
#include "plan/step/pending_updates.h"
#include "plan/step/step_plan.h"

namespace pagoda {

// What routing chose in a step: [microbatch][layer][num_experts], empty for dense layers.
using Routing = std::vector<std::vector<std::vector<int64_t>>>;

// Of a microbatch, or of all (StepPlan::kAll).
LayerRouting layer_routing(const Routing& routing, int64_t layer, int64_t microbatch);

struct StepPiece {
  // What the schedule, or what runs it, must learn between these tasks and the next.
  enum class Wait : uint8_t {
    kGoOn,
    kResolve,  // what the routing of `layer` chose for `microbatch`: resolve()
    // Of a step:
    kLayersDone,   // no gradient waits any more: a new update may begin, its gradients follow
    kForwardDone,  // the balance loss's gradient, which the backward reads
  };
  enum class Cycle : uint8_t {
    kGoesOn,
    kBegins,        // a step, like the one before; or a pass, where there is nothing but passes
    kBetweenSteps,  // what comes between steps
  };
  TaskList tasks;
  Wait wait = Wait::kGoOn;
  int64_t layer = -1;       // kResolve
  int64_t microbatch = -1;  // kResolve; StepPlan::kAll: of all together
  // What a residency should know (offload/residency.h). Nothing: as was said before.
  Cycle cycle = Cycle::kGoesOn;
  std::optional<std::vector<PageId>> kept;
  // Uses of pages that are certain to come, these tasks' first; prefetches among them, which a
  // residency passes by.
  std::optional<std::vector<PageUse>> foreseen;
  std::optional<std::vector<PageUse>> foreseen_later;  // after those of this pass's pieces
};

// Tells a residency, or the pager that has one, what it should know before the piece's tasks.
template <typename ResidencyOrPager>
void foresee(const StepPiece& piece, ResidencyOrPager& pages) {
  if (piece.cycle == StepPiece::Cycle::kBegins) pages.begin_cycle();
  if (piece.cycle == StepPiece::Cycle::kBetweenSteps) pages.leave_cycle();
  if (piece.kept) pages.keep(*piece.kept);
  if (piece.foreseen_later) pages.foresee_later(*piece.foreseen_later);
  if (piece.foreseen) pages.foresee(*piece.foreseen);
}

class StepSchedule {
 public:
  enum class Extent : uint8_t {
    kLayers,   // forward without the head
    kForward,  // evaluation, generation
    kStep,     // and backward. REQUIRES: a plan for training
  };

  // Nothing is owned. `updates`: nullptr when none can be pending. `forecast`: nullptr: none is
  // made.
  StepSchedule(const StepPlan* plan, const PendingUpdates* updates, ExpertForecast* forecast,
               Extent extent);

  // What should stay on devices from the first piece on.
  void keep(std::vector<PageId> pages) { kept_ = std::move(pages); }

  // Replaces `piece` by what comes next; false when the pass is over. REQUIRES: what the piece
  // before it asked for was given.
  bool next(StepPiece& piece);
  // What routing chose for the layer and microbatch that the newest piece named.
  void resolve(const LayerRouting& routing);

  // [layer][E], what is resolved of all microbatches; empty for dense layers.
  const std::vector<std::vector<int64_t>>& tokens_per_expert() const { return tokens_per_expert_; }
  const Routing& routing() const { return routing_; }  // what is resolved

 private:
  enum class At : uint8_t { kLayer, kRouting, kLayersEnd, kHead, kBackward, kEmbedBackward, kEnd };

  void begin_layer(StepPiece& piece);
  void end_layer();
  void foresee_updates(int64_t first_record, StepPiece& piece) const;
  void foresee_rest(StepPiece& piece) const;
  int64_t first_microbatch() const { return microbatch_ == StepPlan::kAll ? 0 : microbatch_; }
  bool begins() const { return at_ == At::kLayer && layer_ == 0 && first_microbatch() == 0; }
  int64_t records_of_layer(int64_t layer) const;
  // Records [first, last) of one layer, or of none.
  void apply_overdue_records(int64_t first_record, int64_t last_record);
  std::vector<int64_t> expected_experts(int64_t layer) const;

  const StepPlan& plan_;
  const PendingUpdates* updates_;
  ExpertForecast* forecast_;
  Extent extent_;
  At at_ = At::kLayer;
  int64_t layer_ = 0;  // of the next piece, or to be resolved
  int64_t microbatch_ = StepPlan::kAll;  // likewise
  TaskList pending_;   // known already, and issued with the next piece
  std::vector<int64_t> asked_;  // records whose weights go up after their updates, if there is room
  std::optional<std::vector<PageId>> kept_;
  std::vector<std::vector<int64_t>> tokens_per_expert_;
  Routing routing_;
};

// Tasks that apply what should not wait: dense records, gradients that wait, and overdue updates.
// Records [first, last).
void apply_overdue(const StepPlan& plan, const PendingUpdates& updates, int64_t first, int64_t last,
                   TaskList& tasks);
// Tasks that apply every pending update.
void apply_all(const StepPlan& plan, const PendingUpdates& updates, TaskList& tasks);

// What a layer's routing chose for the microbatch or StepPlan::kAll that a piece asks for.
using RoutingOf = std::function<LayerRouting(int64_t layer, int64_t microbatch)>;

// Runs through a pass whose routing is known. `visit` sees every piece before the schedule goes on,
// and accounts for it in the schedule's updates.
void walk(StepSchedule& schedule, const RoutingOf& routing_of,
          const std::function<void(const StepPiece&)>& visit);

}  // namespace pagoda
