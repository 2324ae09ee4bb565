// `pagoda bench adam`: updates of records against a stream that moves the same bytes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bench/race/report.h"

namespace pagoda {

struct AdamBench {
  int64_t bytes = 0;  // bytes of gradients, weights and states of all formats together
  int rounds = 0;
  int threads = 0;
  std::vector<int64_t> record_elements;  // sizes of records, besides one that fills the memory
};

// Figures "fp32", "bf16" and "8bit" (optim.state) of bf16 weights, for one record that fills the
// memory and for each smaller size. As many small records as fit are updated one after the other,
// so that all are cold. Bytes are those that an update reads and writes. The roof is stream_record
// (adam_stream.h) over the same arrays in one call for all records, on the same threads.
// "bf16:fp32" and "8bit:fp32" compare the elements updated a second with those of fp32 in the same
// round. Stops between passes when a signal asks (stop_status).
Result<BenchReport> run_adam_bench(const AdamBench& bench);

}  // namespace pagoda
