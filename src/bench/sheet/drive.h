// A drive under pages: read, written, and both at once, so that a simulator knows whether the two
// share its time (plan/machine/machine_sheet.h).
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "offload/storage.h"

namespace pagoda {

struct DriveRates {
  double read_gb_s = 0, write_gb_s = 0;
  double both_gb_s = 0;    // half of the pages read while the others are written
  double latency_us = 0;   // of one page's read beyond its share of a long row of reads
  double cpu_s_per_gb = 0;  // processor time, the system's included
  // Whether both at once take more than three quarters of the time of one after the other. (They
  // take half of it if neither slows the other.)
  bool half_duplex() const;
};

// Medians over `rounds` of `pages` pages in a new file in `directory`, removed at the end. Stops
// between passes when a signal asks (stop_status). kCannotCreate, kIoError.
Result<DriveRates> measure_drive(Storage* storage, const std::string& directory,
                                 int64_t page_bytes, int pages, int rounds);

}  // namespace pagoda
