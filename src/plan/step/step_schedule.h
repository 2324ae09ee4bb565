// Tells what a pass does, piece by piece: it goes through the pass's actions, makes their tasks and
// puts the optimizer's pending updates and the uploads ahead of use between them. The code that
// runs, times, checks or budgets for a step shares it.
//
//   StepSchedule schedule(&plan, &updates, &forecast, PassExtent::kStep);
//   for (StepPiece piece; schedule.next(piece);) {
//     ... piece.tasks ...
//     if (piece.wait == StepPiece::Wait::kResolve) schedule.resolve(routing of piece.layer);
//   }
//
// Pending updates run a layer ahead of the computation: while the routing of layer l is awaited,
// the updates of layer l + 1 are applied. They come after all uploads for layer l that are known
// already, so that those weights leave the host before others take their room there. Pending
// updates of the experts that routing chose are applied as soon as it is known.
//
// With several ranks the weights of copied records travel to those that compute with them at that
// point, behind their updates (plan/step/weight_copies.h), and those of guests whose experts are
// expected (plan/step/expert_seats.h). In the backward a layer's guests get theirs while the layer
// above is computed.
//
// The caller accounts for all ranks' tasks of a piece in `updates` (kAdam applies them, kGradient
// of an eager plan makes one pending) before it asks for the next piece, and for those of a pass in
// `copies` before the next pass. Pure: the same answers give the same tasks. A copy of a schedule
// runs ahead by itself; in the backward it needs no answers.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "plan/step/action.h"
#include "plan/step/expert_forecast.h"
#include "plan/step/pending_updates.h"
#include "plan/step/rank_part.h"
#include "plan/step/step_plan.h"

namespace pagoda {

// What routing chose in a step: [microbatch][layer][num_experts], empty for dense layers.
using Routing = std::vector<std::vector<std::vector<int64_t>>>;

// The routing of one layer, for some microbatches or for all.
LayerRouting layer_routing(const Routing& routing, int64_t layer, Microbatches microbatches);
LayerRouting layer_routing(const Routing& routing, int64_t layer);

struct StepPiece {
  // What the schedule, or the code that runs it, must learn between these tasks and the next.
  enum class Wait : uint8_t {
    kGoOn,
    // The experts that `layer` chose for `microbatches`, which come next: call resolve(). Attention
    // of others may have been issued since theirs.
    kResolve,
    // The rest appear in training steps only.
    kLayersDone,   // no gradient waits any more: a new update may begin
    kForwardDone,  // the backward needs the balance loss's gradient
  };
  enum class Cycle : uint8_t {
    kGoesOn,
    kBegins,        // a step begins, like the one before; without training, a pass
    kBetweenSteps,  // work between steps begins
  };
  TaskList tasks;   // those of RunShape::rank, with its places (plan/step/rank_part.h)
  TaskList others;  // with several ranks the tasks of all; see all_tasks()
  // The tasks of all ranks, which what all of them know alike is accounted by.
  const TaskList& all_tasks() const { return others.empty() ? tasks : others; }
  Wait wait = Wait::kGoOn;
  int64_t layer = -1;         // kResolve
  Microbatches microbatches;  // kResolve, kForwardDone: of the head
  // What a residency should know (offload/residency.h). nullopt: unchanged since the previous
  // piece.
  Cycle cycle = Cycle::kGoesOn;
  std::optional<std::vector<PageId>> kept;
  // Uses of pages that are certain to come, those of these tasks first. Prefetches are among them;
  // a residency ignores those.
  std::optional<std::vector<PageUse>> foreseen;
  std::optional<std::vector<PageUse>> foreseen_later;  // those after this pass
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
  // Nothing is owned. `updates` is nullptr when no update can be pending, `forecast` when no
  // experts are guessed, `copies`, which is copied, with one rank. REQUIRES: for kStep, a plan for
  // training.
  StepSchedule(const StepPlan* plan, const PendingUpdates* updates, ExpertForecast* forecast,
               PassExtent extent, const WeightCopies* copies = nullptr);

  // Pins these pages to devices from the first piece on.
  void keep(std::vector<PageId> pages) { kept_ = std::move(pages); }
  // Leaves out what a residency should foresee, which takes as long as the tasks themselves.
  void foresee_nothing() { foresees_ = false; }

