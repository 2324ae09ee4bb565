// Writes the trace of some steps of a run (train.trace_steps), from the beginning of the first to
// the end of the last, to OUTPUT_DIR/trace.json. It is written when the last step has ended, or
// when the run ends. A trace that cannot be written is a warning; it never stops a run.
//
// One thread uses it. It outlives what is traced.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/trace.h"
#include "config/run_config.h"
#include "offload/pager.h"

namespace pagoda {

class StepTrace {
 public:
  // Without `steps` nothing is traced.
  StepTrace(std::optional<StepRange> steps, std::string path);

  Trace* trace() { return trace_ ? &*trace_ : nullptr; }
  // Call these before step `step` (from 1) begins, and after it has ended.
  void begin_step(int64_t step);
  void end_step(int64_t step, Pager& pager);
  // Call when the run ends, in whatever way.
  void end_run();

 private:
  void write();

  std::optional<StepRange> steps_;
  std::string path_;
  std::optional<Trace> trace_;
  Trace::Lane lane_ = 0;
  int64_t first_step_ = 0, last_step_ = 0;  // steps that were traced; 0: none yet
  int64_t begin_us_ = 0;
  bool written_ = false;
};

}  // namespace pagoda
