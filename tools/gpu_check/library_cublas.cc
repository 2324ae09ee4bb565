#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <algorithm>

#include "device/cuda_stream.h"
#include "tools/gpu_check/library.h"

namespace pagoda::check {
namespace {

int narrow(int64_t v) { return static_cast<int>(v); }

#if CUBLAS_VERSION >= 120500
// The arguments of cublasGemmGroupedBatchedEx, a group a product. Row-major, so cuBLAS sees the
// transposes.
class GroupedCall {
 public:
  GroupedCall(int64_t n, int64_t k, const std::vector<Product>& products) {
    std::vector<const void*> pointers[3];  // what cuBLAS calls A, B and C
    for (const Product& product : products) {
      if (product.rows == 0) continue;
      rows_.push_back(narrow(product.rows));
      pointers[0].push_back(product.b);
      pointers[1].push_back(product.a);
      pointers[2].push_back(product.c);
    }
    const size_t count = rows_.size(), bytes = count * sizeof(void*);
    transpose_.assign(count, CUBLAS_OP_T);
    plain_.assign(count, CUBLAS_OP_N);
    n_.assign(count, narrow(n));
    k_.assign(count, narrow(k));
    ones_.assign(count, 1);
    alpha_.assign(count, 1.0f);
    beta_.assign(count, 0.0f);
    CHECK(cudaMalloc(&pointers_, 3 * std::max<size_t>(bytes, 1)) == cudaSuccess);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(cudaMemcpy(list(i), pointers[i].data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    }
  }
  ~GroupedCall() { cudaFree(pointers_); }
  GroupedCall(const GroupedCall&) = delete;
  GroupedCall& operator=(const GroupedCall&) = delete;

  void run(cublasHandle_t handle) const {
    if (rows_.empty()) return;
    CHECK(cublasGemmGroupedBatchedEx(handle, transpose_.data(), plain_.data(), n_.data(),
                                     rows_.data(), k_.data(), alpha_.data(), list(0), CUDA_R_16BF,
                                     k_.data(), list(1), CUDA_R_16BF, k_.data(), beta_.data(),
                                     list(2), CUDA_R_16BF, n_.data(), narrow(std::ssize(rows_)),
                                     ones_.data(), CUBLAS_COMPUTE_32F) == CUBLAS_STATUS_SUCCESS);
  }

 private:
  void** list(size_t i) const { return static_cast<void**>(pointers_) + i * rows_.size(); }

  std::vector<cublasOperation_t> transpose_, plain_;
  std::vector<int> rows_, n_, k_, ones_;
  std::vector<float> alpha_, beta_;
  void* pointers_ = nullptr;  // on the GPU
};
#endif

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

  std::function<void()> grouped([[maybe_unused]] int64_t n, [[maybe_unused]] int64_t k,
                                [[maybe_unused]] const std::vector<Product>& products) override {
#if CUBLAS_VERSION >= 120500
    const auto call = std::make_shared<GroupedCall>(n, k, products);
    return [this, call] { call->run(handle_); };
#else
    return {};
#endif
  }

 private:
  cublasHandle_t handle_;
};

}  // namespace

std::unique_ptr<Library> open_library(Stream& s) { return std::make_unique<Cublas>(s); }

}  // namespace pagoda::check
