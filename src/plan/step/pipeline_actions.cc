#include "plan/step/pipeline_actions.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/check.h"

namespace pagoda {
namespace {

// The order of one stage's work.
class StageOrder {
 public:
  StageOrder(const RunShape& shape, int stage, PassExtent extent)
      : shape_(shape),
        extent_(extent),
        width_(shape.microbatches / shape.sums.chunks),
        has_head_(shape.stage_of(shape.num_layers) == stage && extent != PassExtent::kLayers) {
    for (int64_t l = 0; l < shape.num_layers; ++l) {
      if (shape.stage_of(l) == stage) layers_.push_back(l);
    }
    const int64_t chunks = shape.sums.chunks;
    const bool alternates = shape.stages.order == PipelineOrder::kOneForwardOneBackward;
    ahead_ = alternates ? std::min<int64_t>(shape.stages.count - stage, chunks) : chunks;
  }

  ActionList make() {
    const int64_t chunks = shape_.sums.chunks;
    if (shape_.stages.order == PipelineOrder::kBreadthFirst) {
      breadth_first();
      return std::move(actions_);
    }
    for (int64_t c = 0; c < ahead_; ++c) forward(c);
    for (int64_t c = 0; c < chunks; ++c) {
      backward(c);
      if (c + ahead_ < chunks) forward(c + ahead_);
    }
    return std::move(actions_);
  }

 private:
  void add(Phase phase, int64_t layer, int64_t chunk) {
    if (phase == Phase::kBackward && extent_ != PassExtent::kStep) return;
    actions_.push_back({ActionKind::kAttention, phase, layer, {chunk * width_, width_}});
    const bool last = layer + 1 == shape_.num_layers && phase == Phase::kForward;
    if (!last || !has_head_) return;
    actions_.push_back({ActionKind::kHead, Phase::kForward, -1, {chunk * width_, width_}});
  }
  void forward(int64_t chunk) {
    for (const int64_t layer : layers_) add(Phase::kForward, layer, chunk);
  }
  void backward(int64_t chunk) {
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      add(Phase::kBackward, *layer, chunk);
    }
  }
  void breadth_first() {
    const int64_t chunks = shape_.sums.chunks;
    for (const int64_t layer : layers_) {
      for (int64_t c = 0; c < chunks; ++c) add(Phase::kForward, layer, c);
    }
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      for (int64_t c = 0; c < chunks; ++c) add(Phase::kBackward, *layer, c);
    }
  }

  const RunShape& shape_;
  PassExtent extent_;
  int64_t width_;
  bool has_head_;
  int64_t ahead_ = 0;  // chunks that go forward before the first goes backward
  std::vector<int64_t> layers_;
  ActionList actions_;
};

// Times the stages' work, and lists its actions.
class Pipeline {
 public:
  Pipeline(const RunShape& shape, PassExtent extent) : shape_(shape) {
    for (int stage = 0; stage < shape.stages.count; ++stage) {
      orders_.push_back(stage_actions(shape, stage, extent));
    }
    newest_.resize(orders_.size());
  }

  ActionList make() {
    std::vector<size_t> next(orders_.size(), 0);
    for (bool left = true, went_on = true; left;) {
      CHECK(went_on, "stages wait for each other");
      left = went_on = false;
      for (size_t s = 0; s < orders_.size(); ++s) {
        for (; next[s] < orders_[s].size() && add(orders_[s][next[s]], s); ++next[s]) {
          went_on = true;
        }
        left = left || next[s] < orders_[s].size();
      }
    }
    // What waits for another action was added behind it.
    std::stable_sort(listed_.begin(), listed_.end(),
                     [](const Listed& a, const Listed& b) { return a.at < b.at; });
    ActionList actions;
    for (const Listed& listed : listed_) actions.push_back(listed.action);
    return actions;
  }

 private:
  // In half units: when it ends, and where in the list it stands.
  struct Times {
    int64_t end = 0, listed = 0;
  };
  struct Listed {
    int64_t at = 0;
    Action action;
  };
  // A chunk's place: forward through the layers, the head, and back.
  int64_t place(const Action& action) const {
    if (action.kind == ActionKind::kHead) return shape_.num_layers;
    return action.phase == Phase::kForward ? action.layer : 2 * shape_.num_layers - action.layer;
  }

  // Adds what a stage does next; false: what it waits for has no time yet.
  bool add(const Action& of, size_t stage) {
    const int64_t chunk = of.microbatches.first;
    Times before;  // of the chunk, where it was last
    if (place(of) > 0) {
      const auto found = times_.find({place(of) - 1, chunk});
      if (found == times_.end()) return false;
      before = found->second;
    }
    const int64_t start = std::max(before.end, newest_[stage].end);
    const int64_t listed = std::max(before.listed, newest_[stage].listed);
    const bool head = of.kind == ActionKind::kHead;
    const int64_t units = head ? 0 : of.phase == Phase::kForward ? 1 : 2;
    newest_[stage] = {start + 2 * units, list(of, start, listed)};
    times_[{place(of), chunk}] = newest_[stage];
    return true;
  }

  // Lists the actions from `at` on; returns where the last one stands.
  int64_t list(const Action& of, int64_t start, int64_t at) {
    const int64_t l = of.layer;
    const auto put = [&](ActionKind kind, int64_t layer) {
      listed_.push_back({at, {kind, of.phase, layer, of.microbatches}});
    };
    const bool forward = of.phase == Phase::kForward, head = of.kind == ActionKind::kHead;
    const bool moe = !head && shape_.is_moe[static_cast<size_t>(l)] != 0;
    if (forward && l == 0) put(ActionKind::kEmbed, -1);
    if (!forward && moe) put(ActionKind::kExperts, l);
    put(of.kind, l);
    if (!forward && l == 0) put(ActionKind::kEmbed, -1);
    if (!forward || !moe) return at;
    at = std::max(at, start + 1);
    put(ActionKind::kExperts, l);
    put(ActionKind::kResidual, l);
    return at;
  }

  const RunShape& shape_;
  std::vector<ActionList> orders_;                      // [stage]
  std::vector<Times> newest_;                           // [stage]
  std::map<std::pair<int64_t, int64_t>, Times> times_;  // [place, first microbatch]
  std::vector<Listed> listed_;
};

}  // namespace

ActionList stage_actions(const RunShape& shape, int stage, PassExtent extent) {
  return StageOrder(shape, stage, extent).make();
}

ActionList pipeline_actions(const RunShape& shape, PassExtent extent) {
  return Pipeline(shape, extent).make();
}

}  // namespace pagoda
