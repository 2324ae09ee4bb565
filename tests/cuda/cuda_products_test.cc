// Products of experts by cuBLAS's grouped call: which calls it takes, and what it is told. cuBLAS
// is made up: it multiplies matrices that lie column after column, as BLAS defines them, when its
// stream on a made-up GPU comes to it.
#include <gtest/gtest.h>

#include <cstring>

#include "device/gpus.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/library/cublas_calls.h"
#include "tests/cuda/fake_cuda.h"
#include "tests/testing/op_testing.h"
#include "tools/gpu_check/trial.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
  const void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

namespace pagoda {
namespace {

struct FakeCublas {
  int open = 0, calls = 0;
  std::vector<int> groups;  // of each call
  cublasStatus_t next = CUBLAS_STATUS_SUCCESS;
};
FakeCublas fake;

cublasStatus_t create(cublasHandle_t* handle) {
  ++fake.open;
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(cublasHandle_t handle) {
  --fake.open;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_stream(cublasHandle_t handle, cudaStream_t stream) {
  *handle = {stream, nullptr, 0};  // its own workspace again
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t set_workspace(cublasHandle_t handle, void* workspace, size_t bytes) {
  CHECK(reinterpret_cast<uintptr_t>(workspace) % 256 == 0);
  CHECK(fake_cuda::gpu_of(workspace) == fake_cuda::gpu_of(handle->stream));
  handle->workspace = workspace;
  handle->workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
const char* status_text(cublasStatus_t) { return "made to fail"; }

// One product of a group: c (m, n) = op(a) (m, k) op(b) (k, n), each with its stride of columns.
struct FakeProduct {
  bool a_transposed;
  int64_t m, n, k, a_stride, b_stride, c_stride;

  void run(const bf16* a, const bf16* b, bf16* c) const {
    for (int64_t column = 0; column < n; ++column) {
      for (int64_t row = 0; row < m; ++row) {
        double sum = 0.0;
        for (int64_t d = 0; d < k; ++d) {
          const int64_t at = a_transposed ? d + row * a_stride : row + d * a_stride;
          sum += static_cast<double>(to_float(a[at])) * to_float(b[d + column * b_stride]);
        }
        c[row + column * c_stride] = bf16_round(static_cast<float>(sum));
      }
    }
  }
};

cublasStatus_t grouped(cublasHandle_t handle, const cublasOperation_t* transa,
                       const cublasOperation_t* transb, const int* m, const int* n, const int* k,
                       const void* alpha, const void* const* a, cudaDataType_t a_type,
                       const int* lda, const void* const* b, cudaDataType_t b_type, const int* ldb,
                       const void* beta, void* const* c, cudaDataType_t c_type, const int* ldc,
                       int groups, const int* sizes, cublasComputeType_t type) {
  if (fake.next != CUBLAS_STATUS_SUCCESS) return fake.next;
  CHECK(groups > 0 && type == CUBLAS_COMPUTE_32F && a_type == CUDA_R_16BF &&
        b_type == CUDA_R_16BF && c_type == CUDA_R_16BF);
  CHECK(handle->workspace != nullptr && handle->workspace_bytes >= size_t{1} << 20);
  const int gpu = fake_cuda::gpu_of(handle->stream);
  for (const void* list :
       {static_cast<const void*>(a), static_cast<const void*>(b), static_cast<const void*>(c)}) {
    CHECK(fake_cuda::gpu_of(list) == gpu, "lists are in the GPU's memory");
  }
  std::vector<FakeProduct> products;
  for (int i = 0; i < groups; ++i) {
    CHECK(static_cast<const float*>(alpha)[i] == 1.0f &&
          static_cast<const float*>(beta)[i] == 0.0f);
    CHECK(sizes[i] == 1 && transb[i] == CUBLAS_OP_N && m[i] > 0 && n[i] > 0 && k[i] > 0);
    products.push_back({transa[i] == CUBLAS_OP_T, m[i], n[i], k[i], lda[i], ldb[i], ldc[i]});
  }
  fake_cuda::enqueue(handle->stream, [products, a, b, c] {
    for (size_t i = 0; i < products.size(); ++i) {
      products[i].run(static_cast<const bf16*>(a[i]), static_cast<const bf16*>(b[i]),
                      static_cast<bf16*>(c[i]));
    }
  });
  ++fake.calls;
  fake.groups.push_back(groups);
  return CUBLAS_STATUS_SUCCESS;
}

class CudaProducts : public testing::Test {
 protected:
  static constexpr int64_t kMemory = 48 << 20, kScratch = 8 << 20;

  CudaProducts() {
    fake = {};
    fake_cuda::start({});
    auto opened = open_gpu(0, {kMemory, 2, nullptr});
    CHECK(opened.ok(), "%s", opened.status().message().c_str());
    device_ = opened.take();
    stream_ = device_->make_stream("compute", WorkKind::kOther);
    stream_->use_scratch({device_->arena() + kMemory - kScratch, size_t{kScratch}});
    const CublasCalls calls{create,        destroy, nullptr,    set_stream,
                            set_workspace, grouped, status_text};
    ops_ = make_emulated_ops(true, 1, {.experts = open_cublas_products(calls, *stream_)});
  }
  ~CudaProducts() override {
    ops_.reset();
    EXPECT_EQ(fake.open, 0);
  }

  void try_cases(const std::vector<check::OpCase>& cases) {
    check::Candidate candidate{ops_.get(), nullptr, stream_.get(), device_->arena(),
                               kMemory - kScratch};
    for (const check::OpCase& c : cases) {
      check::Trial trial(candidate);
      c.body(trial);
      EXPECT_EQ(trial.faults(), "") << c.name;
    }
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Ops> ops_;
};

// Forward and the inputs' gradient agree with the CPU's, in one call each for sixteen experts (a
// case runs twice), from which experts without rows are absent: of 35 each seventh.
TEST_F(CudaProducts, AreThoseOfTheCpu) {
  try_cases(check::library_product_cases());
  EXPECT_EQ(fake.groups, (std::vector<int>{1,  1,  1, 1,  4,  4, 4,  4,  13, 13, 13, 13,
                                           13, 14, 3, 13, 14, 3, 13, 14, 3,  13, 14, 3}));
}

// Ours compute what cuBLAS does not: fp32, outputs in fp32, biases, rows that are no whole vectors
// and weights that do not begin at one.
TEST_F(CudaProducts, OurKernelsComputeTheOthers) {
  std::vector<check::OpCase> cases;
  for (const check::OpCase& c : check::grouped_cases()) {
    if (c.name.find("row runs") == std::string::npos) cases.push_back(c);
  }
  ASSERT_EQ(cases.size(), 14u);
  const int64_t before = fake.calls;
  const TestTensor x(DType::kBF16, 80), w(DType::kBF16, 80);
  const auto takes = [&](DType dt, DType y_dt, int64_t in, int64_t out, const void* bias,
                         int64_t offset) {
    const RowsOfWeight expert{0, 3, static_cast<const std::byte*>(w.data()) + offset, bias};
    return library_takes(dt, x.data(), {&expert, 1}, in, out, y_dt, x.data());
  };
  constexpr DType kHalf = DType::kBF16, kFull = DType::kF32;
  EXPECT_TRUE(takes(kHalf, kHalf, 16, 8, nullptr, 0));
  EXPECT_TRUE(takes(kHalf, kHalf, 16, 8, nullptr, 16));
  EXPECT_FALSE(takes(kFull, kHalf, 16, 8, nullptr, 0));
  EXPECT_FALSE(takes(kHalf, kFull, 16, 8, nullptr, 0));
  EXPECT_FALSE(takes(kHalf, kHalf, 12, 8, nullptr, 0));
  EXPECT_FALSE(takes(kHalf, kHalf, 16, 12, nullptr, 0));
  EXPECT_FALSE(takes(kHalf, kHalf, 16, 8, w.data(), 0));
  EXPECT_FALSE(takes(kHalf, kHalf, 16, 8, nullptr, 2));
  try_cases({cases.begin(), cases.begin() + 7});  // fp32
  EXPECT_EQ(fake.calls, before);
}

// What a call needs is what is counted for it.
TEST_F(CudaProducts, TheCountedScratchIsEnough) {
  stream_->use_scratch({device_->arena() + kMemory - kScratch, size_t{kLibraryProductsBytes}});
  try_cases(check::library_product_cases());
  EXPECT_EQ(fake.calls, 24);
}

TEST_F(CudaProducts, AnErrorEndsTheProgramAndNamesTheOp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  fake.next = CUBLAS_STATUS_EXECUTION_FAILED;
  EXPECT_EXIT(try_cases(check::library_product_cases()),
              testing::ExitedWithCode(static_cast<int>(Exit::kIoError)),
              "grouped_linear.*made to fail.*compute|compute.*grouped_linear.*made to fail");
}

}  // namespace
}  // namespace pagoda
