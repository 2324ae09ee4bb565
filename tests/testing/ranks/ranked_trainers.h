// Trainers on several ranks, which are threads (rank_threads.h), over files of one machine: each
// rank has a store of its own in a folder that the others can read too.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/ranks/rank_threads.h"
#include "tests/testing/storage/storage_sim.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {

// A part of a run, from its newest checkpoint to a step that it saves.
struct RunLeg {
  int ranks = 1, devices_each = 1;
  bool smallest = false;   // budgets
  int64_t more_bytes = 0;  // than the smallest, of each device and host
  int ample_rank = -1;     // this rank's budgets are not the smallest
  bool resume = false;
  int64_t until = 0;                   // step
  uint64_t seed = 1;                   // of transfers' delays
  int64_t fails_piece = -1;            // RankWires'
  double piece_s = 0;                  // RankWires'
  bool save = true;                    // at the end
  std::vector<std::string> disk = {};  // memory.disk; none: the run's store
  // What a rank's storage does, for faults; nullptr: real files.
  std::function<Storage*(int rank)> storage = {};
  // Called by each rank on its thread, behind each step and before the first; what they return ends
  // the rank's part of the run.
  std::function<Status(Trainer&, RankGroup&)> stepped = {}, started = {};
  std::function<void(RunConfig&, int rank)> configure = {};
};

struct LegOutcome {
  std::vector<Status> statuses;      // [rank]
  std::vector<double> losses;        // of rank 0's steps; all ranks' are the same
  std::vector<Paging> paging;        // [rank] of the steps
  std::vector<Executor::RowBytes> row_bytes;  // [rank]
  std::vector<std::string> content;  // [record] weights and state at the end, from its home
  int64_t saved_step = -1;
  RankThreads::Arrived arrived;
  int64_t pieces = 0;  // sent by communicators

  bool ok() const;
  const Status& status() const { return statuses[0]; }
};

// A machine for each of two ranks of one device, for faults of its storage.
struct TwoMachines {
  SimStorage first{1}, second{2};
  SimStorage* const machines[2] = {&first, &second};

  // On these machines, which outlive it.
  RunLeg leg();
  // Restarts both, as after the programs were killed.
  void restart();
};

// All ranks ended well.
void expect_ok(const LegOutcome& outcome);
// All ranks ended with one error, which says `text`.
void expect_all_ended(const LegOutcome& outcome, Exit code, const std::string& text);

class RankedTrainers {
 public:
  // `change` makes a run of its own kind of the tiny one, `model` (a JSON object) its model.
  explicit RankedTrainers(ClipKind clip = ClipKind::kGlobal, int64_t steps = 6,
                          const std::function<void(RunConfig&)>& change = {},
                          const char* model = "{}");

  TinyRun& tiny() { return run_; }
  // A new run in a folder of its own; the folder of the one before is removed.
  void begin();
  LegOutcome run(const RunLeg& leg);
  // The last leg's losses do not count: it ended before they were saved.
  void forget_last_leg() { losses_.resize(losses_.size() - last_steps_); }
  // Hash over the losses of all legs since begin() and what the last one left.
  std::string sha256() const;
  const std::string& expected() const { return expected_; }  // of one process

 private:
  Status program(const RunLeg& leg, RankGroup& group, LegOutcome& outcome) const;

  TinyRun run_;
  std::vector<double> losses_;
  size_t last_steps_ = 0;  // of the last leg
  std::vector<std::string> content_;
  std::string expected_;
};

}  // namespace pagoda
