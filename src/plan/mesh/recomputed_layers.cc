#include "plan/mesh/recomputed_layers.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/bytes.h"
#include "plan/refusals.h"

namespace pagoda {

Result<RecomputedLayers> fewest_recomputed(const StageMemory& memory, int64_t device_bytes) {
  RETURN_IF_ERROR(
      check_integer("device_bytes", device_bytes, 0, std::numeric_limits<int64_t>::max()));
  const auto saved = [&](int64_t layer) {
    return memory.layer_bytes[static_cast<size_t>(layer)] - memory.input_bytes;
  };
  std::vector<int64_t> order(memory.layer_bytes.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return saved(a) > saved(b); });
  RecomputedLayers chosen{{}, memory.peak_bytes()};
  for (const int64_t layer : order) {
    if (chosen.peak_bytes <= device_bytes || saved(layer) <= 0) break;
    // The first has most to save, so its room is enough for each.
    if (chosen.layers.empty()) chosen.peak_bytes += saved(layer);
    chosen.peak_bytes -= memory.in_flight * saved(layer);
    chosen.layers.push_back(layer);
  }
  if (chosen.peak_bytes > device_bytes) {
    return Status(Exit::kDoesNotFit,
                  strf("a stage needs %s of each device even when all its layers are computed "
                       "again; it has %s",
                       format_bytes_up(chosen.peak_bytes).c_str(),
                       format_bytes(device_bytes).c_str()));
  }
  std::sort(chosen.layers.begin(), chosen.layers.end());
  return chosen;
}

}  // namespace pagoda
