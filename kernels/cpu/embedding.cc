// The embedding table: rows out, gradient rows in.
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"

namespace pagoda {

void CpuOps::embedding(DType dt, const int32_t* ids, const void* table, int64_t tokens,
                       int64_t dim, void* out, Stream& s) {
  gather_rows(dt, table, ids, tokens, dim, out, s);
}

void CpuOps::embedding_backward(DType dt, const int32_t* ids, const void* dout, int64_t tokens,
                                int64_t dim, int64_t pad_token, float* dtable, Stream& s) {
  CHECK(tokens >= 0 && dim > 0);
  s.enqueue([=, pool = &s.pool()] {
    // A token may occur twice, so threads share out columns and each walks all tokens in order.
    constexpr int64_t kColumns = 64;
    for_blocks(*pool, dim, kColumns, [&](int64_t begin, int64_t end) {
      const int64_t width = end - begin;
      for (int64_t t = 0; t < tokens; ++t) {
        if (ids[t] == pad_token) continue;
        const float* row = read_row(dt, at(dt, dout, t * dim + begin), width, Scratch::kRowA);
        float* target = dtable + ids[t] * dim + begin;
        add_row(target, row, width, target);
      }
    });
  });
}

}  // namespace pagoda
