// `pagoda bench copy`: the pager's copies between host and device against a bare copy.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "bench/race/report.h"

namespace pagoda {

struct CopyBench {
  std::vector<int64_t> page_bytes;
  int64_t bytes = 0;  // on the device, and as many in host memory; multiple of 2 * kIoAlign
  int rounds = 0;
};

// Figures "upload", "download" and "both" (half of the pages up and half down at once, on two
// threads) for each page size: pages copied one behind the other by Stream::copy with an event
// after each, as the pager does. The roof is the better of memcpy and copies that bypass the cache,
// chosen by a sweep, on as many threads over the same bytes. Stops between passes when a signal
// asks (stop_status).
Result<BenchReport> run_copy_bench(const CopyBench& bench);

}  // namespace pagoda
