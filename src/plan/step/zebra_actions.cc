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
  Orders(const RunShape& shape, PassExtent extent) : shape_(shape), extent_(extent) {}

  ZebraOrders make() {
    order_attention();
    order_experts();
    return std::move(orders_);
  }

 private:
  // Goes through rows of which each follows the one before it by its lag.
  void add(std::vector<Row> rows) {
    while (rows.front().next < shape_.rounds()) {
      issue(rows.front());
      advance(rows, 1);
    }
  }
  void advance(std::vector<Row>& rows, size_t row) {
    if (row == rows.size()) return;
    Row& own = rows[row];
    const int64_t before = rows[row - 1].next;
    while (own.next < before && (before == shape_.rounds() || own.next + own.lag < before)) {
      issue(own);
      advance(rows, row + 1);
    }
  }
  void issue(Row& row) {
    const int64_t width = shape_.round_microbatches();
    ActionList& list = row.kind == ActionKind::kExperts ? orders_.experts : orders_.attention;
    list.push_back({row.kind, row.phase, row.layer, {row.next++ * width, width}});
  }

  void order_attention() {
    const int64_t last = shape_.num_layers - 1;
    const bool experts = shape_.is_moe[static_cast<size_t>(last)] != 0;
    for (int64_t l = 0; l < last; ++l) add({{ActionKind::kAttention, Phase::kForward, l}});
    std::vector<Row> turn = {{ActionKind::kAttention, Phase::kForward, last}};
    if (extent_ != PassExtent::kLayers) {
      turn.push_back({ActionKind::kHead, Phase::kForward, -1, experts ? shape_.lags.head : 0});
    }
    if (extent_ == PassExtent::kStep) {
      const int64_t lag = experts ? shape_.lags.attention : 0;
      turn.push_back({ActionKind::kAttention, Phase::kBackward, last, lag});
    }
    add(std::move(turn));
    for (int64_t l = last - 1; l >= 0 && extent_ == PassExtent::kStep; --l) {
      add({{ActionKind::kAttention, Phase::kBackward, l}});
    }
  }
  void order_experts() {
    std::vector<int64_t> layers;
    for (int64_t l = 0; l < shape_.num_layers; ++l) {
      if (shape_.is_moe[static_cast<size_t>(l)]) layers.push_back(l);
    }
    if (layers.empty()) return;
    const int64_t last = layers.back();
    layers.pop_back();
    for (const int64_t l : layers) add({{ActionKind::kExperts, Phase::kForward, l}});
    std::vector<Row> turn = {{ActionKind::kExperts, Phase::kForward, last}};
    if (extent_ == PassExtent::kStep) {
      // A whole dense layer above, which is not the last, takes all chunks before any turns.
      const bool waits = last + 2 < shape_.num_layers;
      const int64_t lag = waits ? shape_.rounds() : shape_.lags.expert;
      turn.push_back({ActionKind::kExperts, Phase::kBackward, last, lag});
    }
    add(std::move(turn));
    std::reverse(layers.begin(), layers.end());
    for (const int64_t l : layers) {
      if (extent_ == PassExtent::kStep) add({{ActionKind::kExperts, Phase::kBackward, l}});
    }
  }

  const RunShape& shape_;
  PassExtent extent_;
  ZebraOrders orders_;
};

// Joins the orders of both kinds: each action behind all that it waits for. The actions of a chunk
// follow each other as it goes through the layers and back.
class Join {
 public:
  explicit Join(const RunShape& shape) : shape_(shape) {
    const auto count = [&](bool moe) {
      if (moe) ++places_;
      return places_++;
    };
    for (const uint8_t moe : shape.is_moe) forward_.push_back(count(moe != 0));
    head_ = places_++;
    backward_.resize(forward_.size());
    for (size_t l = forward_.size(); l-- > 0;) backward_[l] = count(shape.is_moe[l] != 0);
    done_.assign(static_cast<size_t>(shape.rounds()), 0);
  }

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
  // How many actions of its chunk come before it.
  int64_t place(const Action& action) const {
    if (action.kind == ActionKind::kHead) return head_;
    const bool experts = action.kind == ActionKind::kExperts;
    const auto layer = static_cast<size_t>(action.layer);
    // In the forward a layer's attention comes before its experts, in the backward behind them.
    if (action.phase == Phase::kForward) return forward_[layer] - (moe(action.layer) && !experts);
    return backward_[layer] - (moe(action.layer) && experts);
  }
  int64_t& done(const Action& action) {
    return done_[static_cast<size_t>(action.microbatches.first / action.microbatches.count)];
  }
  bool ready(const Action& action) { return done(action) == place(action); }
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
  int64_t places_ = 0, head_ = 0;
  std::vector<int64_t> forward_, backward_;  // [layer] the place of its newest action in a chunk
  std::vector<int64_t> done_;                // [chunk] actions issued
  ActionList actions_;
};

}  // namespace

ZebraOrders zebra_orders(const RunShape& shape, PassExtent extent) {
  return Orders(shape, extent).make();
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
