// The tiny run on several ranks, which are threads (rank_threads.h): each has a session, a page
// file, a host memory, an optimizer and a ledger of its own.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tests/testing/ranks/rank_threads.h"
#include "tests/testing/tiny_run.h"
#include "train/pass_runner.h"

namespace pagoda {

struct RankedCase {
  int ranks = 1, devices_each = 1;
  bool smallest = false;   // budgets
  int64_t more_bytes = 0;  // than the smallest, of each device and host
  PlaceKind place = PlaceKind::kStep;
  ClipKind clip = ClipKind::kGlobal;
  int64_t attending = 0;  // devices; 0: as many as there are shards
  int64_t kept_rows = 0;
  PlanOptions plan = {};
  uint64_t seed = 1;
  bool looks = false;                      // evaluates and generates between steps
  std::optional<RankTransfer> fails = {};  // does not arrive
  int faulty = -1;                         // this rank's storage fails at
  int64_t fault_at = 0;                    // this read
  // Each rank has GPUs of its own, rank 1 those behind rank 0's.
  bool gpus = false;
  // Runs the program of each rank, instead of RankThreads.
  std::function<void(const std::function<void(RankGroup&)>&)> run = {};
  // Called by each rank, on its thread.
  std::function<void(Session&)> loaded = {};
  std::function<void(Session&, const StepResult&)> stepped = {};
};

std::string text_of(const RankedCase& c);

// What a run on ranks leaves, as all of them see it.
struct RankedOutcome {
  std::vector<Status> statuses;                  // [rank]
  std::vector<std::vector<double>> losses;       // [rank][step], and of evaluations
  std::vector<std::vector<TokenIds>> generated;  // [rank]
  std::vector<std::string> content;              // [record] weights and state, from its home
  std::vector<Paging> paging;                    // [rank] of the steps
  RankThreads::Arrived arrived;
  std::vector<RankTransfer> sent;

  std::string sha256() const;  // as outcome_hash()
};

// Adds weights and state of each record that is at home on the session's rank. [record]
void add_content(Session& session, std::vector<std::string>& content);

// Every rank ended well, and all say the same.
void expect_alike(const RankedOutcome& outcome);
// All ranks ended with one error, which says `text`.
void expect_ended(const RankedOutcome& outcome, Exit code, const std::string& text);

// A model, a text and the batches of its steps, with the losses and weights that a trainer makes of
// them in one process.
class RankedRun {
 public:
  explicit RankedRun(ClipKind clip, DType dtype = DType::kBF16, const char* model = kTinyConfig,
                     int64_t microbatch_tokens = 32, int64_t steps = 6,
                     Sharing sharing = Sharing::kRows);

  RankedOutcome on(const RankedCase& c);

  const std::string& sha256() const { return sha256_; }  // the trainer's
  TinyRun& tiny() { return run_; }

 private:
  SessionOptions options_of(const RankedCase& c, RankGroup& group) const;
  Status program(const RankedCase& c, RankGroup& group, RankedOutcome& outcome) const;
  Status look(Session& session, StepRunner& runner, int rank, RankedOutcome& outcome) const;

  TinyRun run_;
  std::vector<StepBatch> batches_;
  std::vector<double> rates_;
  std::string sha256_;
};

}  // namespace pagoda
