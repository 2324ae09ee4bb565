// The calls of cuBLAS that products of experts make, found in its library at run time, so that the
// program starts where there is none. Tests make them up.
#pragma once

#include <cublas_v2.h>

#include <memory>

#include "kernels/cuda/library/library_products.h"

namespace pagoda {

struct CublasCalls {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasGetProperty) property = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  decltype(&cublasGemmGroupedBatchedEx) grouped = nullptr;
  decltype(&cublasGetStatusString) status_text = nullptr;
};

// The products by these calls, on streams of the GPU of `s`.
std::shared_ptr<LibraryProducts> open_cublas_products(const CublasCalls& calls, Stream& s);

}  // namespace pagoda
