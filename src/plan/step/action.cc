#include "plan/step/action.h"

#include <utility>

#include "plan/step/pipeline_actions.h"
#include "plan/step/zebra_actions.h"

namespace pagoda {
namespace {

void add_forward(const RunShape& shape, Microbatches microbatches, ActionList& actions) {
  actions.push_back({ActionKind::kEmbed, Phase::kForward, -1, microbatches});
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    actions.push_back({ActionKind::kAttention, Phase::kForward, l, microbatches});
    if (!shape.is_moe[l]) continue;
    actions.push_back({ActionKind::kExperts, Phase::kForward, l, microbatches});
    actions.push_back({ActionKind::kResidual, Phase::kForward, l, microbatches});
  }
}

// Head and backward take all microbatches together.
void add_rest(const RunShape& shape, PassExtent extent, ActionList& actions) {
  const Microbatches all = all_microbatches(shape);
  if (extent == PassExtent::kLayers) return;
  actions.push_back({ActionKind::kHead, Phase::kForward, -1, all});
  if (extent == PassExtent::kForward) return;
  for (int64_t l = shape.num_layers - 1; l >= 0; --l) {
    if (shape.is_moe[l]) actions.push_back({ActionKind::kExperts, Phase::kBackward, l, all});
    actions.push_back({ActionKind::kAttention, Phase::kBackward, l, all});
  }
  actions.push_back({ActionKind::kEmbed, Phase::kBackward, -1, all});
}

}  // namespace

ChunkPath::ChunkPath(std::vector<uint8_t> experts, std::vector<uint8_t> residual)
    : experts_(std::move(experts)), backward_(experts_.size()) {
  residual.resize(experts_.size(), 0);
  int64_t next = 0;
  for (size_t l = 0; l < experts_.size(); ++l) {
    forward_.push_back(next);
    next += 1 + experts_[l] + residual[l];
  }
  head_ = next++;
  for (size_t l = experts_.size(); l-- > 0;) {
    backward_[l] = next;
    next += 1 + experts_[l];
  }
}

// In the forward a layer's attention comes before its experts, in the backward behind them.
int64_t ChunkPath::place(const Action& action) const {
  if (action.kind == ActionKind::kHead) return head_;
  const auto layer = static_cast<size_t>(action.layer);
  const bool attention = action.kind == ActionKind::kAttention;
  if (action.phase == Phase::kBackward) return backward_[layer] + (attention ? experts_[layer] : 0);
  if (attention) return forward_[layer];
  return forward_[layer] + (action.kind == ActionKind::kResidual ? 2 : 1);
}

ActionList layer_major(const RunShape& shape, PassExtent extent) {
  ActionList actions;
  add_forward(shape, all_microbatches(shape), actions);
  add_rest(shape, extent, actions);
  return actions;
}

ActionList microbatch_major(const RunShape& shape, PassExtent extent) {
  ActionList actions;
  for (int64_t b = 0; b < shape.microbatches; ++b) add_forward(shape, {b, 1}, actions);
  add_rest(shape, extent, actions);
  return actions;
}

ActionList make_actions(const RunShape& shape, PassExtent extent) {
  if (shape.order && extent == PassExtent::kStep) return *shape.order;
  if (shape.stages.several()) return pipeline_actions(shape, extent);
  if (shape.rounds() > 1) return zebra_actions(shape, extent);
  return shape.options.microbatch_major ? microbatch_major(shape, extent)
                                        : layer_major(shape, extent);
}

}  // namespace pagoda
