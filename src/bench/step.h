// `pagoda bench step`: whole training steps against the products that they consist of.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "bench/race/report.h"

namespace pagoda {

struct StepBench {
  std::string directory = ".";  // an existing folder; pages lie in a scratch folder in it
  std::string config_path;      // a config.json; empty: those of step_shapes.h
  int rounds = 0;
  int threads = 0;
  int64_t tokens = 0;        // of a step; a multiple of sequence_len
  int64_t sequence_len = 0;  // a document and a microbatch each
};

// Two figures a model, of tokens a second in bf16 with AdamW, weights and tokens random: "resident"
// with everything on the device, and "paged" with a small part of it on the device and in host
// memory, where a step must move pages to count. A step ends when its write-backs are done. The
// roof is the time of the step's products alone (step_products.h): the rest of attention, norms,
// routing and the optimizer are not in it.
//
// Facts for each: memory that the session took, and what it moved in a step. Stops between steps
// when a signal asks (stop_status). The files are gone when it returns.
Result<BenchReport> run_step_bench(const StepBench& bench);

}  // namespace pagoda
