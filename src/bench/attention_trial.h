// The tensors that causal attention reads and writes, in the memory of any device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace pagoda {

struct AttentionBenchShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t tokens = 0;  // at most

  int64_t width() const { return heads * head_dim; }        // a token's queries
  int64_t kv_width() const { return kv_heads * head_dim; }  // keys
  int64_t stride() const { return width() + 2 * kv_width(); }
  // Bytes of all tensors for `of` tokens.
  int64_t bytes(int64_t of) const { return of * (2 * (2 * stride() + 2 * width()) + 4 * heads); }
  // bf16 values at the beginning of the memory that a forward and a backward read: queries, keys
  // and values, and the gradient of the output.
  int64_t input_elements() const { return tokens * (stride() + width()); }
};

class AttentionTrial {
 public:
  // `memory` holds shape.bytes(shape.tokens), outlives this and has values in its inputs.
  AttentionTrial(const AttentionBenchShape& shape, std::byte* memory, Ops& ops);

  // Documents of one length, which divides `tokens`. Waits.
  void forward(int64_t tokens, int64_t document_len, Stream& stream) const;
  // REQUIRES: forward() of the same documents before.
  void backward(int64_t tokens, int64_t document_len, Stream& stream) const;

  const AttentionBenchShape& shape() const { return shape_; }

 private:
  AttentionShape of(int64_t tokens) const;

  const AttentionBenchShape shape_;
  Ops& ops_;
  bf16 *qkv_, *dout_, *dqkv_, *out_;
  float* lse_;
};

}  // namespace pagoda
