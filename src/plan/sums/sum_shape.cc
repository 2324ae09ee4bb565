#include "plan/sums/sum_shape.h"

#include <numeric>

#include "base/check.h"

namespace pagoda {
SumShape coarser(const SumShape& sums, int64_t microbatches) {
  const int64_t chunks = std::gcd(sums.chunks, microbatches);
  const int64_t shards = std::gcd(sums.shards, microbatches / chunks);
  return {chunks, shards, sums.expert_shards > 1 ? shards : 1};
}

int64_t default_shards(int64_t columns) {
  for (const int64_t shards : {8, 4, 2}) {
    if (columns % shards == 0) return shards;
  }
  return 1;
}

std::vector<int> fewer_shards(const std::vector<int>& shard_device, int64_t shards) {
  std::vector<int> fewer;
  if (shard_device.empty()) return fewer;
  const int64_t together = std::ssize(shard_device) / shards;
  CHECK(together > 0 && together * shards == std::ssize(shard_device));
  for (int64_t i = 0; i < shards; ++i) {
    fewer.push_back(shard_device[static_cast<size_t>(i * together)]);
  }
  return fewer;
}

}  // namespace pagoda
