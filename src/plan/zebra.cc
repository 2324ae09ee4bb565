#include "plan/zebra.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/zebra_order.h"

namespace pagoda {
namespace {

ZebraStream stream_of(ZebraKind kind) {
  switch (kind) {
    case ZebraKind::kAttention:
    case ZebraKind::kOffloaded:
    case ZebraKind::kHead:
    case ZebraKind::kOffloadedBackward:
    case ZebraKind::kAttentionBackward: return ZebraStream::kAttention;
    case ZebraKind::kExpert:
    case ZebraKind::kExpertBackward: return ZebraStream::kExpert;
    case ZebraKind::kDispatch:
    case ZebraKind::kDispatchAgain:
    case ZebraKind::kCombineBackward: return ZebraStream::kToExperts;
    case ZebraKind::kCombine:
    case ZebraKind::kDispatchBackward: return ZebraStream::kToAttention;
    case ZebraKind::kAttentionSum: return ZebraStream::kAttentionSums;
    case ZebraKind::kExpertSum: return ZebraStream::kExpertSums;
  }
  CHECK(false, "no such task");
}

double seconds_of(const ZebraGroup& g, const ZebraTask& task) {
  const ZebraTimes& t = g.times;
  const MicrobatchSize size =
      g.sizes.empty() ? MicrobatchSize() : g.sizes[static_cast<size_t>(task.microbatch)];
  const int64_t moved = int64_t{g.offloaded_of(task.layer)} * g.expert_devices;
  // Shares of an expert device's n / N experts; multiplied first, so that whole times stay whole.
  const auto kept = [&](double s) {
    return s * size.expert_tokens * static_cast<double>(g.experts - moved) / g.experts;
  };
  const auto acquired = [&](double s) {
    const int64_t experts = moved / g.attention_devices * g.expert_devices;
    return s * size.expert_tokens * static_cast<double>(experts) / g.experts;
  };
  switch (task.kind) {
    case ZebraKind::kAttention: return t.attention.forward_s * size.tokens;
    case ZebraKind::kDispatch:
    case ZebraKind::kDispatchAgain: return t.dispatch.forward_s * size.tokens;
    case ZebraKind::kExpert: return kept(t.expert.forward_s);
    case ZebraKind::kOffloaded: return acquired(t.offloaded_expert.forward_s);
    case ZebraKind::kCombine: return t.combine.forward_s * size.tokens;
    case ZebraKind::kHead: return t.head_s * size.tokens;
    case ZebraKind::kCombineBackward: return t.combine.backward_s * size.tokens;
    case ZebraKind::kExpertBackward: return kept(t.expert.backward_s);
    case ZebraKind::kOffloadedBackward: return acquired(t.offloaded_expert.backward_s);
    case ZebraKind::kDispatchBackward: return t.dispatch.backward_s * size.tokens;
    case ZebraKind::kAttentionBackward: return t.attention.backward_s * size.tokens;
    case ZebraKind::kAttentionSum: return t.attention_reduce_s;
    case ZebraKind::kExpertSum: return t.expert_reduce_s;
  }
  CHECK(false, "no such task");
}

// Joins the orders of the two kinds of device: each task behind all that it waits for.
class PlanMaker {
 public:
  explicit PlanMaker(const ZebraGroup& group)
      : group_(group),
        index_(static_cast<size_t>(kZebraKinds) * static_cast<size_t>(group.layers) *
                   static_cast<size_t>(group.microbatches),
               -1) {}

  // False: it waits for what is not there yet.
  bool try_add(const ZebraTask& task);
  ZebraPlan take() { return std::move(plan_); }

 private:
  int32_t& index(ZebraKind kind, int32_t layer, int32_t microbatch) {
    const int64_t row = int64_t{static_cast<int32_t>(kind)} * group_.layers + layer;
    return index_[static_cast<size_t>(row * group_.microbatches + microbatch)];
  }
  void wait_for(const ZebraTask& task);
  void need(ZebraKind kind, int32_t layer, int32_t microbatch);
  void need_output(int32_t layer, int32_t microbatch);
  void need_gradient(int32_t layer, int32_t microbatch);

