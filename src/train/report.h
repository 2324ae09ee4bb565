// What a run says before it starts: parameters, what every tier will hold, what will page and move.
#pragma once

#include <string>
#include <vector>

#include "train/run_config.h"
#include "train/session.h"
#include "train/traffic_report.h"

namespace pagoda {

// How many threads a session has started when it is open.
int session_threads(const SessionOptions& options);

// Most memory the process takes beyond the budgets: code and libraries as they are mapped now,
// threads, tables of tensors and pages, one step's input and tasks, and what the kernels keep per
// thread. The promise of peak memory is budgets + this.
int64_t fixed_overhead_bytes(const ModelConfig& config, const SessionOptions& options);

// kHostMemory when what the plan takes and fixed_overhead_bytes() together are more than this
// machine, or its cgroup, has: the system would kill the run in the middle.
Status check_machine_memory(const ModelConfig& config, const SessionOptions& options,
                            const MemoryPlan& memory);

// Where the CPU computes though a GPU is there: a warning that says why.
void warn_of_unused_gpu(const RunConfig& config);

// Lines for the log.
std::vector<std::string> plan_report(const ModelConfig& config, const SessionOptions& options,
                                     const MemoryPlan& memory, const RunOutlook& outlook = {});

}  // namespace pagoda
