// The CPU's Ops. One class, its methods defined across this folder by subject.
//
// Work is split by shape alone into row blocks or tiles, and each is computed by one thread from
// start to end; sums across blocks are joined in block order. That is why results do not depend on
// the number of threads.
#pragma once

#include "kernels/ops.h"

namespace pagoda {

class CpuOps : public Ops {
 public:
#include "kernels/ops_overrides.inc"
};

}  // namespace pagoda
