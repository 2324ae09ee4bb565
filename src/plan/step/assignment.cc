#include "plan/step/assignment.h"

namespace pagoda {

std::vector<int> deal_shards(int64_t shards, std::span<const double> speeds) {
  std::vector<int64_t> count(speeds.size(), 0);
  for (int64_t i = 0; i < shards; ++i) {
    size_t next = 0;
    const auto ends = [&](size_t d) { return static_cast<double>(count[d] + 1) / speeds[d]; };
    for (size_t d = 1; d < speeds.size(); ++d) {
      if (ends(d) < ends(next)) next = d;
    }
    ++count[next];
  }
  std::vector<int> device;
  for (size_t d = 0; d < speeds.size(); ++d) {
    device.insert(device.end(), static_cast<size_t>(count[d]), static_cast<int>(d));
  }
  return device;
}

}  // namespace pagoda
