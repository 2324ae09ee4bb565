// A whole product of bf16 by the linked library alone, on the calling thread: what `pagoda bench
// gemm` holds ours against. Nothing else uses it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/dtype.h"

namespace pagoda {

// C (m, n) of c_dt = A (m, k) B (k, n), all dense.
struct MatmulShape {
  int64_t m, n, k;
  DType c_dt;
  bool a_transposed = false;  // A is given as (k, m): the library lays it out anew at each call
  bool b_packed = false;      // B is given as pack() left it
};

class LibraryMatmul {
 public:
  virtual ~LibraryMatmul() = default;
  virtual int64_t packed_bytes() const = 0;
  // From B as (k, n) or, `transposed`, as (n, k) with row stride ldb, into the order that the
  // library likes best.
  virtual void pack(const bf16* b, int64_t ldb, bool transposed, void* packed) = 0;
  virtual void multiply(const bf16* a, const void* b, void* c) = 0;
};

// One object a thread. nullptr: no library is linked, or it has no such product.
std::unique_ptr<LibraryMatmul> make_library_matmul(const MatmulShape& shape);

}  // namespace pagoda
