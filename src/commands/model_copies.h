// The copies of a run's model that it keeps beside its checkpoints (train.keep_best,
// train.keep_copies): whole Hugging Face folders that need neither the run nor its store.
//
//   OUTPUT_DIR/best          of the evaluation with the lowest loss
//   OUTPUT_DIR/copies/STEP   of the newest checkpoints
//
// A copy is written as NAME.partial and renamed when it is whole, the old best before to best.old:
// whatever interrupts this, one of them is there, and the next start finds it (repair()).
// OUTPUT_DIR/copies.room holds the room of those that are still to come.
//
// Every rank of a run has this and makes the same calls; they return alike. Rank 0 has the folders.
// One thread.
#pragma once

#include <cstdint>
#include <string>

#include "config/run_config.h"
#include "parallel/rank_group.h"
#include "report/metrics.h"
#include "train/trainer.h"

namespace pagoda {

class ModelCopies {
 public:
  // All outlive the object.
  ModelCopies(const RunConfig& config, Trainer* trainer, RankGroup* ranks)
      : config_(config), trainer_(*trainer), ranks_(*ranks) {}

  // Ends what an earlier process began, and reserves room for as many copies as there may be at a
  // time, beside those that are there, and says how many bytes they take in all. kCannotCreate if
  // the disk has no such room, kIoError.
  Status begin() const;
  // Gives up what is reserved, once no copy will be written any more.
  Status release() const;
  // Writes the weights of this step boundary. kCannotCreate without room, kDiverged if a weight is
  // not finite: then the copies are those they were. exit_of_signal() after a stop was asked for.
  Status write_best(const EvalHistory& evals);
  Status write_newest(const EvalHistory& evals);

 private:
  std::string copies() const { return config_.train.output_dir + "/copies"; }
  std::string room() const { return config_.train.output_dir + "/copies.room"; }
  std::string newest() const;  // of this step
  bool leads() const { return ranks_.rank() == 0; }
  // Rank 0's work.
  Status repair() const;
  Status reserve() const;
  int64_t copies_to_come() const;
  Status hold(int64_t copies) const;
  Status prepare() const;
  Status put_best() const;
  Status put_newest() const;
  Status remove_oldest() const;

  Status write(const std::string& folder, const EvalHistory& evals);

  const RunConfig& config_;
  Trainer& trainer_;
  RankGroup& ranks_;
};

}  // namespace pagoda
