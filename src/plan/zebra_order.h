// What each kind of device of a zebra group issues, in order: HeterMoE Theorem 1 with turn lags.
// Pure.
#pragma once

#include <vector>

#include "plan/zebra.h"

namespace pagoda {

// Transfers and sums stand right behind what they wait for: they go "as soon as" it is done.
struct ZebraOrder {
  std::vector<ZebraTask> attention;  // computing, transfers to the experts, sums
  std::vector<ZebraTask> expert;     // computing, transfers to the attention devices, sums
};

// REQUIRES: check_zebra(group).ok(), lags >= 0.
ZebraOrder order_zebra(const ZebraGroup& group, const TurnLags& lags);

}  // namespace pagoda
