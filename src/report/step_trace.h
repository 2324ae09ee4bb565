// The trace of some steps of a run (train.trace_steps), from the beginning of the first to the end
// of the last, in OUTPUT_DIR/trace.json. Written when the last has ended or, when the run ends
// before, with what there is. A trace that cannot be written is a warning; it never stops a run.
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
  // No `steps`: nothing is traced.
  StepTrace(std::optional<StepRange> steps, std::string path);

  Trace* trace() { return trace_ ? &*trace_ : nullptr; }
  // Before step `step` (from 1) begins, and after it has ended.
  void begin_step(int64_t step);
  void end_step(int64_t step, Pager& pager);
  // When the run ends, however it does.
  void end_run();

 private:
  void write();

  std::optional<StepRange> steps_;
  std::string path_;
  std::optional<Trace> trace_;
  Trace::Lane lane_ = 0;
  int64_t first_step_ = 0, last_step_ = 0;  // that were traced; 0: none yet
  int64_t begin_us_ = 0;
  bool written_ = false;
};

}  // namespace pagoda