  const ZebraGroup& group_;
  ZebraPlan plan_;
  std::vector<int32_t> index_;  // [kind][layer][microbatch]; -1: not there yet
  // Of the task that is being added.
  StreamTask next_;
  size_t needs_ = 0;
  bool missing_ = false;
};

bool PlanMaker::try_add(const ZebraTask& task) {
  next_ = StreamTask();
  needs_ = 0;
  missing_ = false;
  wait_for(task);
  if (missing_) return false;
  next_.stream = static_cast<int32_t>(stream_of(task.kind));
  next_.seconds = seconds_of(group_, task);
  index(task.kind, task.layer, task.microbatch) = static_cast<int32_t>(plan_.tasks.size());
  plan_.tasks.push_back(task);
  plan_.queue.push_back(next_);
  return true;
}

void PlanMaker::need(ZebraKind kind, int32_t layer, int32_t microbatch) {
  const int32_t task = index(kind, layer, microbatch);
  missing_ = missing_ || task < 0;
  CHECK(needs_ < next_.after.size());
  next_.after[needs_++] = task;
}

void PlanMaker::need_output(int32_t layer, int32_t microbatch) {
  if (!group_.has_experts(layer)) return need(ZebraKind::kAttention, layer, microbatch);
  need(ZebraKind::kCombine, layer, microbatch);
  if (group_.offloaded_of(layer) > 0) need(ZebraKind::kOffloaded, layer, microbatch);
}

// Of the layer's output.
void PlanMaker::need_gradient(int32_t layer, int32_t microbatch) {
  if (layer + 1 == group_.layers) return need(ZebraKind::kHead, layer, microbatch);
  need(ZebraKind::kAttentionBackward, layer + 1, microbatch);
}

void PlanMaker::wait_for(const ZebraTask& task) {
  const int32_t i = task.layer, j = task.microbatch;
  const bool offloaded = group_.offloaded_of(i) > 0;
  // Attention devices have tokens for each other's experts: they travel with those for the others.
  const bool exchanged = offloaded && group_.attention_devices > 1;
  switch (task.kind) {
    case ZebraKind::kAttention:
      if (i > 0) need_output(i - 1, j);
      break;
    case ZebraKind::kDispatch: need(ZebraKind::kAttention, i, j); break;
    case ZebraKind::kExpert: need(ZebraKind::kDispatch, i, j); break;
    case ZebraKind::kOffloaded:
      need(exchanged ? ZebraKind::kDispatch : ZebraKind::kAttention, i, j);
      break;
    case ZebraKind::kCombine:
      need(ZebraKind::kExpert, i, j);
      if (exchanged) need(ZebraKind::kOffloaded, i, j);
      break;
    case ZebraKind::kHead: need_output(i, j); break;
    case ZebraKind::kDispatchAgain: need(ZebraKind::kExpert, i, j); break;
    case ZebraKind::kCombineBackward: need_gradient(i, j); break;
    case ZebraKind::kExpertBackward:
      need(ZebraKind::kCombineBackward, i, j);
      if (group_.send_again) need(ZebraKind::kDispatchAgain, i, j);
      break;
    case ZebraKind::kOffloadedBackward:
      if (!exchanged) return need_gradient(i, j);
      need(ZebraKind::kCombineBackward, i, j);
      break;
    case ZebraKind::kDispatchBackward:
      need(ZebraKind::kExpertBackward, i, j);
      if (exchanged) need(ZebraKind::kOffloadedBackward, i, j);
      break;
    case ZebraKind::kAttentionBackward:
      if (!group_.has_experts(i)) return need_gradient(i, j);
      need(ZebraKind::kDispatchBackward, i, j);
      if (offloaded) need(ZebraKind::kOffloadedBackward, i, j);
      break;
    case ZebraKind::kAttentionSum: need(ZebraKind::kAttentionBackward, i, j); break;
    case ZebraKind::kExpertSum: need(ZebraKind::kExpertBackward, i, j); break;
  }
}

std::vector<int32_t> lag_choices(int32_t microbatches) {
  std::vector<int32_t> lags;
  for (int32_t lag = 0; lag <= std::min(3, microbatches - 1); ++lag) lags.push_back(lag);
  if (microbatches > 4) lags.push_back(microbatches - 1);
  return lags;
}

}  // namespace

Result<ZebraPlan> plan_zebra(const ZebraGroup& group, const TurnLags& lags) {
  RETURN_IF_ERROR(check_zebra(group));
  if (lags.head < 0 || lags.attention < 0 || lags.expert < 0) {
    return Status(Exit::kUsage,
                  "zebra plan: a turn lag is below 0; give how many microbatches more go first");
  }
  const ZebraOrder order = order_zebra(group, lags);
  PlanMaker maker(group);
  size_t a = 0, e = 0;
  for (;;) {
    const size_t before = a + e;
    while (a < order.attention.size() && maker.try_add(order.attention[a])) ++a;
    while (e < order.expert.size() && maker.try_add(order.expert[e])) ++e;
    if (a + e == before) break;
  }
  if (a < order.attention.size() || e < order.expert.size()) {
    return Status(Exit::kUsage,
                  strf("zebra plan: turn lags of %d (head), %d (attention) and %d (expert) wait "
                       "for each other; choose others",
                       lags.head, lags.attention, lags.expert));
  }
  return maker.take();
}

Result<ZebraStep> best_zebra(const ZebraGroup& group) {
  RETURN_IF_ERROR(check_zebra(group));
  std::optional<ZebraStep> best;
  const std::vector<int32_t> choices = lag_choices(group.microbatches);
  const std::vector<int32_t> turns = group.last_layer_experts ? choices : std::vector<int32_t>{0};
  for (const int32_t head : turns) {
    for (const int32_t attention : turns) {
      for (const int32_t expert : choices) {
        const TurnLags lags = {head, attention, expert};
        Result<ZebraPlan> plan = plan_zebra(group, lags);
        if (!plan.ok()) continue;  // these lags wait for each other
        StreamTimes times = time_streams(plan->queue, kZebraStreams);
        if (best && times.makespan_s >= best->times.makespan_s) continue;
        best = ZebraStep{lags, plan.take(), std::move(times)};
      }
    }
  }
  CHECK(best, "all microbatches first and then all backwards waits for nothing");
  return std::move(*best);
}

}  // namespace pagoda
