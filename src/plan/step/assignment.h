// Says which device does what in a step. No bit of a result follows from it. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pagoda {

// Returns [shard] the device that attends to it. Each device of `speeds` has a run of neighbouring
// shards, as many as its speed at attention allows, so that the slowest ends early: shards go one
// after the other to the device that would end first with one more. A device may have none.
// REQUIRES: speeds are above 0.
std::vector<int> deal_shards(int64_t shards, std::span<const double> speeds);

}  // namespace pagoda
