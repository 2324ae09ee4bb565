// `pagoda bench gemm`: the products of experts whose weights are cold, against the limits of the
// processor and its memory, and against the linked library alone.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bench/race/report.h"

namespace pagoda {

// Bytes of weights that are surely cold when they are read again: twice the last-level cache.
int64_t cold_gemm_bytes();

struct GemmBench {
  int64_t bytes = 0;  // bytes of weights that are multiplied in turn: far more than the caches hold
  int rounds = 0;
  int threads = 0;
  int64_t hidden = 0;           // d
  std::vector<int64_t> ffn;     // f
  std::vector<int64_t> tokens;  // of an expert
};

// For each f and number of tokens, the six products of an expert forward and backward: gate and up,
// down; their two input gradients and two weight gradients. They run in the trainer's order: all
// experts forward, then all backward. Rates are of their 18 d f tokens operations.
//  - "f 768", "64 tokens": against T_roof = max(operations / what registers reach with the best
//    of the processor's instructions, two reads of the weights and one of the activations / read
//    rate + gradient / write rate), with the rates measured in the same round on the same threads.
//  - "f 768:lib": against the library's products of the same shapes, each thread on its own columns
//    of them, weights given in the library's own order: forward and input gradients have a copy
//    each. Only where a library is linked.
// The facts have the geometric mean of the latter over 16 to 256 tokens. Stops between timings when
// a signal asks (stop_status).
Result<BenchReport> run_gemm_bench(const GemmBench& bench);

}  // namespace pagoda
