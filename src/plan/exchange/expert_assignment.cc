#include "plan/exchange/expert_assignment.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <utility>

#include "plan/refusals.h"

namespace pagoda {
namespace {

std::vector<int> largest_first(std::span<const double> values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return values[a] > values[b]; });
  return order;
}

}  // namespace

Result<std::vector<int>> deal_by_load(std::span<const double> loads,
                                      std::span<const double> rates) {
  RETURN_IF_ERROR(check_amounts("loads of experts", loads));
  RETURN_IF_ERROR(check_rates("rates of devices", rates));
  std::vector<int> device_of_expert(loads.size());
  std::vector<double> load(rates.size(), 0);
  std::vector<int64_t> count(rates.size(), 0);
  for (const int expert : largest_first(loads)) {
    const double more = loads[static_cast<size_t>(expert)];
    const auto ends = [&](size_t d) {
      return std::pair((load[d] + more) / rates[d], static_cast<double>(count[d] + 1) / rates[d]);
    };
    size_t first = 0;
    for (size_t d = 1; d < rates.size(); ++d) {
      if (ends(d) < ends(first)) first = d;
    }
    load[first] += more;
    ++count[first];
    device_of_expert[static_cast<size_t>(expert)] = static_cast<int>(first);
  }
  return device_of_expert;
}

Status check_recorded(const RunShape& shape, const RoutingTrace& trace, const char* option) {
  const RoutedShape model = routed_shape(shape);
  const RoutedShape& of = trace.shape;
  if (of.num_experts != model.num_experts || of.experts_per_token != model.experts_per_token ||
      of.is_moe != model.is_moe) {
    return Status(
        Exit::kUsage,
        strf("%s: it was recorded of another model, of %zu layers, %lld experts and top %lld; name "
             "what a run of this model recorded",
             option, of.is_moe.size(), (long long)of.num_experts, (long long)of.experts_per_token));
  }
  if (shape.devices == 1) {
    return Status(Exit::kUsage, std::string(option) +
                                    ": there is one device, where all experts are; name several in "
                                    "train.devices, or leave it out");
  }
  if (!trace.steps.empty()) return Status();
  return Status(Exit::kBadData,
                std::string(option) + ": it has no whole step; record at least one");
}

Result<std::vector<double>> rates_of_ranks(std::span<const std::string> texts, size_t devices) {
  std::vector<double> rates;
  for (const std::string& text : texts) {
    std::istringstream in(text);
    for (double rate = 0; in >> rate && rate > 0;) rates.push_back(rate);
  }
  if (rates.size() == devices) return rates;
  return Status(Exit::kIoError,
                "ranks sent what are no rates of their devices; see that all run "
                "the same program");
}

std::vector<double> recorded_tokens(const RoutingTrace& trace, int64_t layer) {
  std::vector<double> tokens(static_cast<size_t>(trace.shape.num_experts), 0);
  for (const RoutedStep& step : trace.steps) {
    for (const auto& of_layers : step.routing) {
      const std::vector<int64_t>& of_layer = of_layers[static_cast<size_t>(layer)];
      for (size_t e = 0; e < of_layer.size(); ++e) tokens[e] += static_cast<double>(of_layer[e]);
    }
  }
  return tokens;
}

Result<std::vector<int>> homes_by_routing(const RunShape& shape, const RoutingTrace& trace,
                                          std::span<const double> rates) {
  RETURN_IF_ERROR(check_recorded(shape, trace));
  std::vector<int> homes(shape.records.size(), -1);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    if (!shape.is_moe[static_cast<size_t>(l)]) continue;
    std::vector<double> loads = recorded_tokens(trace, l);
    for (double& load : loads) load += 1;
    ASSIGN_OR_RETURN(const std::vector<int> devices, deal_by_load(loads, rates));
    std::copy(devices.begin(), devices.end(), homes.begin() + shape.expert(l, 0));
  }
  return homes;
}

double imbalance(const RunShape& shape, const RoutingTrace& trace, std::span<const double> rates) {
  double slowest = 0, even = 0;
  const double all_rates = std::accumulate(rates.begin(), rates.end(), 0.0);
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    if (!shape.is_moe[static_cast<size_t>(l)]) continue;
    const std::vector<double> tokens = recorded_tokens(trace, l);
    std::vector<double> time(rates.size(), 0);
    for (int64_t e = 0; e < shape.num_experts; ++e) {
      const auto home =
          static_cast<size_t>(shape.records[static_cast<size_t>(shape.expert(l, e))].device);
      time[home] += tokens[static_cast<size_t>(e)] / rates[home];
    }
    slowest += *std::max_element(time.begin(), time.end());
    even += std::accumulate(tokens.begin(), tokens.end(), 0.0) / all_rates;
  }
  return even > 0 ? slowest / even : 1;
}

}  // namespace pagoda