  // Replaces `piece` by the next one; false when the pass is over. REQUIRES: the wait of the piece
  // before was answered.
  bool next(StepPiece& piece);
  // What routing chose for the layer and microbatches that the newest piece named.
  void resolve(const LayerRouting& routing);

  // [layer][E] tokens in the microbatches resolved so far; empty for dense layers.
  const std::vector<std::vector<int64_t>>& tokens_per_expert() const { return tokens_per_expert_; }
  const Routing& routing() const { return routing_; }  // as far as it is resolved

 private:
  void add(const Action& action, StepPiece& piece);
  void add_now(const Action& action, StepPiece& piece);
  void backward_experts(const Action& action, TaskList& tasks);
  void release(TaskList& tasks);
  void embed(const Action& action, TaskList& tasks);
  void attention(const Action& action, StepPiece& piece);
  void experts(const Action& action, TaskList& tasks);
  bool unresolved(size_t action) const;
  void add_tasks(StepPiece& piece);
  int64_t begin_experts(const Action& action);
  bool ends_piece(const Action& newest) const;
  void foresee_updates(int64_t first_record, StepPiece& piece) const;
  void foresee_rest(StepPiece& piece) const;
  int64_t records_of_layer(int64_t layer) const;
  // Records [first, last) of one layer, or of none.
  void make_ready(int64_t first_record, int64_t last_record, TaskList& tasks);
  using Uses = std::span<const ExpertUse>;
  static Uses of_record(Uses uses, int64_t record);
  bool apply_and_send(int64_t record, Uses guests, TaskList& tasks) const;
  void add_uses(const TaskList& tasks, std::vector<PageUse>& uses) const {
    add_own_uses(plan_.shape(), tasks, uses);
  }
  std::vector<ExpertUse> expected_experts(int64_t layer) const;
  bool sends_ahead() const;
  std::vector<ExpertUse> expected_guests(int64_t layer) const;
  std::vector<ExpertUse> guests_below(int64_t layer) const;
  void account(const TaskList& tasks);
  const WeightCopies* copies() const { return copies_ ? &*copies_ : nullptr; }

  const StepPlan& plan_;
  const PendingUpdates* updates_;
  ExpertForecast* forecast_;
  std::optional<WeightCopies> copies_;  // behind the tasks so far
  size_t accounted_ = 0;                // tasks of the piece that are in them
  PassExtent extent_;
  ActionList actions_;
  size_t next_ = 0;         // the next piece begins with this action
  size_t forward_end_ = 0;  // all layers' forward is in front of this action
  std::vector<int64_t> experts_begun_;  // [stage] actions of experts
  TaskList held_;               // of the backward of held_of_, until attention of others is issued
  Microbatches held_of_;
  bool foresees_ = true;
  bool asked_routing_ = false;  // the newest piece ends where that of next_ must be known
  std::vector<int64_t> asked_;  // records whose weights are uploaded after their updates, if there
                                // is room
  std::optional<std::vector<PageId>> kept_;
  std::vector<std::vector<int64_t>> tokens_per_expert_;
  Routing routing_;
};

// Leaves the rank's tasks in the piece, beside those of all.
void take_own_part(const RunShape& shape, StepPiece& piece);

// Adds tasks that apply the updates of records [first, last) that should not wait: those of dense
// records, those with a gradient page, and overdue ones.
void apply_overdue(const StepPlan& plan, const PendingUpdates& updates, int64_t first, int64_t last,
                   TaskList& tasks);
// Adds tasks that apply every pending update.
void apply_all(const StepPlan& plan, const PendingUpdates& updates, TaskList& tasks);

// What a layer's routing chose for the microbatches that a piece asks for.
using RoutingOf = std::function<LayerRouting(int64_t layer, Microbatches microbatches)>;

// Goes through a pass whose routing is known. `visit` gets every piece before the schedule goes on,
// and accounts for it in the schedule's updates.
void walk(StepSchedule& schedule, const RoutingOf& routing_of,
          const std::function<void(const StepPiece&)>& visit);

}  // namespace pagoda
