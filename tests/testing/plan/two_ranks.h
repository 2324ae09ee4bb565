// A run of two ranks with numbers that are easy to count with, for what travels between them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/step/run_shape.h"

namespace pagoda {

// Each rank has a device, which attends to a microbatch of 100 tokens and is the home of one of a
// layer's two experts, of 240 elements each: d = 8, f = 10. is_moe: [layer] whether it has experts.
RunShape two_ranks(const std::vector<uint8_t>& is_moe, Sharing sharing);

}  // namespace pagoda
