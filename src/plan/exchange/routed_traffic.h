// Makes the matrix of traffic between the devices of an expert-parallel group, for a layer whose
// routing is known (plan/step/routing_trace.h). plan/rounds/traffic.h and the orders of
// all-to-alls take it. Pure.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "plan/exchange/expert_migration.h"
#include "plan/rounds/square_matrix.h"
#include "plan/step/expert_blocks.h"

namespace pagoda {

// Entry (i, j) is the number of rows (a token and one of its experts) that device i has for the
// experts of device j; rows with i = j stay. `attends`: [microbatch] the device that has its
// tokens. Without it devices have equal parts of the step's tokens, one behind the other; within a
// microbatch the tokens of all parts are assumed to choose alike. With as many microbatches as
// devices and equally many tokens in each, entries are whole numbers: microbatch i is device i's.
// kUsage: no device, microbatch or expert, a device out of range, microbatches of other numbers of
// experts than there are, tokens that are negative or too many to be summed. O(microbatches x
// experts x devices).
Result<SquareMatrix<double>> routed_traffic(const LayerRouting& routing,
                                            const ExpertDevices& device_of_expert, int32_t devices,
                                            std::span<const int32_t> attends = {});

}  // namespace pagoda
