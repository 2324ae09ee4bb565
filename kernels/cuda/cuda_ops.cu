#include "kernels/cuda/ops_class.cuh"

namespace pagoda {

#if defined(__CUDACC__)
std::unique_ptr<Ops> make_cuda_ops(Device& device) {
  const auto stream = device.make_stream("kernels", WorkKind::kOther);
  return std::make_unique<gpu::CudaOps>(gpu::Processor::of(*stream));
}
#else
std::unique_ptr<Ops> make_emulated_ops(bool bf16_cores, int multiprocessors) {
  return std::make_unique<emulated::CudaOps>(emulated::Processor{bf16_cores, multiprocessors});
}
#endif

}  // namespace pagoda
