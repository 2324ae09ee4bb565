#include "bench/sheet/machine_fit.h"

#include <algorithm>
#include <vector>

#include "base/si_units.h"

namespace pagoda {

void fit_products(std::span<const CostSample> samples, MachineSheet::Device& device) {
  const Cost cost = fit_cost(samples, 1);
  // 9 d f multiply-adds of a row; weights read twice and a gradient in fp32 summed into.
  const auto parameters = static_cast<double>(kSheetExperts.weights());
  device.gemm_tflops = 6 * parameters / cost.unit_s / kTera;
  constexpr double kMost = 1e5;  // GB/s: where reading weights hides behind the products
  device.weight_gb_s = std::min(kMost, 12 * parameters / cost.fixed_s / kGiga);
}

void fit_attention(std::span<const AttentionRates> rates, MachineSheet::Device& device) {
  std::vector<CostSample> samples;
  for (const AttentionRates& r : rates) {
    // A step has 3.5 forwards of backward work and one forward again.
    const double both = 4.5 / (2 / r.forward + 2.5 / r.backward);
    samples.push_back({1 / static_cast<double>(r.length), kTera / both});
  }
  const Cost line = fit_cost(samples, 1);
  if (line.fixed_s <= 0) {  // faster and faster: the longest's
    device.attention_tflops = 1 / samples.back().seconds;
    return;
  }
  device.attention_tflops = 1 / line.fixed_s;
  device.attention_half_tokens = line.unit_s / line.fixed_s;
}

}  // namespace pagoda
