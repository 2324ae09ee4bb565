// The products that attention consists of, by themselves, which are its roof.
//
// Tiles are those of kernels/cpu/attention/attention_blocks.h, or of attention_tiles.h where the
// processor has no kernel for blocks: 128 queries times 128 keys over a head's width, and their
// weights times 128 values. Keys and values are packed and stay in the core's cache, as those of a
// document of 1024 tokens do.
#pragma once

#include <cstdint>

#include "bench/race/timing.h"
#include "device/device.h"

namespace pagoda {

class TileProducts {
 public:
  // Makes products for heads of `head_dim` values, on the threads of `stream`, which is not owned.
  static Result<TileProducts> make(int64_t head_dim, Stream* stream);

  // Computes at least `operations` (a multiply and an addition are two), in equal parts on all
  // threads; Timing::bytes says how many.
  Timing run(int64_t operations);

 private:
  struct Share;
  TileProducts(int64_t head_dim, Stream* stream) : head_dim_(head_dim), stream_(stream) {}
  Share share(int64_t thread) const;
  int64_t share_bytes() const;
  void pack(const Share& share) const;
  void multiply(const Share& share, int64_t tiles) const;
  void multiply_blocks(const Share& share, int64_t tiles) const;
  int64_t operand_bytes() const;

  int64_t head_dim_;
  Stream* stream_;
  HostMemory memory_;  // a share a thread
};

// Operations of causal attention over `tokens` in documents of `document_len`: of the two products
// of the forward and of the five of the backward, without those above the diagonal.
struct AttentionOperations {
  int64_t forward = 0, backward = 0;
};
AttentionOperations attention_operations(int64_t tokens, int64_t document_len, int64_t heads,
                                         int64_t head_dim);

}  // namespace pagoda
