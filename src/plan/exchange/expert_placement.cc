#include "plan/exchange/expert_placement.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "plan/refusals.h"

namespace pagoda {
namespace {

double time_of(const ExpertTime& expert) { return std::max(expert.upload_s, expert.compute_s); }

std::vector<size_t> longest_first(std::span<const ExpertTime> experts) {
  std::vector<size_t> order(experts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return time_of(experts[a]) > time_of(experts[b]);
  });
  return order;
}

// Sums anew, so that roundings do not add up over exchanges.
void sum_devices(std::span<const ExpertTime> experts, ExpertPlacement& placement) {
  std::fill(placement.device_s.begin(), placement.device_s.end(), 0.0);
  for (size_t e = 0; e < experts.size(); ++e) {
    placement.device_s[static_cast<size_t>(placement.device_of_expert[e])] += time_of(experts[e]);
  }
}

struct Exchange {
  size_t expert = 0;  // on the busiest device
  size_t other = 0;   // an expert of another device; the same expert: exchanged for none
  int32_t device = 0;
  double busier_s = 0;  // time of the busier of the two devices afterwards
};

// The best exchange of the busiest device; its busier_s is that device's load when none helps.
Exchange best_exchange(std::span<const ExpertTime> experts, const ExpertPlacement& placement) {
  const std::vector<double>& loads_s = placement.device_s;
  const auto busiest = std::max_element(loads_s.begin(), loads_s.end()) - loads_s.begin();
  const double busiest_s = loads_s[static_cast<size_t>(busiest)];
  Exchange best{0, 0, 0, busiest_s};
  const auto consider = [&](size_t expert, size_t other, int32_t device) {
    const double back_s = other == expert ? 0 : time_of(experts[other]);
    const double given_s = time_of(experts[expert]) - back_s;
    const double busier_s =
        std::max(busiest_s - given_s, loads_s[static_cast<size_t>(device)] + given_s);
    if (busier_s < best.busier_s) best = {expert, other, device, busier_s};
  };
  for (size_t e = 0; e < experts.size(); ++e) {
    if (placement.device_of_expert[e] != busiest) continue;
    for (int32_t d = 0; d < static_cast<int32_t>(loads_s.size()); ++d) {
      if (d != busiest) consider(e, e, d);
    }
    for (size_t other = 0; other < experts.size(); ++other) {
      const int32_t device = placement.device_of_expert[other];
      if (device != busiest) consider(e, other, device);
    }
  }
  return best;
}

}  // namespace


Result<std::vector<ExpertTime>> expert_times(std::span<const int64_t> tokens_per_expert,
                                             double upload_s, double token_compute_s) {
  RETURN_IF_ERROR(
      check_integer("the number of experts", static_cast<int64_t>(tokens_per_expert.size())));
  RETURN_IF_ERROR(check_amount("upload_s", upload_s));
  RETURN_IF_ERROR(check_amount("token_compute_s", token_compute_s));
  std::vector<ExpertTime> times;
  for (const int64_t tokens : tokens_per_expert) {
    RETURN_IF_ERROR(check_integer("the tokens of an expert", tokens, 0, int64_t{1} << 53));
    times.push_back({tokens > 0 ? upload_s : 0, static_cast<double>(tokens) * token_compute_s});
  }
  return times;
}

Result<ExpertPlacement> place_longest_first(std::span<const ExpertTime> experts, int32_t devices) {
  RETURN_IF_ERROR(check_integer("the number of experts", static_cast<int64_t>(experts.size())));
  RETURN_IF_ERROR(check_integer("the number of devices", devices));
  for (const ExpertTime& expert : experts) {
    RETURN_IF_ERROR(check_amount("the upload of an expert", expert.upload_s));
    RETURN_IF_ERROR(check_amount("the computation of an expert", expert.compute_s));
  }
  ExpertPlacement placement;
  placement.device_of_expert.resize(experts.size());
  placement.device_s.resize(static_cast<size_t>(devices), 0);
  using Load = std::pair<double, int32_t>;
  std::priority_queue<Load, std::vector<Load>, std::greater<Load>> emptiest;
  for (int32_t d = 0; d < devices; ++d) emptiest.push({0, d});
  for (const size_t e : longest_first(experts)) {
    const auto [load_s, device] = emptiest.top();
    emptiest.pop();
    placement.device_of_expert[e] = device;
    placement.device_s[static_cast<size_t>(device)] = load_s + time_of(experts[e]);
    emptiest.push({load_s + time_of(experts[e]), device});
  }
  return placement;
}

Result<ExpertPlacement> place_balanced(std::span<const ExpertTime> experts, int32_t devices) {
  ASSIGN_OR_RETURN(ExpertPlacement placement, place_longest_first(experts, devices));
  for (size_t turn = 0; turn < experts.size(); ++turn) {
    const double before_s = *std::max_element(placement.device_s.begin(), placement.device_s.end());
    const Exchange best = best_exchange(experts, placement);
    if (best.busier_s >= before_s) break;
    placement.device_of_expert[best.other] = placement.device_of_expert[best.expert];
    placement.device_of_expert[best.expert] = best.device;
    sum_devices(experts, placement);
  }
  return placement;
}

double pipelined_s(std::span<const ExpertTime> experts) {
  double uploaded_s = 0, computed_s = 0;
  for (const ExpertTime& expert : experts) {
    uploaded_s += expert.upload_s;
    computed_s = std::max(uploaded_s, computed_s) + expert.compute_s;
  }
  return computed_s;
}

}  // namespace pagoda
