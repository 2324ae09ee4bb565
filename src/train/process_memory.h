// Memory of the whole process: the devices' workspaces, what the rest of their budgets is divided
// into, what lies beyond the budgets, and whether this machine has room for all of it.
#pragma once

#include "train/session.h"

namespace pagoda {

// Bytes of the workspaces of all devices, which the budgets include.
int64_t workspace_bytes(const ModelConfig& config, const SessionOptions& options);

// Chooses row blocks of experts that go together, and waves in flight, on devices with this budget.
// `shape` may be a part of make_run_shape(model, setup), that of one of several equal devices.
GroupChoice choose_group(const RunShape& shape, const ModelShape& model, const RunSetup& setup,
                         const DeviceBudget& budget);

// What these take (plan/memory/group_choice.h). Likewise.
std::vector<int64_t> group_bytes(const RunShape& shape, const ModelShape& model,
                                 const RunSetup& setup);

// For how many layers weights of other ranks stay on devices with this budget. Likewise.
int64_t choose_guest_layers(const RunShape& shape, const ModelShape& model, const RunSetup& setup,
                            const DeviceBudget& budget);

// The budget of each device and of the host, with the workspace that each device takes.
MemoryBudget make_budget(const ModelShape& model, const RunSetup& setup,
                         const DeviceBudget& device_bytes, int64_t host_bytes);

// Sets RunSetup::table_ranks of a run that trains by the budgets of all ranks, which call it
// together. The errors of check_layers() and check_pages().
Status choose_table_ranks(const ModelConfig& config, SessionOptions& options);

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
