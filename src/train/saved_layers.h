// Selective activation recomputation (Korthikanti et al. 2022, section 5), layer by layer: a layer
// may save what its backward reads (model/workspace.h) instead of computing attention and the first
// product of each MLP again. As many layers do so as device memory is left for. It changes no bit.
#pragma once

#include <cstdint>

#include "plan/memory/memory_plan.h"
#include "train/session.h"

namespace pagoda {

// How many layers have room in memory.device, and on the CPU also in this machine, after the
// workspace of `options` and the slots of its plan. 0 unless the session trains and its forward and
// backward take the same blocks of rows.
int64_t saved_layers(const ModelConfig& config, const SessionOptions& options,
                     const MemoryPlan& memory);

// The same options, with no layer saved.
SessionOptions keeping_none(const SessionOptions& options);

// Bytes that all layers together would save, on the device with the most.
int64_t most_kept_bytes(const ModelConfig& config, const SessionOptions& options);

}  // namespace pagoda
