// `pagoda bench memory`: how many bytes a second the cores move, alone and together. These are the
// streams that copies, the optimizer and checksums are held against.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bench/race/report.h"

namespace pagoda {

struct MemoryBench {
  int64_t bytes = 0;  // of each of three arrays; multiple of threads * kStreamAlign
  int rounds = 0;
  std::vector<int> threads;  // a set of figures for each
};

// Figures "read", "write", "copy", "triad" and "update" (streams.h) for each number of threads;
// bytes are the program's own (a copy of n bytes moves 2 n). The roof they are put beside is the C
// library's memcpy on the same threads in the same round. "mbw" is its memcpy figure on one thread
// where that program is installed. Stops between passes when a signal asks (stop_status).
Result<BenchReport> run_memory_bench(const MemoryBench& bench);

}  // namespace pagoda
