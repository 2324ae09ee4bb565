#include "kernels/gpu_ops.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/library_choice.h"

namespace pagoda {

std::string gpu_ops_architectures() { return PAGODA_CUDA_ARCHITECTURES; }

std::string gpu_ops_build() {
  std::string build = strf("own kernels for sm_%s by CUDA %d.%d", PAGODA_CUDA_ARCHITECTURES,
                           CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  for (const std::string& library :
       {library_attention_is_preferred() ? library_attention_name() : "",
        library_experts_are_preferred() ? library_products_name() : ""}) {
    if (!library.empty()) build += ", " + library;
  }
  return build;
}

bool gpu_ops_take_head(int64_t head_dim) {
  return head_dim > 0 && head_dim % 2 == 0 && head_dim <= kCudaMostHeadDim;
}

std::unique_ptr<Ops> make_gpu_ops(Device& device) { return make_cuda_ops(device); }

}  // namespace pagoda
