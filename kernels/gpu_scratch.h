// The memory that a GPU's ops use while they run: lists of tiles, sums of blocks. It is a stream's
// scratch (Stream::use_scratch), part of the device's arena, so that a run's budget includes it and
// no op asks the driver for memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "device/device.h"
#include "kernels/attention_graph.h"
#include "kernels/expert_products.h"
#include "kernels/library_choice.h"
#include "kernels/ops.h"

namespace pagoda {

// The sizes of the largest calls on a stream.
struct OpSizes {
  int64_t tokens = 0;  // rows of a call of attention, rope, routing, indexing, cross-entropy
  int64_t heads = 0, head_dim = 0;
  int64_t num_experts = 0, experts_per_token = 0;
  int64_t gradient_elements = 0;  // elements in a call of finish_gradient
  int64_t spans = 0;              // spans of a record that Adam updates
};

inline constexpr int64_t kScratchAlign = 64;

// One op's temporaries in the scratch, behind each other. The next op's begin at the same place,
// since it runs after this one.
class OpScratch {
 public:
  OpScratch(Stream& s, const char* op) : scratch_(s.scratch()), op_(op) {}
  void* take(int64_t bytes) {
    std::byte* taken = scratch_.data() + used_;
    used_ += align_up(bytes, kScratchAlign);
    CHECK(used_ <= std::ssize(scratch_), "%s takes %lld bytes for itself, its stream has %lld",
          op_, static_cast<long long>(used_), static_cast<long long>(scratch_.size()));
    return taken;
  }

 private:
  const std::span<std::byte> scratch_;
  const char* const op_;
  int64_t used_ = 0;
};

// What finish_gradient takes, of a sum for each piece of the gradient.
inline int64_t gradient_scratch_bytes(int64_t elements) {
  constexpr int64_t kPiece = 4096;
  return align_up(std::max<int64_t>(div_ceil(elements, kPiece), 1) * 8, kScratchAlign);
}

// What index_rows takes: the first row of each expert, and its counts in the chunks of choices.
inline int64_t index_scratch_bytes(const OpSizes& sizes) {
  constexpr int64_t kChunk = 256;  // choices
  const int64_t chunks = div_ceil(sizes.tokens * sizes.experts_per_token, kChunk);
  const auto room = [&](int64_t lists) {
    return align_up(std::max<int64_t>(lists * sizes.num_experts, 1) * 4, kScratchAlign);
  };
  return room(1) + room(chunks);
}

// The most that one op of kernels/ops.h, or gpu_adam, takes in calls of `sizes`.
inline int64_t gpu_scratch_bytes(const OpSizes& sizes) {
  const auto room = [](int64_t count, int64_t bytes) {
    return align_up(std::max<int64_t>(count, 1) * bytes, kScratchAlign);
  };
  const int64_t t = sizes.tokens, e = sizes.num_experts;
  const int64_t by_library = library_attention_is_preferred()
                                 ? library_attention_bytes(t, sizes.heads, sizes.head_dim) : 0;
  const int64_t blocks = div_ceil(t, kRowBlock);
  return std::max({
      by_library,                                                   // attention
      library_experts_are_preferred() ? kLibraryProductsBytes : 0,  // products of experts
      room(sizes.head_dim / 2, 8),                                  // rope: frequencies
      room(sizes.heads * t, 4) + room(t, 16),  // attention_backward: a number a row of
                                               // a head; tiles, of a row at least
      room(blocks * e, 4) + room(blocks * e, 8) + room(t, 4),  // route: totals of blocks, sums of
                                                               // scores
      index_scratch_bytes(sizes), gradient_scratch_bytes(sizes.gradient_elements),
      room(t, 8),             // cross_entropy: losses of rows
      room(sizes.spans, 16),  // gpu_adam
  });
}

}  // namespace pagoda
