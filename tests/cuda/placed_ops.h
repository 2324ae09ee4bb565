// Ops of one GPU that is made up: as others, but every tensor must lie in its memory, and every
// stream be its own. Who calls them otherwise dies of a failed CHECK.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace pagoda {

std::unique_ptr<Ops> make_placed_ops(int gpu, std::unique_ptr<Ops> inner);

// Checks the same of what an op of that name is given.
void require_placed(int gpu, const char* op, Stream& s, std::span<const void* const> tensors);

}  // namespace pagoda
