// The kernels of a GPU that is made up are the CPU's: its memory is the host's, and host work on
// its streams is in order with copies. So a whole run on it has the CPU's bits. Or they are the
// GPU's own, emulated, which use the scratch of their stream. Either way tensors must lie in the
// memory of the ops' own GPU.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cuda/adam.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/machine/machine_emulated.h"
#include "kernels/gpu_adam.h"
#include "kernels/gpu_ops.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/cuda/placed_ops.h"

namespace pagoda {
namespace {

bool emulated_now = false;

}  // namespace

void fake_cuda::emulate_kernels(bool emulated) {
  emulated_now = emulated;
  emulated::take_heap(!emulated);
}

std::string gpu_ops_architectures() { return "75,80"; }
std::string gpu_ops_build() { return "made up"; }
bool gpu_ops_take_head(int64_t head_dim) { return head_dim != 12; }
std::unique_ptr<Ops> make_gpu_ops(Device& device) {
  constexpr int kMultiprocessors = 2;
  if (emulated_now) {
    return make_placed_ops(device.gpu(), make_emulated_ops(true, kMultiprocessors));
  }
  return make_placed_ops(device.gpu(), std::make_unique<CpuOps>());
}

void gpu_adam(const AdamStep& step, const AdamRecord& record, const void* grad, float grad_scale,
              int32_t* finite, Stream& s) {
  const void* tensors[] = {record.weights, record.state, grad, finite};
  require_placed(fake_cuda::gpu_of(record.weights), "gpu_adam", s, tensors);
  if (emulated_now) {
    return emulated::adam_update_on_device(step, record, grad, grad_scale, finite, s);
  }
  s.enqueue([=, &s] { *finite = adam_update(step, record, grad, grad_scale, s.pool()) ? 1 : 0; });
}

}  // namespace pagoda
