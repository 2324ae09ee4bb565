#include "plan/step/sum_shape.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/check.h"

namespace pagoda {
namespace {

// Sums that wait to be added when `shards` of them are complete.
int64_t waiting(int64_t shards) { return std::popcount(static_cast<uint64_t>(shards)); }

}  // namespace

SumShape coarser(const SumShape& sums, int64_t microbatches) {
  const int64_t chunks = std::gcd(sums.chunks, microbatches);
  return {chunks, std::gcd(sums.shards, microbatches / chunks)};
}

int64_t default_shards(int64_t columns) {
  for (const int64_t shards : {8, 4, 2}) {
    if (columns % shards == 0) return shards;
  }
  return 1;
}

std::vector<Summand> summation_order(const SumShape& sums, int64_t microbatches) {
  CHECK(sums.chunks > 0 && microbatches % sums.chunks == 0);
  const int64_t columns = microbatches / sums.chunks;
  CHECK(sums.shards > 0 && columns % sums.shards == 0);
  const int64_t width = columns / sums.shards;
  std::vector<Summand> order;
  for (int64_t shard = 0; shard < sums.shards; ++shard) {
    for (int64_t i = 0; i < sums.chunks * width; ++i) {
      const int64_t microbatch = i / width * columns + shard * width + i % width;
      order.push_back({microbatch, shard, i == 0, waiting(shard), 0});
    }
    const bool last = shard + 1 == sums.shards;
    order.back().additions = waiting(shard) + 1 - (last ? 1 : waiting(shard + 1));
  }
  return order;
}

int64_t sum_buffers(const SumShape& sums) {
  int64_t buffers = 0;
  for (int64_t shard = 0; shard < sums.shards; ++shard) {
    buffers = std::max(buffers, waiting(shard) + 1);
  }
  return buffers;
}

}  // namespace pagoda
