// Memory of the whole process: the devices' workspaces, what lies beyond the budgets, and whether
// this machine has room for all of it.
#pragma once

#include "train/session.h"

namespace pagoda {

// Bytes of the workspaces of all devices, which the budgets include.
int64_t workspace_bytes(const ModelConfig& config, const SessionOptions& options);

// How many threads a session has started when it is open.
int session_threads(const SessionOptions& options);

// The most memory that the process takes beyond the budgets: code and libraries as mapped now,
// threads, tables of tensors and pages, one step's input and tasks, and the kernels' memory for
// each thread. The promised peak memory is the budgets + this.
int64_t fixed_overhead_bytes(const ModelConfig& config, const SessionOptions& options);

// What the plan takes of the host's memory, with fixed_overhead_bytes().
int64_t host_memory_bytes(const ModelConfig& config, const SessionOptions& options,
                          const MemoryPlan& memory);

// kHostMemory when host_memory_bytes(), and what others in the process take beside it, exceed the
// memory of this machine or its cgroup: the system would kill the run in the middle.
Status check_machine_memory(const ModelConfig& config, const SessionOptions& options,
                            const MemoryPlan& memory, int64_t beside_bytes = 0);

}  // namespace pagoda
