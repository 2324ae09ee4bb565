#include "plan/step/zebra_actions.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"

namespace pagoda {
namespace {

// One kind of action of all chunks.
struct Row {
  ActionKind kind;
  Phase phase;
  int64_t layer;
  int64_t lag = 0;
  int64_t next = 0;  // chunk
};

class Orders {
 public:
  Orders(const RunShape& shape, const ZebraPart& part, ZebraOrders& orders)
      : shape_(shape),
        part_(part),
        lags_(shape.zebra ? shape.lags : Lags()),
        end_(part.first_chunk + part.chunks),
        orders_(orders) {}

  void order_attention() {
    std::vector<int64_t> layers = part_.layers;
    const bool turns = part_.forward && has_last_layer();
    if (turns) layers.pop_back();
    if (part_.forward) add_each(ActionKind::kAttention, Phase::kForward, layers);
    if (turns) add(turn_of_attention());
    std::reverse(layers.begin(), layers.end());
    if (part_.backward) add_each(ActionKind::kAttention, Phase::kBackward, layers);
  }
  void order_experts() {
    std::vector<int64_t> layers;
    for (const int64_t l : part_.layers) {
      if (shape_.is_moe[static_cast<size_t>(l)]) layers.push_back(l);
    }
    if (layers.empty()) return;
    const int64_t last = layers.back();
    const bool turns = part_.forward && part_.backward && has_last_layer();
    if (turns) layers.pop_back();
    if (part_.forward) add_each(ActionKind::kExperts, Phase::kForward, layers);
    if (turns) {
      // A whole dense layer above, which is not the last, takes all chunks before any turns.
      const bool waits = last + 2 < shape_.num_layers;
      const int64_t lag = waits ? part_.chunks : lags_.expert;
      add({row(ActionKind::kExperts, Phase::kForward, last),
           row(ActionKind::kExperts, Phase::kBackward, last, lag)});
    }
    std::reverse(layers.begin(), layers.end());
    if (part_.backward) add_each(ActionKind::kExperts, Phase::kBackward, layers);
  }

 private:
  // A chunk's experts compute while attention of the next one does, and their rows are on their way
  // meanwhile: so none waits for what leaves if two more chunks are ahead.
  static constexpr int64_t kLeavingLag = 2;

  bool has_last_layer() const { return part_.layers.back() + 1 == shape_.num_layers; }
  Row row(ActionKind kind, Phase phase, int64_t layer, int64_t lag = 0) const {
    return {kind, phase, layer, lag, part_.first_chunk};
  }
  void add_each(ActionKind kind, Phase phase, const std::vector<int64_t>& layers) {
    for (const int64_t l : layers) {
      std::vector<Row> rows = {row(kind, phase, l)};
      const bool forward = kind == ActionKind::kAttention && phase == Phase::kForward;
      if (forward && leaves(l)) rows.push_back(row(ActionKind::kResidual, phase, l, kLeavingLag));
      add(std::move(rows));
    }
  }
  // What its experts give goes to another stage.
  bool leaves(int64_t layer) const {
    return shape_.zebra && shape_.is_moe[static_cast<size_t>(layer)] != 0 &&
           shape_.leaves_stage(layer);
  }
  std::vector<Row> turn_of_attention() const {
    const int64_t last = part_.layers.back();
    const bool experts = shape_.is_moe[static_cast<size_t>(last)] != 0;
    std::vector<Row> turn = {row(ActionKind::kAttention, Phase::kForward, last)};
    if (part_.head) {
      turn.push_back(row(ActionKind::kHead, Phase::kForward, -1, experts ? lags_.head : 0));
    }
    if (part_.backward) {
      const int64_t lag = experts ? lags_.attention : 0;
      turn.push_back(row(ActionKind::kAttention, Phase::kBackward, last, lag));
    }
    return turn;
  }

  // Goes through rows of which each follows the one before it by its lag.
  void add(std::vector<Row> rows) {
    while (rows.front().next < end_) {
      issue(rows.front());
      advance(rows, 1);
    }
  }
  void advance(std::vector<Row>& rows, size_t row) {
    if (row == rows.size()) return;
    Row& own = rows[row];
    const int64_t before = rows[row - 1].next;
    while (own.next < before && (before == end_ || own.next + own.lag < before)) {
      issue(own);
      advance(rows, row + 1);
    }
  }
  void issue(Row& row) {
    const int64_t width = shape_.microbatches / shape_.sums.chunks;
    ActionList& list = row.kind == ActionKind::kExperts ? orders_.experts : orders_.attention;
    list.push_back({row.kind, row.phase, row.layer, {row.next++ * width, width}});
  }

