#include "plan/step/run_shape.h"

#include <algorithm>

namespace pagoda {

std::vector<int> RunShape::attending_devices() const {
  if (shard_device.empty()) return {0};
  std::vector<int> attending = shard_device;
  std::sort(attending.begin(), attending.end());
  attending.erase(std::unique(attending.begin(), attending.end()), attending.end());
  return attending;
}

DeviceRange RunShape::devices_of(int rank) const {
  if (device_rank.empty()) return {0, devices};
  const auto [first, end] = std::equal_range(device_rank.begin(), device_rank.end(), rank);
  return {static_cast<int>(first - device_rank.begin()), static_cast<int>(end - first)};
}

bool RunShape::rank_attends(int rank) const {
  const DeviceRange of_rank = devices_of(rank);
  for (int d = of_rank.first; d < of_rank.end(); ++d) {
    if (attends(d)) return true;
  }
  return false;
}

int64_t RunShape::sum_elements() const {
  int64_t largest = hidden_size + records[static_cast<size_t>(embedding())].num_elements;
  for (const RecordShape& record : records) {
    if (record.expert < 0) largest = std::max(largest, record.num_elements);
  }
  return largest;
}

void RunShape::set_microbatches(int64_t count) {
  const SumShape fewer = coarser(sums, count);
  shard_device = fewer_shards(shard_device, fewer.shards);
  sums = fewer;
  microbatches = count;
  for (RecordShape& record : records) {
    if (record.expert < 0 && !attends(record.device)) record.device = attending(0);
  }
}

}  // namespace pagoda
