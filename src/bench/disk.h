// `pagoda bench disk`: page reads and writes against the best simple program on the same file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/race/report.h"
#include "bench/roofs/disk_roof.h"
#include "offload/storage.h"

namespace pagoda {

struct DiskBench {
  std::string directory = ".";  // an existing folder; a scratch folder in it holds the files
  std::vector<int64_t> page_bytes;
  int64_t bytes = 0;  // of each page size's file
  int rounds = 0;
  IoKind io = IoKind::kAuto;
  RoofKind roof = RoofKind::kAuto;
};

// A figure for each page size, direction and path ("page file", "storage": disk_pages.h says which
// is which). In each round the roof's best setting and both paths go once over the whole file in
// each direction, each time beginning with another of the three. Stops between passes when a signal
// asks (stop_status). The files are gone when it returns.
Result<BenchReport> run_disk_bench(const DiskBench& bench);

}  // namespace pagoda
