#include "kernels/cpu/cpu_ops.h"

namespace pagoda {

Ops& cpu_ops() {
  static CpuOps ops;
  return ops;
}

}  // namespace pagoda
