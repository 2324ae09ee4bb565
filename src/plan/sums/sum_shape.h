// How the sums over a step's microbatches are divided. A sum in floating point depends on its
// order, so the order follows logical numbers of the run file and never who computes: one device or
// several make the same bits.
//
// The M microbatches form a grid of C chunks by W = M / C columns, and neighbouring columns form a
// shard:
//   chunk(b) = b / W,   shard(b) = (b mod W) D / W,   D divides W
// A dense record's gradient is a chain over the microbatches of each shard in ascending order, from
// zero; the shards' sums are the leaves of a binary tree: neighbours are added in pairs (0 1), (2
// 3), .., pairs in pairs, and one without a neighbour goes up alone.
//
// An expert's row blocks (plan/step/expert_blocks.h) begin anew in every cell of the grid:
//   cell(b) = chunk(b) X + shard(b) X / D,   X = 1 or D
// With X = 1 its gradient is one chain over its row blocks. With X = D it is summed as a dense
// record's is, so that several devices may compute rows of one expert; a shard in which the expert
// has no rows is no leaf, and its neighbour goes up alone. Pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagoda {

struct SumShape {
  int64_t chunks = 1;  // C, divides M
  int64_t shards = 1;  // D, divides M / C
  int64_t expert_shards = 1;  // X

  int64_t columns(int64_t microbatches) const { return microbatches / chunks; }
  // The shard of microbatch b of so many.
  int64_t shard(int64_t b, int64_t microbatches) const {
    const int64_t w = columns(microbatches);
    return b % w * shards / w;
  }
  int64_t cells() const { return chunks * expert_shards; }
  int64_t cell(int64_t b, int64_t microbatches) const {
    const int64_t w = columns(microbatches);
    return b / w * expert_shards + b % w * expert_shards / w;
  }
  // Gradients of experts are summed in pages (plan/step/pages.h), since a group of rows does not
  // complete them.
  bool pages_expert_sums(bool by_chunks) const {
    return expert_shards > 1 || (by_chunks && chunks > 1);
  }
  bool operator==(const SumShape&) const = default;
};

// The shape for fewer microbatches, as far as these can be divided alike.
SumShape coarser(const SumShape& sums, int64_t microbatches);

// The largest of 8, 4, 2 and 1 that divides the columns, whatever the devices, so that a run that
// begins on one device may go on with eight.
int64_t default_shards(int64_t columns);

// `shard_device`: [shard], or empty for device 0.
inline int device_of_shard(const std::vector<int>& shard_device, int64_t shard) {
  return shard_device.empty() ? 0 : shard_device[static_cast<size_t>(shard)];
}
inline bool attends(const std::vector<int>& shard_device, int device) {
  if (shard_device.empty()) return device == 0;
  return std::find(shard_device.begin(), shard_device.end(), device) != shard_device.end();
}
// The devices of so many shards in place of shard_device.size(), which they divide: each of the
// fewer shards goes where the first of those went that it is made of.
std::vector<int> fewer_shards(const std::vector<int>& shard_device, int64_t shards);

}  // namespace pagoda
