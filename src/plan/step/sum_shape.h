// How the sums over a step's microbatches are divided. A sum in floating point depends on its
// order, so the order follows logical numbers of the run file and never who computes: one device or
// several make the same bits.
//
// The M microbatches form a grid of C chunks by W = M / C columns, and neighbouring columns form a
// shard:
//   chunk(b) = b / W,   shard(b) = (b mod W) D / W,   D divides W
// A dense record's gradient is a chain over the microbatches of each shard in ascending order, from
// zero; the shards' sums are the leaves of a binary tree: neighbours are added in pairs (0 1), (2
// 3), .., pairs in pairs, and one without a neighbour goes up alone. An expert's row blocks
// (plan/step/expert_blocks.h) begin anew in every chunk. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace pagoda {

struct SumShape {
  int64_t chunks = 1;  // C, divides M
  int64_t shards = 1;  // D, divides M / C
  bool operator==(const SumShape&) const = default;
};

// The shape for fewer microbatches, as far as these can be divided alike.
SumShape coarser(const SumShape& sums, int64_t microbatches);

// The largest of 8, 4, 2 and 1 that divides the columns, whatever the devices, so that a run that
// begins on one device may go on with eight.
int64_t default_shards(int64_t columns);

// A microbatch's place in the sum of a dense gradient.
struct Summand {
  int64_t microbatch = 0;
  int64_t shard = 0;
  bool first = false;  // of its shard: its chain begins at zero
  int64_t buffer = 0;  // holds its shard's sum
  // How many sums are added behind it, each into the one before: buffer into buffer - 1, and so on.
  int64_t additions = 0;
};
// All M microbatches, shard by shard, so that a device that has them all keeps few buffers: as a
// binary counter carries, two sums of as many shards become one. The whole sum ends in buffer 0.
// REQUIRES: the shape divides.
std::vector<Summand> summation_order(const SumShape& sums, int64_t microbatches);
// The buffers that it names: 1 for one shard, 4 for eight.
int64_t sum_buffers(const SumShape& sums);

}  // namespace pagoda
