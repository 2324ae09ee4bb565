#include "kernels/cpu/cpu_ops.h"

namespace pagoda {

// A file of its own: the linker leaves it out of a program that has another one.
Ops& cpu_ops() {
  static CpuOps ops;
  return ops;
}

}  // namespace pagoda
