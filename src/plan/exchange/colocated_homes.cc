#include "plan/exchange/colocated_homes.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "plan/exchange/expert_assignment.h"
#include "plan/exchange/heterogeneous_colocation.h"
#include "plan/exchange/place_swaps.h"

namespace pagoda {
namespace {

// A layer's experts in one group for each device.
struct GroupedLayer {
  int64_t layer = 0;
  std::vector<int> group_of_expert;
  MoeLayerLoad load;  // of parts of tokens, one a device, and of groups
};

std::vector<int> in_order(size_t devices) {
  std::vector<int> places(devices);
  std::iota(places.begin(), places.end(), 0);
  return places;
}

Result<GroupedLayer> grouped(const ColocatedModel& model, int64_t layer,
                             std::span<const double> speeds) {
  const int devices = static_cast<int>(speeds.size());
  std::vector<double> tokens = recorded_tokens(model.trace, layer);
  for (double& of_expert : tokens) of_expert += 1;  // as homes_by_routing()
  GroupedLayer grouped{layer, {}, {SquareMatrix<double>(devices), {}, {}, {}}};
  ASSIGN_OR_RETURN(grouped.group_of_expert, deal_by_load(tokens, speeds));
  grouped.load.gate_s.resize(speeds.size());
  grouped.load.aggregate_s.resize(speeds.size());
  grouped.load.ffn_s.resize(speeds.size());
  for (size_t e = 0; e < tokens.size(); ++e) {
    const int group = grouped.group_of_expert[e];
    grouped.load.ffn_s[static_cast<size_t>(group)] += tokens[e] * model.row_s;
    for (int part = 0; part < devices; ++part) {
      grouped.load.traffic_bytes.at(part, group) +=
          tokens[e] * model.attends[static_cast<size_t>(part)] * model.row_bytes;
    }
  }
  return grouped;
}

Result<std::vector<GroupedLayer>> layers_of(const ColocatedModel& model,
                                            std::span<const double> speeds) {
  CHECK(model.attends.size() == speeds.size() &&
        static_cast<size_t>(model.shape.devices) == speeds.size());
  std::vector<GroupedLayer> layers;
  for (int64_t l = 0; l < model.shape.num_layers; ++l) {
    if (!model.shape.is_moe[static_cast<size_t>(l)]) continue;
    ASSIGN_OR_RETURN(GroupedLayer layer, grouped(model, l, speeds));
    layers.push_back(std::move(layer));
  }
  return layers;
}

struct Placed {
  SwappedColocation places;
  double by_speed_s = 0;
};

Result<Placed> place(const MoeLayerLoad& a, const MoeLayerLoad& b,
                     std::span<const ServingDevice> devices) {
  const std::vector<int> own = in_order(devices.size());
  const auto swapped = [&](std::span<const int> of_a, std::span<const int> of_b) {
    return swapped_colocation({a, of_a, own}, {b, of_b, own}, devices);
  };
  ASSIGN_OR_RETURN(const auto phases, colocated_phases({a, own, own}, {b, own, own}, devices));
  ASSIGN_OR_RETURN(SwappedColocation best, swapped(own, own));
  ASSIGN_OR_RETURN(const auto paired,
                   decoupled_colocation(expert_demands(a), expert_demands(b), devices));
  ASSIGN_OR_RETURN(SwappedColocation other, swapped(paired.device_of_a, paired.device_of_b));
  if (other.inference_s < best.inference_s) best = std::move(other);
  return Placed{std::move(best), colocated_times(phases).gate_a_s};
}

void set_homes(const RunShape& shape, const GroupedLayer& layer, std::span<const int> places,
               std::vector<int>& homes) {
  const auto first = homes.begin() + shape.expert(layer.layer, 0);
  std::transform(layer.group_of_expert.begin(), layer.group_of_expert.end(), first,
                 [&](int group) { return places[static_cast<size_t>(group)]; });
}

Status place_alone(const RunShape& shape, std::span<const GroupedLayer> layers,
                   std::span<const ServingDevice> devices, std::vector<int>& homes) {
  const std::vector<int> own = in_order(devices.size());
  for (const GroupedLayer& layer : layers) {
    ASSIGN_OR_RETURN(const auto end, swapped_assignment({layer.load, own, own}, devices));
    set_homes(shape, layer, end.device_of_expert, homes);
  }
  return Status();
}

}  // namespace

Result<ColocatedHomes> colocated_homes(const ColocatedModel& a, const ColocatedModel& b,
                                       std::span<const ServingDevice> devices) {
  RETURN_IF_ERROR(check_recorded(a.shape, a.trace));
  RETURN_IF_ERROR(check_recorded(b.shape, b.trace, "--with_routing"));
  RETURN_IF_ERROR(check_devices(devices));
  std::vector<double> speeds;
  for (const ServingDevice& device : devices) speeds.push_back(device.speed);
  ASSIGN_OR_RETURN(const auto of_a, layers_of(a, speeds));
  ASSIGN_OR_RETURN(const auto of_b, layers_of(b, speeds));
  ColocatedHomes homes;
  homes.of_a.assign(a.shape.records.size(), -1);
  homes.of_b.assign(b.shape.records.size(), -1);
  const size_t both = std::min(of_a.size(), of_b.size());
  RETURN_IF_ERROR(place_alone(a.shape, std::span(of_a).subspan(both), devices, homes.of_a));
  RETURN_IF_ERROR(place_alone(b.shape, std::span(of_b).subspan(both), devices, homes.of_b));
  for (size_t i = 0; i < both; ++i) {
    ASSIGN_OR_RETURN(const Placed placed, place(of_a[i].load, of_b[i].load, devices));
    set_homes(a.shape, of_a[i], placed.places.device_of_a, homes.of_a);
    set_homes(b.shape, of_b[i], placed.places.device_of_b, homes.of_b);
    homes.together_s += placed.places.inference_s;
    homes.by_speed_s += placed.by_speed_s;
  }
  return homes;
}

}  // namespace pagoda
