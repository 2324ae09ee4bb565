#include "kernels/gpu_ops.h"

namespace pagoda {

std::string gpu_ops_architectures() { return ""; }
std::string gpu_ops_build() { return ""; }
bool gpu_ops_take_head(int64_t) { return false; }
std::unique_ptr<Ops> make_gpu_ops(Device&) {
  CHECK(false, "this build has no kernels for GPUs");
  return nullptr;
}

}  // namespace pagoda
