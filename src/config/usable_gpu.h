// The GPU that a run may compute on: the first one, where this build has kernels for it.
#pragma once

#include <optional>
#include <string>

#include "device/gpus.h"

namespace pagoda {

struct UsableGpu {
  std::optional<Gpu> gpu;
  std::string why_not;  // one line, with what to do; empty: there is one
  bool is_there = false;  // there is a GPU, usable or not
};
UsableGpu usable_gpu();

}  // namespace pagoda
