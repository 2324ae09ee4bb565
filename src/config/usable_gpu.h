// The GPUs that a run may compute on: those it names, or the first one, where this build has
// kernels for them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "device/gpus.h"

namespace pagoda {

struct UsableGpu {
  std::optional<Gpu> gpu;
  std::string why_not;  // one line, with what to do; empty: there is one
  bool is_there = false;  // there is a GPU, usable or not
};
UsableGpu usable_gpu();  // the first

// The GPUs with these of CUDA's numbers, in their order. kUnavailable: one is not there, or this
// build has no kernels for it; the message says what to do.
Result<std::vector<Gpu>> usable_gpus(const std::vector<int>& numbers);

// GPUs that round alike: kernels are chosen by model.
bool are_alike(const std::vector<Gpu>& gpus);

}  // namespace pagoda
