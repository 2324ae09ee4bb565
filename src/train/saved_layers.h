// Selective activation recomputation (Korthikanti et al. 2022, section 5), layer by layer: which
// layers of a step keep what their backward reads (model/workspace.h), instead of computing
// attention and the first product of each MLP again: as many as there is device memory left for. It
// changes no bit.
#pragma once

#include <cstdint>

#include "plan/memory/memory_plan.h"
#include "train/session.h"

namespace pagoda {

// The most that have room in memory.device, and on the CPU in this machine, beside the workspace of
// `options` and the slots of its plan, which come first. 0 unless the session trains and its
// forward and backward take the same blocks of rows.
int64_t saved_layers(const ModelConfig& config, const SessionOptions& options,
                     const MemoryPlan& memory);

// The same where no layer is kept.
SessionOptions keeping_none(const SessionOptions& options);

// Bytes that all layers would keep, on the device that has most of it.
int64_t most_kept_bytes(const ModelConfig& config, const SessionOptions& options);

}  // namespace pagoda
