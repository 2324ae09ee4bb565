// What a run used of its data: rows by sequence position, counted per epoch.
#pragma once

#include <vector>

#include "data/dataset.h"

namespace pagoda {

// The rows one step used.
struct RowsUsed {
  int64_t first_row = 0, rows = 0;
  bool operator==(const RowsUsed&) const = default;
};

// Steps in order use the sequence positions from 0 on without a gap, at least `epochs` epochs of
// them, and in each of these epochs every piece of every packed document once.
void expect_each_once(const Dataset& data, const std::vector<RowsUsed>& steps, uint64_t epochs);

}  // namespace pagoda
