// Drawn traffic and layers for the tests of plan/rounds/traffic.h and what stands on it. Equal
// arguments draw the same.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "plan/exchange/inference_time.h"
#include "plan/rounds/square_matrix.h"

namespace pagoda {

// Entries e^(sigma * normal), 0 on the diagonal.
SquareMatrix<double> lognormal_traffic(int devices, double sigma, uint64_t seed);

// A layer whose experts are of lognormal popularity: every part of the tokens is divided among the
// experts by it, each share varied a little. 4 KiB a token; an expert's computing time is in
// proportion to its tokens, on a device of speed 1 a fifth of the time in which they arrive at
// 12.5e9 bytes per second.
MoeLayerLoad random_layer(int experts, double sigma, uint64_t seed);

// Calls with every permutation of [0, n), in lexical order.
void each_permutation(int n, const std::function<void(const std::vector<int>&)>& call);

}  // namespace pagoda
