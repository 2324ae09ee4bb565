// What each kind of device of a zebra group issues, in order: HeterMoE Theorem 1 with turn lags.
// Pure.
#pragma once

#include <vector>

#include "base/status.h"
#include "plan/zebra/zebra.h"

namespace pagoda {

// Transfers and sums stand right behind what they wait for: they go "as soon as" it is done.
struct ZebraOrder {
  std::vector<ZebraTask> attention;  // computing, transfers to the experts, sums
  std::vector<ZebraTask> expert;     // computing, transfers to the attention devices, sums
};

// REQUIRES: check_zebra(group).ok(), check_lags(lags).ok().
ZebraOrder order_zebra(const ZebraGroup& group, const Lags& lags);

// kUsage for a lag below 0.
Status check_lags(const Lags& lags);
// What is said of lags whose orders wait for each other.
Status lags_that_wait(const Lags& lags);
// The lags that are worth trying: 0 to 3 and R - 1 each, of the head and of attention where they
// count. At most 125.
std::vector<Lags> lag_choices(const ZebraGroup& group);

}  // namespace pagoda
