#include "plan/zebra/zebra_order.h"

#include <algorithm>
#include <utility>

namespace pagoda {
namespace {

// One kind of task of all microbatches, in a layer that turns.
struct Row {
  ZebraKind kind;
  int32_t lag;
  int32_t next = 0;  // microbatch
};

class OrderMaker {
 public:
  explicit OrderMaker(const ZebraGroup& group) : group_(group) {}

  void order_attention(const Lags& lags);
  void order_expert(const Lags& lags);
  ZebraOrder take() { return std::move(order_); }

 private:
  void add_row(ZebraKind kind, int32_t layer);
  void add_rows(std::vector<Row> rows, int32_t layer);
  void advance(std::vector<Row>& rows, size_t row, int32_t layer);
  void turn_attention(const Lags& lags);
  void issue(ZebraKind kind, int32_t layer, int32_t microbatch);
  void send_gradient(int32_t layer, int32_t microbatch);
  void sum_gradients(std::vector<ZebraTask>& tasks, ZebraKind kind, double seconds, int32_t layer,
                     int32_t microbatch) const;

  const ZebraGroup& group_;
  ZebraOrder order_;
};

void OrderMaker::add_row(ZebraKind kind, int32_t layer) {
  for (int32_t j = 0; j < group_.microbatches; ++j) issue(kind, layer, j);
}

void OrderMaker::add_rows(std::vector<Row> rows, int32_t layer) {
  while (rows.front().next < group_.microbatches) {
    issue(rows.front().kind, layer, rows.front().next++);
    advance(rows, 1, layer);
  }
}

// A task goes when the row before its own is `lag` microbatches ahead, or has ended.
void OrderMaker::advance(std::vector<Row>& rows, size_t row, int32_t layer) {
  if (row == rows.size()) return;
  Row& own = rows[row];
  const int32_t before = rows[row - 1].next;
  while (own.next < before && (before == group_.microbatches || own.next + own.lag < before)) {
    issue(own.kind, layer, own.next++);
    advance(rows, row + 1, layer);
  }
}

void OrderMaker::order_attention(const Lags& lags) {
  const int32_t last = group_.layers - 1;
  for (int32_t i = 0; i < last; ++i) {
    add_row(ZebraKind::kAttention, i);
    if (group_.offloaded_of(i) > 0) add_row(ZebraKind::kOffloaded, i);
  }
  turn_attention(lags);
  for (int32_t i = last - 1; i >= 0 && group_.backward; --i) {
    if (group_.offloaded_of(i) > 0) add_row(ZebraKind::kOffloadedBackward, i);
    add_row(ZebraKind::kAttentionBackward, i);
  }
}

void OrderMaker::turn_attention(const Lags& lags) {
  const int32_t last = group_.layers - 1;
  const bool experts = group_.has_experts(last);
  const bool offloaded = group_.offloaded_of(last) > 0;
  int32_t head_lag = experts ? lags.head : 0;
  const int32_t attention_lag = experts ? lags.attention : 0;
  std::vector<Row> rows = {{ZebraKind::kAttention, 0}};
  if (offloaded) {
    rows.push_back({ZebraKind::kOffloaded, head_lag});
    head_lag = 0;
  }
  if (group_.backward) {
    rows.push_back({ZebraKind::kHead, head_lag});
    // One attention device has the gradients that its experts need at once, several send them.
    const int32_t lag = group_.attention_devices == 1 ? 0 : attention_lag;
    if (offloaded) rows.push_back({ZebraKind::kOffloadedBackward, lag});
    rows.push_back({ZebraKind::kAttentionBackward, attention_lag});
  }
  add_rows(std::move(rows), last);
}

void OrderMaker::order_expert(const Lags& lags) {
  const int32_t last = group_.layers - (group_.last_layer_experts ? 1 : 2);
  for (int32_t i = 0; i < last; ++i) add_row(ZebraKind::kExpert, i);
  // Below a last layer without experts, gradients that attention devices send each other wait for
  // all of that layer, which waits for all of this one.
  const bool waits = !group_.last_layer_experts && group_.attention_devices > 1 &&
                     group_.offloaded_of(last) > 0;
  const int32_t lag = waits ? group_.microbatches - 1 : lags.expert;
  std::vector<Row> rows = {{ZebraKind::kExpert, 0}};
  if (group_.backward) rows.push_back({ZebraKind::kExpertBackward, lag});
  add_rows(std::move(rows), last);
  for (int32_t i = last - 1; i >= 0 && group_.backward; --i) {
    add_row(ZebraKind::kExpertBackward, i);
  }
}

void OrderMaker::issue(ZebraKind kind, int32_t layer, int32_t microbatch) {
  const bool of_expert = kind == ZebraKind::kExpert || kind == ZebraKind::kExpertBackward;
  std::vector<ZebraTask>& tasks = of_expert ? order_.expert : order_.attention;
  tasks.push_back({kind, layer, microbatch});
  switch (kind) {
    case ZebraKind::kAttention:
      if (group_.has_experts(layer)) tasks.push_back({ZebraKind::kDispatch, layer, microbatch});
      break;
    case ZebraKind::kHead: send_gradient(layer, microbatch); break;
    case ZebraKind::kAttentionBackward:
      if (layer > 0) send_gradient(layer - 1, microbatch);
      sum_gradients(tasks, ZebraKind::kAttentionSum, group_.times.attention_reduce_s, layer,
                    microbatch);
      break;
    case ZebraKind::kExpert: tasks.push_back({ZebraKind::kCombine, layer, microbatch}); break;
    case ZebraKind::kExpertBackward:
      tasks.push_back({ZebraKind::kDispatchBackward, layer, microbatch});
      sum_gradients(tasks, ZebraKind::kExpertSum, group_.times.expert_reduce_s, layer, microbatch);
      break;
    default: break;
  }
}

// The gradient of the layer's output.
void OrderMaker::send_gradient(int32_t layer, int32_t microbatch) {
  if (!group_.has_experts(layer)) return;
  if (group_.send_again) {
    order_.attention.push_back({ZebraKind::kDispatchAgain, layer, microbatch});
  }
  order_.attention.push_back({ZebraKind::kCombineBackward, layer, microbatch});
}

void OrderMaker::sum_gradients(std::vector<ZebraTask>& tasks, ZebraKind kind, double seconds,
                               int32_t layer, int32_t microbatch) const {
  const bool complete = microbatch + 1 == group_.microbatches;
  if (complete && seconds > 0) tasks.push_back({kind, layer, microbatch});
}

}  // namespace

ZebraOrder order_zebra(const ZebraGroup& group, const Lags& lags) {
  OrderMaker maker(group);
  maker.order_attention(lags);
  maker.order_expert(lags);
  return maker.take();
}

std::vector<Lags> lag_choices(const ZebraGroup& group) {
  std::vector<int32_t> choices;
  for (int32_t lag = 0; lag <= std::min(3, group.microbatches - 1); ++lag) choices.push_back(lag);
  if (group.microbatches > 4) choices.push_back(group.microbatches - 1);
  const std::vector<int32_t> turns = group.last_layer_experts ? choices : std::vector<int32_t>{0};
  std::vector<Lags> lags;
  for (const int32_t head : turns) {
    for (const int32_t attention : turns) {
      for (const int32_t expert : choices) lags.push_back({head, attention, expert});
    }
  }
  return lags;
}

Status check_lags(const Lags& lags) {
  if (lags.head >= 0 && lags.attention >= 0 && lags.expert >= 0) return Status();
  return Status(Exit::kUsage,
                "zebra plan: a turn lag is below 0; give how many microbatches more go first");
}

Status lags_that_wait(const Lags& lags) {
  return Status(Exit::kUsage,
                strf("zebra plan: turn lags of %d (head), %d (attention) and %d (expert) wait for "
                     "each other; choose others",
                     lags.head, lags.attention, lags.expert));
}

}  // namespace pagoda
