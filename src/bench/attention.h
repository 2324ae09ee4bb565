// `pagoda bench attention`: causal attention over documents of growing length, against the products
// that it consists of.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bench/race/report.h"

namespace pagoda {

struct AttentionBench {
  int rounds = 0;
  int threads = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;  // even
  int64_t tokens = 0;    // of a call
  std::vector<int64_t> lengths;  // of documents, shortest first; each divides `tokens`
};

// Figures "forward" and "backward" for each length, in bf16: operations a second, counted by
// attention_operations (tile_products.h), so that operations done twice or hidden by the diagonal
// do not count. The roof is TileProducts on the same threads for as many operations.
//
// Facts "memory_LENGTH" tell what one document of that length needs: its tensors, and the kernels'
// own memory, resident and at most (kernels/working_memory.h). Stops between passes when a signal
// asks (stop_status).
Result<BenchReport> run_attention_bench(const AttentionBench& bench);

}  // namespace pagoda
