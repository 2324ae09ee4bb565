// Moves pages between ranks: those of a checkpoint to where their records are at home now, when a
// run is resumed on other ranks or devices; and, between two steps, those of experts that exchange
// homes (plan/exchange/home_moves.h). It changes no bit of the run.
//
// The pages of experts that exchange homes come to the new home's host memory, and go to its page
// file with their next write. In the page file that they left, what was committed stays until the
// next commit: after an error or a kill the last checkpoint is intact, as after one in a step.
#pragma once

#include <span>
#include <vector>

#include "checkpoint/run_checkpoint.h"
#include "plan/exchange/home_moves.h"
#include "train/checkpoint_pages.h"
#include "train/session.h"
#include "train/step_runner.h"

namespace pagoda {

// [record] the homes by which each rank's store has just the pages that are at home there: those of
// `shape`, but that experts of a layer may have exchanged them between ranks, as they do in a run
// (exchange_homes()) without copies. Empty: there are none, since the run had other ranks or
// devices.
std::vector<int> homes_of(const RunCheckpoint& checkpoint, const RunShape& shape, int ranks);

// The same where rank_of has [record] the rank whose store has its pages, -1 where none has.
std::vector<int> homes_of(const std::vector<int>& rank_of, const RunShape& shape);

// Returns [store] the rank that reads it: the one that had it if it can, else the lowest that can.
// All ranks call it together. kNoCheckpoint if there is a store that none of them finds, or the
// error of the first that finds one and cannot open it.
Result<std::vector<int>> store_readers(const RunCheckpoint& checkpoint,
                                       const CheckpointPages& pages, RankGroup& ranks);

// Copies each page, with its generation, from the rank that reads its store into the page file of
// the session where it is at home. All ranks call it together; an error of one is an error of all.
Status copy_pages(CheckpointPages& pages, const std::vector<int>& readers, Session& session);

// Lets experts exchange homes, swap by swap. Where these are on devices of different ranks, the
// ranks exchange weights and optimizer states, whose generations stay; within a rank nothing moves.
// Returns the seconds that pages were on their way, once the updates that they wait for were made.
// All ranks call it together, with the same ones and between two steps; an error of one is an error
// of all, after which the session is of no more use. Takes a host buffer as large as the largest
// page that goes. REQUIRES: may_exchange() of each.
Result<double> exchange_homes(std::span<const HomeSwap> swaps, Session& session,
                              StepRunner& runner);

// The rate at which two ranks exchange a MiB, in bytes a second each way: the slowest pair's. All
// ranks call it together. REQUIRES: several ranks.
Result<double> measure_exchange(RankGroup& ranks);

}  // namespace pagoda
