// The products of the library beside which gpu_check times ours: cuBLAS where the toolkit has it.
#pragma once

#include <cstdint>
#include <memory>

#include "base/dtype.h"
#include "device/device.h"

namespace pagoda::check {

class Library {
 public:
  virtual ~Library() = default;
  // c (m, n) = a (m, k) b^T, b (n, k), on the stream it was opened for.
  virtual void multiply(int64_t m, int64_t n, int64_t k, const bf16* a, const bf16* b, bf16* c) = 0;
};

// nullptr: this build has none. `s`: a GPU's stream, which outlives it.
std::unique_ptr<Library> open_library(Stream& s);

}  // namespace pagoda::check
