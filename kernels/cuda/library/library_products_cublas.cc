// Products of experts by cublasGemmGroupedBatchedEx (NVIDIA, cuBLAS 12.5 and later), a group an
// expert. Matrices of cuBLAS lie column after column, ours row after row, so that it sees the
// transpose of each: y^T (columns, rows) = W x^T.
#include <array>
#include <mutex>

#include "device/cuda_stream.h"
#include "device/library_call.h"
#include "kernels/cuda/library/cublas_calls.h"

namespace pagoda {
namespace {

// An argument of each product.
template <typename T>
std::array<T, kMostTogether> all_alike(T value) {
  std::array<T, kMostTogether> values;
  values.fill(value);
  return values;
}

class CublasProducts final : public LibraryProducts {
 public:
  CublasProducts(const CublasCalls& calls, Stream& s) : calls_(calls) {
    raw_stream(s);  // its GPU becomes the thread's
    require(calls_.create(&handle_), "cublasCreate", s);
  }
  ~CublasProducts() override { calls_.destroy(handle_); }

  void run(const ExpertProducts& p, const void** pointers, void* workspace, Stream& s) override {
    const std::lock_guard lock(mutex_);
    // The workspace is the stream's own; setting a stream would take it back to cuBLAS's.
    require(calls_.set_stream(handle_, raw_stream(s)), "cublasSetStream", s);
    require(calls_.set_workspace(handle_, workspace, size_t{kProductsWorkspaceBytes}),
            "cublasSetWorkspace", s);
    const int count = static_cast<int>(p.count());
    CHECK(count <= kMostTogether);
    const auto depths = all_alike(static_cast<int>(p.depth));
    const auto columns = all_alike(static_cast<int>(p.columns)), one_each = all_alike(1);
    const auto weights = all_alike(p.depth_in_rows ? CUBLAS_OP_T : CUBLAS_OP_N);
    const auto plain = all_alike(CUBLAS_OP_N);
    const auto ones = all_alike(1.0f), zeros = all_alike(0.0f);
    const auto& weight_strides = p.depth_in_rows ? depths : columns;
    require(calls_.grouped(handle_, weights.data(), plain.data(), columns.data(), p.rows.data(),
                           depths.data(), ones.data(), pointers, CUDA_R_16BF, weight_strides.data(),
                           pointers + count, CUDA_R_16BF, depths.data(), zeros.data(),
                           const_cast<void**>(pointers + 2 * count), CUDA_R_16BF, columns.data(),
                           count, one_each.data(), CUBLAS_COMPUTE_32F),
            p.op, s);
  }

 private:
  void require(cublasStatus_t status, const char* call, Stream& s) const {
    if (status != CUBLAS_STATUS_SUCCESS) library_failed(call, calls_.status_text(status), s);
  }

  const CublasCalls calls_;
  std::mutex mutex_;  // guards the handle's stream and workspace
  cublasHandle_t handle_ = nullptr;
};

// The library stays loaded. Its major version is the header's.
Result<CublasCalls> load_cublas() {
  const std::string name = strf("libcublas.so.%d", CUBLAS_VER_MAJOR);
  void* library = ::dlopen(name.c_str(), RTLD_NOW);
  CublasCalls calls;
  if (library != nullptr && find_call(library, "cublasCreate_v2", calls.create) &&
      find_call(library, "cublasDestroy_v2", calls.destroy) &&
      find_call(library, "cublasGetProperty", calls.property) &&
      find_call(library, "cublasSetStream_v2", calls.set_stream) &&
      find_call(library, "cublasSetWorkspace_v2", calls.set_workspace) &&
      find_call(library, "cublasGemmGroupedBatchedEx", calls.grouped) &&
      find_call(library, "cublasGetStatusString", calls.status_text)) {
    return calls;
  }
  const char* why = ::dlerror();
  return Status(Exit::kUnavailable,
                std::string("cuBLAS: ") + (why == nullptr ? "a call is missing" : why));
}

// Looked for once.
const Result<CublasCalls>& loaded() {
  static const Result<CublasCalls> calls = load_cublas();
  return calls;
}

}  // namespace

std::shared_ptr<LibraryProducts> open_cublas_products(const CublasCalls& calls, Stream& s) {
  return std::make_shared<CublasProducts>(calls, s);
}

Result<std::shared_ptr<LibraryProducts>> open_library_products(Stream& s) {
  if (!loaded().ok()) return loaded().status();
  return open_cublas_products(loaded().value(), s);
}

std::string library_products_name() {
  if (!loaded().ok()) return "";
  int version[3] = {};
  const libraryPropertyType parts[] = {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL};
  for (int i = 0; i < 3; ++i) loaded().value().property(parts[i], &version[i]);
  return strf("cuBLAS %d.%d.%d", version[0], version[1], version[2]);
}

}  // namespace pagoda
