#include "tests/testing/hetermoe/zebra.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "plan/step/zebra_actions.h"
#include "plan/zebra/zebra_search.h"

namespace pagoda {
namespace {

RunShape shape_of(const ZebraGroup& group, const Lags& lags) {
  RunShape shape;
  shape.num_layers = group.layers;
  for (int32_t i = 0; i < group.layers; ++i) shape.is_moe.push_back(group.has_experts(i));
  shape.microbatches = shape.sums.chunks = group.microbatches;
  shape.zebra = true;
  shape.lags = lags;
  return shape;
}

ChunkTimes chunk_times(const ZebraGroup& g, int32_t layer, int32_t microbatch) {
  const ZebraTimes& t = g.times;
  const MicrobatchSize size =
      g.sizes.empty() ? MicrobatchSize() : g.sizes[static_cast<size_t>(microbatch)];
  const int64_t moved = int64_t{g.offloaded_of(layer)} * g.expert_devices;
  // Shares of an expert device's n / N experts; multiplied first, so that whole times stay whole.
  const auto share = [&](const PassSeconds& pass, int64_t experts) {
    return pass * size.expert_tokens * static_cast<double>(experts) / g.experts;
  };
  ChunkTimes times;
  times.faster.attention = t.attention * size.tokens;
  times.faster.head_s = t.head_s * size.tokens;
  times.slower.experts = share(t.expert, g.experts - moved);
  if (moved > 0) {
    times.faster.experts =
        share(t.offloaded_expert, moved / g.attention_devices * g.expert_devices);
  }
  times.faster_exchange = g.attention_devices > 1;
  double travels = 1;
  if (g.attention_devices == 1 && moved > 0) {
    const double rows = 1 - static_cast<double>(moved) / g.experts;
    travels = rows > 0 ? t.transfer_fixed + (1 - t.transfer_fixed) * rows : 0;
  }
  const double sent = size.tokens * travels;
  times.to_experts = PassSeconds{t.dispatch.forward_s, t.combine.backward_s} * sent;
  times.to_attention = PassSeconds{t.combine.forward_s, t.dispatch.backward_s} * sent;
  return times;
}

}  // namespace

ActionList group_actions(const ZebraGroup& group, const Lags& lags) {
  return zebra_actions(shape_of(group, lags),
                       group.backward ? PassExtent::kStep : PassExtent::kLayers);
}

PaperTimes zebra_times(const ZebraGroup& group) {
  PaperTimes times;
  times.of = [&group](int32_t layer, int32_t chunk) { return chunk_times(group, layer, chunk); };
  times.chunks = group.microbatches;
  times.send_again = group.send_again;
  times.attention_sum_s = group.times.attention_reduce_s;
  times.experts_sum_s = group.times.expert_reduce_s;
  return times;
}

Status check_lags(const ZebraGroup& group, const Lags& lags) {
  if (lags.head < 0 || lags.attention < 0 || lags.expert < 0) {
    return Status(Exit::kUsage,
                  "zebra plan: a turn lag is below 0; give how many microbatches more go first");
  }
  const bool waits = group.backward &&
                     lags_wait_for_each_other(lags, group.last_layer_experts, group.microbatches);
  if (!waits) return Status();
  return Status(Exit::kUsage,
                strf("zebra plan: turn lags of %d (head), %d (attention) and %d (expert) wait for "
                     "each other; choose others",
                     lags.head, lags.attention, lags.expert));
}

Result<TimedActions> plan_zebra(const ZebraGroup& group, const Lags& lags) {
  RETURN_IF_ERROR(check_zebra(group));
  RETURN_IF_ERROR(check_lags(group, lags));
  return time_on_paper(group_actions(group, lags), zebra_times(group));
}

Result<ZebraStep> best_zebra(const ZebraGroup& group) {
  RETURN_IF_ERROR(check_zebra(group));
  std::optional<ZebraStep> best;
  for (const Lags& lags : lag_choices(group.microbatches, group.last_layer_experts)) {
    Result<TimedActions> plan = plan_zebra(group, lags);
    if (!plan.ok()) continue;  // these lags wait for each other
    StreamTimes times = time_streams(plan->queue, kPaperStreams);
    if (best && times.makespan_s >= best->times.makespan_s) continue;
    best = ZebraStep{lags, plan.take(), std::move(times)};
  }
  CHECK(best, "all microbatches first and then all backwards waits for nothing");
  return std::move(*best);
}

}  // namespace pagoda
