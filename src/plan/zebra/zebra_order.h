// The order in which each kind of device of a zebra group issues its tasks: HeterMoE Theorem 1 with
// lags. Pure.
#pragma once

#include <vector>

#include "base/status.h"
#include "plan/zebra/zebra.h"

namespace pagoda {

// Transfers and sums stand right behind the task that they wait for: they start as soon as it is
// done.
struct ZebraOrder {
  std::vector<ZebraTask> attention;  // computing, transfers to the experts, sums
  std::vector<ZebraTask> expert;     // computing, transfers to the attention devices, sums
};

// REQUIRES: check_zebra(group).ok(), check_lags(lags).ok().
ZebraOrder order_zebra(const ZebraGroup& group, const Lags& lags);

// kUsage for a lag below 0.
Status check_lags(const Lags& lags);
// The error for lags whose orders wait for each other.
Status lags_that_wait(const Lags& lags);
// The lags that are worth trying: 0 to 3 and R - 1 for each; the head's and attention's only if
// they count. At most 125.
std::vector<Lags> lag_choices(const ZebraGroup& group);

}  // namespace pagoda
