#include "plan/step/assignment.h"

#include <algorithm>
#include <numeric>

namespace pagoda {

std::vector<int> deal(int64_t count, std::span<const double> speeds) {
  std::vector<int64_t> taken(speeds.size(), 0);
  std::vector<int> device;
  for (int64_t i = 0; i < count; ++i) {
    size_t next = 0;
    const auto ends = [&](size_t d) { return static_cast<double>(taken[d] + 1) / speeds[d]; };
    for (size_t d = 1; d < speeds.size(); ++d) {
      if (ends(d) < ends(next)) next = d;
    }
    ++taken[next];
    device.push_back(static_cast<int>(next));
  }
  return device;
}

namespace {

// [device] which of its rank's it is.
std::vector<int> turns(size_t devices, std::span<const int> device_rank) {
  std::vector<int> turn(devices);
  std::iota(turn.begin(), turn.end(), 0);
  for (size_t d = 1; d < device_rank.size(); ++d) {
    turn[d] = device_rank[d] == device_rank[d - 1] ? turn[d - 1] + 1 : 0;
  }
  return turn;
}

}  // namespace

std::vector<int> deal_shards(int64_t shards, std::span<const double> speeds, int64_t most,
                             ShareKind shares, std::span<const int> device_rank) {
  const std::vector<int> turn = turns(speeds.size(), device_rank);
  std::vector<int> fastest(speeds.size());
  std::iota(fastest.begin(), fastest.end(), 0);
  const auto by_turns = [&](int a, int b) {
    return turn[static_cast<size_t>(a)] < turn[static_cast<size_t>(b)];
  };
  std::stable_sort(fastest.begin(), fastest.end(), by_turns);
  std::stable_sort(fastest.begin(), fastest.end(), [&](int a, int b) {
    return speeds[static_cast<size_t>(a)] > speeds[static_cast<size_t>(b)];
  });
  fastest.resize(std::min(fastest.size(), static_cast<size_t>(most)));
  std::sort(fastest.begin(), fastest.end());
  std::stable_sort(fastest.begin(), fastest.end(), by_turns);
  std::vector<double> their_speeds;
  for (const int d : fastest) {
    their_speeds.push_back(shares == ShareKind::kUniform ? 1 : speeds[static_cast<size_t>(d)]);
  }
  std::vector<int> device = deal(shards, their_speeds);
  for (int& d : device) d = fastest[static_cast<size_t>(d)];
  std::sort(device.begin(), device.end());
  return device;
}

}  // namespace pagoda
