#include "plan/memory/slot_share.h"

#include <algorithm>

namespace pagoda {

void share_out(std::span<const SlotShare> shares, int64_t& left_bytes) {
  double wanted = 0;
  for (const SlotShare& s : shares) {
    wanted += static_cast<double>((s.most - *s.slots) * s.slot_bytes);
  }
  if (wanted <= 0) return;
  const double fraction = std::min(1.0, static_cast<double>(left_bytes) / wanted);
  for (const SlotShare& s : shares) {
    const auto more = static_cast<int32_t>(fraction * static_cast<double>(s.most - *s.slots));
    *s.slots += more;
    left_bytes -= more * s.slot_bytes;
  }
  for (const SlotShare& s : shares) {
    while (*s.slots < s.most && left_bytes >= s.slot_bytes) {
      ++*s.slots;
      left_bytes -= s.slot_bytes;
    }
  }
}

}  // namespace pagoda
