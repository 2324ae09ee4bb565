// Moves the pages of a checkpoint to the ranks where their records are at home now, when a run is
// resumed on other ranks or devices.
#pragma once

#include <vector>

#include "checkpoint/run_checkpoint.h"
#include "train/checkpoint_pages.h"
#include "train/session.h"

namespace pagoda {

// True if each rank has the store with just the pages that are at home there.
bool is_at_home(const RunCheckpoint& checkpoint, const RunShape& shape, int ranks);

// Returns [store] the rank that reads it: the one that had it if it can, else the lowest that can.
// All ranks call it together. kNoCheckpoint if there is a store that none of them finds, or the
// error of the first that finds one and cannot open it.
Result<std::vector<int>> store_readers(const RunCheckpoint& checkpoint,
                                       const CheckpointPages& pages, RankGroup& ranks);

// Copies each page, with its generation, from the rank that reads its store into the page file of
// the session where it is at home. All ranks call it together; an error of one is an error of all.
Status copy_pages(CheckpointPages& pages, const std::vector<int>& readers, Session& session);

}  // namespace pagoda
