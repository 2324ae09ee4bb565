#include "plan/step/pipeline_actions.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace pagoda {
namespace {

// The orders of one stage's work, by units of chunks.
class StageOrder {
 public:
  StageOrder(const RunShape& shape, int stage, PassExtent extent) : shape_(shape) {
    for (int64_t l = 0; l < shape.num_layers; ++l) {
      if (shape.stage_of(l) == stage) part_.layers.push_back(l);
    }
    const int64_t chunks = shape.sums.chunks;
    const PipelineOrder order = shape.stages.order;
    unit_ = order == PipelineOrder::kBreadthFirst ? chunks : shape.zebra ? kZebraUnit : 1;
    units_ = div_ceil(chunks, unit_);
    const bool alternates = order == PipelineOrder::kOneForwardOneBackward;
    ahead_ = alternates ? std::min<int64_t>(shape.stages.count - stage, units_) : units_;
    has_backward_ = extent == PassExtent::kStep;
    part_.head = extent != PassExtent::kLayers;
  }

  ZebraOrders make() {
    const bool at_once = shape_.zebra && ahead_ == 1 && has_backward_;
    for (int64_t u = 0; u < units_ && at_once; ++u) add(u, true, true);
    if (at_once) return std::move(orders_);
    for (int64_t u = 0; u < ahead_; ++u) add(u, true, false);
    for (int64_t u = 0; u < units_; ++u) {
      if (has_backward_) add(u, false, true);
      if (u + ahead_ < units_) add(u + ahead_, true, false);
    }
    return std::move(orders_);
  }

 private:
  static constexpr int64_t kZebraUnit = 2;

  void add(int64_t unit, bool forward, bool backward) {
    part_.first_chunk = unit * unit_;
    part_.chunks = std::min(unit_, shape_.sums.chunks - part_.first_chunk);
    part_.forward = forward;
    part_.backward = backward;
    add_zebra_part(shape_, part_, orders_);
  }

  const RunShape& shape_;
  ZebraPart part_;
  int64_t unit_, units_;  // chunks that are taken together, and how many such there are
  int64_t ahead_ = 0;     // units that go forward before the first goes backward
  bool has_backward_ = false;
  ZebraOrders orders_;
};

// Times the stages' work, and lists its actions.
class Pipeline {
 public:
  Pipeline(const RunShape& shape, PassExtent extent)
      : shape_(shape), extent_(extent), path_(path_of(shape)) {
    for (int stage = 0; stage < shape.stages.count; ++stage) {
      ZebraOrders orders = stage_orders(shape, stage, extent);
      for (ActionList* order : {&orders.attention, &orders.experts}) {
        kinds_.push_back({.order = std::move(*order)});
      }
    }
  }

  ActionList make() {
    for (bool left = true, went_on = true; left;) {
      CHECK(went_on, "stages wait for each other");
      left = went_on = false;
      for (Kind& kind : kinds_) {
        for (; kind.next < kind.order.size() && add(kind.order[kind.next], kind); ++kind.next) {
          went_on = true;
        }
        left = left || kind.next < kind.order.size();
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
  static ChunkPath path_of(const RunShape& shape) {
    std::vector<uint8_t> experts(shape.is_moe.size(), 0), leaves = experts;
    for (size_t l = 0; l < experts.size() && shape.zebra; ++l) {
      experts[l] = shape.is_moe[l];
      leaves[l] = shape.is_moe[l] != 0 && shape.leaves_stage(static_cast<int64_t>(l));
    }
    return ChunkPath(std::move(experts), std::move(leaves));
  }
  // One kind of a stage's devices, or all of them.
  struct Kind {
    ActionList order = {};
    size_t next = 0;
    Times newest = {};
  };

  // Adds what comes next in an order; false: what it waits for has no time yet.
  bool add(const Action& of, Kind& kind) {
    const int64_t chunk = of.microbatches.first, place = path_.place(of);
    Times before;  // of the chunk, where it was last
    if (place > 0) {
      const auto found = times_.find({place - 1, chunk});
      if (found == times_.end()) return false;
      before = found->second;
    }
    const int64_t start = std::max(before.end, kind.newest.end);
    const int64_t listed = std::max(before.listed, kind.newest.listed);
    const bool works = of.kind == ActionKind::kAttention || of.kind == ActionKind::kExperts;
    const int64_t halves = !works ? 0 : of.phase == Phase::kForward ? 1 : 2;
    const int64_t end = start + (shape_.zebra ? halves : 2 * halves);
    const int64_t routed = shape_.zebra ? before.end : start + 1;
    kind.newest = {end, list(of, routed, listed)};
    times_[{place, chunk}] = kind.newest;
    return true;
  }

  bool is_moe(int64_t layer) const { return shape_.is_moe[static_cast<size_t>(layer)] != 0; }
  // Nobody reads what the layer gives.
  bool ends(int64_t layer) const {
    return layer + 1 == shape_.num_layers && extent_ == PassExtent::kLayers;
  }
  void put(ActionKind kind, int64_t layer, const Action& of, int64_t at) {
    listed_.push_back({at, {kind, of.phase, layer, of.microbatches}});
  }

  // Lists the actions from `at` on, those that need the routing from `routed` on; returns where the
  // last one stands.
  int64_t list(const Action& of, int64_t routed, int64_t at) {
    if (of.kind == ActionKind::kExperts) return list_experts(of, routed, at);
    if (of.kind == ActionKind::kResidual) {  // behind the experts of the next chunk
      put(of.kind, of.layer, of, std::max(at, routed));
      return std::max(at, routed);
    }
    const bool forward = of.phase == Phase::kForward, head = of.kind == ActionKind::kHead;
    const int64_t l = head ? shape_.num_layers : of.layer;
    const bool together = !shape_.zebra && !head && is_moe(l);
    if (forward && l == 0) put(ActionKind::kEmbed, -1, of, at);
    const bool joins =
        shape_.zebra && forward && l > 0 && is_moe(l - 1) && !shape_.leaves_stage(l - 1);
    if (joins) put(ActionKind::kResidual, l - 1, of, at);
    if (!forward && together) put(ActionKind::kExperts, l, of, at);
    put(of.kind, of.layer, of, at);
    if (!forward && l == 0) put(ActionKind::kEmbed, -1, of, at);
    if (!forward || !together) return at;
    at = std::max(at, routed);
    put(ActionKind::kExperts, l, of, at);
    put(ActionKind::kResidual, l, of, at);
    return at;
  }
  int64_t list_experts(const Action& of, int64_t routed, int64_t at) {
    const bool forward = of.phase == Phase::kForward;
    if (forward) at = std::max(at, routed);
    put(of.kind, of.layer, of, at);
    if (forward && ends(of.layer)) put(ActionKind::kResidual, of.layer, of, at);
    return at;
  }

  const RunShape& shape_;
  PassExtent extent_;
  ChunkPath path_;
  std::vector<Kind> kinds_;
  std::map<std::pair<int64_t, int64_t>, Times> times_;  // [place, first microbatch]
  std::vector<Listed> listed_;
};

}  // namespace

ZebraOrders stage_orders(const RunShape& shape, int stage, PassExtent extent) {
  return StageOrder(shape, stage, extent).make();
}

ActionList pipeline_actions(const RunShape& shape, PassExtent extent) {
  return Pipeline(shape, extent).make();
}

}  // namespace pagoda