  const RunShape& shape_;
  const ZebraPart& part_;
  Lags lags_;
  int64_t end_;  // chunk
  ZebraOrders& orders_;
};

// Joins the orders of both kinds: each action behind all that it waits for. The actions of a chunk
// follow each other as it goes through the layers and back.
class Join {
 public:
  explicit Join(const RunShape& shape)
      : shape_(shape), path_(shape.is_moe), done_(static_cast<size_t>(shape.rounds()), 0) {}

  ActionList join(const ZebraOrders& orders, PassExtent extent) {
    size_t a = 0, e = 0;
    const auto& [attention, experts] = orders;
    const Action* newest = nullptr;  // of attention
    while (a < attention.size() || e < experts.size()) {
      const bool attends = a < attention.size() && ready(attention[a]);
      const bool computes = e < experts.size() && ready(experts[e]);
      CHECK(attends || computes, "lags wait for each other");
      if (computes && !(attends && follows(experts[e], *newest))) {
        issue(experts[e++]);
      } else {
        newest = &attention[a];
        issue_attention(attention[a++]);
      }
    }
    end(extent);
    return std::move(actions_);
  }

 private:
  bool moe(int64_t layer) const { return shape_.is_moe[static_cast<size_t>(layer)] != 0; }
  int64_t& done(const Action& action) {
    return done_[static_cast<size_t>(action.microbatches.first / action.microbatches.count)];
  }
  bool ready(const Action& action) { return done(action) == path_.place(action); }
  // The experts need the routing of what was issued just now.
  static bool follows(const Action& experts, const Action& attention) {
    return experts.phase == Phase::kForward && attention.kind == ActionKind::kAttention &&
           attention.layer == experts.layer && attention.phase == Phase::kForward &&
           attention.microbatches == experts.microbatches;
  }
  void issue_attention(const Action& action) {
    const bool head = action.kind == ActionKind::kHead;
    if (head || action.phase == Phase::kForward) {
      const int64_t below = (head ? shape_.num_layers : action.layer) - 1;
      if (below < 0) {
        actions_.push_back({ActionKind::kEmbed, Phase::kForward, -1, action.microbatches});
      } else if (moe(below)) {
        actions_.push_back({ActionKind::kResidual, Phase::kForward, below, action.microbatches});
      }
    }
    issue(action);
  }
  void issue(const Action& action) {
    actions_.push_back(action);
    ++done(action);
  }
  // What stands behind all layers.
  void end(PassExtent extent) {
    const int64_t width = shape_.round_microbatches();
    for (int64_t first = 0; first < shape_.microbatches; first += width) {
      const Microbatches chunk{first, width};
      const int64_t last = shape_.num_layers - 1;
      if (extent == PassExtent::kStep) {
        actions_.push_back({ActionKind::kEmbed, Phase::kBackward, -1, chunk});
      } else if (extent == PassExtent::kLayers && moe(last)) {
        actions_.push_back({ActionKind::kResidual, Phase::kForward, last, chunk});
      }
    }
  }

  const RunShape& shape_;
  ChunkPath path_;
  std::vector<int64_t> done_;  // [chunk] actions issued
  ActionList actions_;
};

}  // namespace

void add_zebra_part(const RunShape& shape, const ZebraPart& part, ZebraOrders& orders) {
  Orders of(shape, part, orders);
  of.order_attention();
  if (shape.zebra) of.order_experts();
}

ZebraOrders zebra_orders(const RunShape& shape, PassExtent extent) {
  ZebraPart all{.chunks = shape.rounds()};
  for (int64_t l = 0; l < shape.num_layers; ++l) all.layers.push_back(l);
  all.backward = extent == PassExtent::kStep;
  all.head = extent != PassExtent::kLayers;
  ZebraOrders orders;
  add_zebra_part(shape, all, orders);
  return orders;
}

ActionList join_orders(const RunShape& shape, const ZebraOrders& orders, PassExtent extent) {
  return Join(shape).join(orders, extent);
}

ActionList zebra_actions(const RunShape& shape, PassExtent extent) {
  return join_orders(shape, zebra_orders(shape, extent), extent);
}

bool lags_wait_for_each_other(const Lags& lags, bool last_is_moe, int64_t chunks) {
  if (!last_is_moe) return false;
  const int64_t ahead = std::min<int64_t>(lags.expert, chunks - 1);
  return ahead > int64_t{lags.head} + lags.attention;
}

}  // namespace pagoda
