// Memory of the whole process: the devices' workspaces, what lies beyond the budgets, and whether
// this machine has room for all of it.
#pragma once

#include "train/session.h"

namespace pagoda {

// Bytes of the workspaces of all devices, which the budgets include.
int64_t workspace_bytes(const ModelConfig& config, const SessionOptions& options);

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

}  // namespace pagoda
