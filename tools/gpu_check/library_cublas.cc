#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "device/cuda_stream.h"
#include "tools/gpu_check/library.h"

namespace pagoda::check {
namespace {

int narrow(int64_t v) { return static_cast<int>(v); }

class Cublas final : public Library {
 public:
  explicit Cublas(Stream& s) {
    CHECK(cublasCreate(&handle_) == CUBLAS_STATUS_SUCCESS, "cuBLAS does not start");
    CHECK(cublasSetStream(handle_, raw_stream(s)) == CUBLAS_STATUS_SUCCESS);
  }
  ~Cublas() override { cublasDestroy(handle_); }

  // Row-major, so cuBLAS sees the transposes.
  void multiply(int64_t m, int64_t n, int64_t k, const bf16* a, const bf16* b, bf16* c) override {
    if (m == 0) return;
    const float one = 1.0f, zero = 0.0f;
    CHECK(cublasGemmEx(handle_, CUBLAS_OP_T, CUBLAS_OP_N, narrow(n), narrow(m), narrow(k), &one, b,
                       CUDA_R_16BF, narrow(k), a, CUDA_R_16BF, narrow(k), &zero, c, CUDA_R_16BF,
                       narrow(n), CUBLAS_COMPUTE_32F,
                       CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
  }

 private:
  cublasHandle_t handle_;
};

}  // namespace

std::unique_ptr<Library> open_library(Stream& s) { return std::make_unique<Cublas>(s); }

}  // namespace pagoda::check
