#include "plan/zebra/zebra.h"

#include <optional>
#include <utility>

#include "plan/zebra/zebra_order.h"
#include "plan/zebra/zebra_tasks.h"

namespace pagoda {

Result<ZebraPlan> plan_zebra(const ZebraGroup& group, const Lags& lags) {
  RETURN_IF_ERROR(check_zebra(group));
  RETURN_IF_ERROR(check_lags(lags));
  // Joins the orders of the two kinds of device: each task behind all that it waits for.
  const ZebraOrder order = order_zebra(group, lags);
  ZebraPlan plan;
  ZebraTasks tasks(&group, {}, 0, &plan.queue);
  const auto advance = [&](const std::vector<ZebraTask>& own, size_t& next) {
    while (next < own.size() && tasks.try_add(own[next])) plan.tasks.push_back(own[next++]);
  };
  size_t a = 0, e = 0;
  for (;;) {
    const size_t before = a + e;
    advance(order.attention, a);
    advance(order.expert, e);
    if (a + e == before) break;
  }
  if (a < order.attention.size() || e < order.expert.size()) return lags_that_wait(lags);
  return plan;
}

Result<ZebraStep> best_zebra(const ZebraGroup& group) {
  RETURN_IF_ERROR(check_zebra(group));
  std::optional<ZebraStep> best;
  for (const Lags& lags : lag_choices(group)) {
    Result<ZebraPlan> plan = plan_zebra(group, lags);
    if (!plan.ok()) continue;  // these lags wait for each other
    StreamTimes times = time_streams(plan->queue, kZebraStreams);
    if (best && times.makespan_s >= best->times.makespan_s) continue;
    best = ZebraStep{lags, plan.take(), std::move(times)};
  }
  CHECK(best, "all microbatches first and then all backwards waits for nothing");
  return std::move(*best);
}

}  // namespace pagoda
