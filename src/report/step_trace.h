// Writes the trace of some steps of a run (train.trace_steps), from the beginning of the first to
// the end of the last, to OUTPUT_DIR/trace.json. It is written when the last step has ended, or
// when the run ends. A trace that cannot be written is a warning; it never stops a run.
//
// With several ranks each has one, and all of them make every call together. Rank 0 writes the file
// of all, at the times of its clock. Their clocks are compared before the first step and behind the
// last, and no transfer is received before it was sent. After the loss of a rank the file has what
// rank 0 alone did.
//
// One thread uses it. It outlives what is traced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/trace.h"
#include "config/run_config.h"
#include "offload/pager.h"
#include "parallel/rank_clock.h"

namespace pagoda {

class StepTrace {
 public:
  // Without `steps` nothing is traced. `ranks` is not owned; nullptr: there is one.
  StepTrace(std::optional<StepRange> steps, std::string path, RankGroup* ranks = nullptr);

  Trace* trace() { return trace_ ? &*trace_ : nullptr; }
  // Call these before step `step` (from 1) begins, and after it has ended. Errors of RankGroup's.
  Status begin_step(int64_t step);
  Status end_step(int64_t step, Pager& pager);
  // Call when the run ends, in whatever way.
  Status end_run();

 private:
  // What all ranks' traces lack, and how far their clocks may differ.
  struct Together {
    int64_t cut_events = 0, error_us = 0;
  };
  bool leads() const { return ranks_.rank() == 0; }
  Status write();
  Result<Together> align();
  Status write_parts(bool with_others, int64_t cut_events, Status& written);
  Trace::Part part(int64_t origin_us) const;
  Status send_part(int64_t origin_us);
  Status receive_part(int rank, const Trace::Sink& sink);

  std::optional<StepRange> steps_;
  std::string path_;
  RankGroup alone_;
  RankGroup& ranks_;
  RankClock clock_;
  std::optional<Trace> trace_;
  Trace::Lane lane_ = 0;
  int64_t first_step_ = 0, last_step_ = 0;  // steps that were traced; 0: none yet
  int64_t begin_us_ = 0;
  bool written_ = false;
};

}  // namespace pagoda
