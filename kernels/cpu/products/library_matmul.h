// Computes a whole product of bf16 by the linked library alone, on the calling thread. `pagoda
// bench gemm` compares ours with it; nothing else uses it.
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
  // Packs B, which is (k, n) or, if `transposed`, (n, k) with row stride ldb, in the order that the
  // library likes best.
  virtual void pack(const bf16* b, int64_t ldb, bool transposed, void* packed) = 0;
  virtual void multiply(const bf16* a, const void* b, void* c) = 0;
};

// Makes an object for one thread. nullptr: no library is linked, or it has no such product.
std::unique_ptr<LibraryMatmul> make_library_matmul(const MatmulShape& shape);

}  // namespace pagoda
