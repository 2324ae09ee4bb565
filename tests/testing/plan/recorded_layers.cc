#include "tests/testing/plan/recorded_layers.h"

#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "plan/exchange/routed_traffic.h"
#include "tests/testing/files.h"

namespace pagoda {
namespace {

constexpr int kDevices = 8;

MoeLayerLoad load_of(const LayerRouting& routing) {
  constexpr double kTokenBytes = 4096, kFfnTokenS = 60e-9;
  const auto experts = static_cast<int32_t>(routing.front().size());
  ExpertDevices device_of_expert;
  for (int32_t e = 0; e < experts; ++e) device_of_expert.push_back(e / (experts / kDevices));
  const SquareMatrix<double> rows = routed_traffic(routing, device_of_expert, kDevices).take();
  MoeLayerLoad load;
  load.traffic_bytes = SquareMatrix<double>(kDevices);
  load.gate_s.assign(kDevices, 20e-6);
  load.aggregate_s.assign(kDevices, 20e-6);
  load.ffn_s.assign(kDevices, 0);
  for (int i = 0; i < kDevices; ++i) {
    for (int j = 0; j < kDevices; ++j) {
      load.traffic_bytes.at(i, j) = rows.at(i, j) * kTokenBytes;
      load.ffn_s[j] += rows.at(i, j) * kFfnTokenS;
    }
  }
  return load;
}

}  // namespace

RoutingTrace read_routing(const std::string& path) {
  Result<RoutingTrace> trace = parse_routing_trace(get_file(path));
  CHECK(trace.ok(), "%s: %s", path.c_str(), trace.status().message().c_str());
  return trace.take();
}

RoutingTrace golden_routing() {
  return read_routing(std::string(PAGODA_GOLDEN_DIR) + "/routing_shakespeare.txt");
}

LayerSource recorded_layers(const RoutingTrace& trace) {
  CHECK(trace.shape.num_experts % kDevices == 0);
  std::vector<MoeLayerLoad> loads;
  for (const RoutedStep& step : trace.steps) {
    for (size_t l = 0; l < trace.shape.is_moe.size(); ++l) {
      if (!trace.shape.is_moe[l]) continue;
      loads.push_back(load_of(layer_routing(step.routing, static_cast<int64_t>(l))));
    }
  }
  CHECK(!loads.empty());
  return [loads](uint64_t draw) {
    return loads[philox(11, RandomPurpose::kTest, draw, 0)[0] % loads.size()];
  };
}

}  // namespace pagoda
