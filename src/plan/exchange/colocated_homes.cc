#include "plan/exchange/colocated_homes.h"

#include <algorithm>
#include <array>
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

// Groups of loads as `shares`.
Result<GroupedLayer> grouped(const ColocatedModel& model, int64_t layer,
                             std::span<const double> shares) {
  const int devices = static_cast<int>(shares.size());
  std::vector<double> tokens = recorded_tokens(model.trace, layer);
  for (double& of_expert : tokens) of_expert += 1;  // as homes_by_routing()
  GroupedLayer grouped{layer, {}, {SquareMatrix<double>(devices), {}, {}, {}}};
  ASSIGN_OR_RETURN(grouped.group_of_expert, deal_by_load(tokens, shares));
  grouped.load.gate_s.resize(shares.size());
  grouped.load.aggregate_s.resize(shares.size());
  grouped.load.ffn_s.resize(shares.size());
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

// A layer in the groups that may be best: by speed, and equal ones.
using LayerGroups = std::array<GroupedLayer, 2>;

Result<std::vector<LayerGroups>> layers_of(const ColocatedModel& model,
                                           std::span<const double> speeds) {
  CHECK(model.attends.size() == speeds.size() &&
        static_cast<size_t>(model.shape.devices) == speeds.size());
  const std::vector<double> equal(speeds.size(), 1);
  std::vector<LayerGroups> layers;
  for (int64_t l = 0; l < model.shape.num_layers; ++l) {
    if (!model.shape.is_moe[static_cast<size_t>(l)]) continue;
    ASSIGN_OR_RETURN(GroupedLayer by_speed, grouped(model, l, speeds));
    ASSIGN_OR_RETURN(GroupedLayer of_equal, grouped(model, l, equal));
    layers.push_back({std::move(by_speed), std::move(of_equal)});
  }
  return layers;
}

// Two layers that meet, each in one of its groups, and where these are.
struct Placed {
  const GroupedLayer* a = nullptr;
  const GroupedLayer* b = nullptr;
  SwappedColocation places;
};

Status try_from(const GroupedLayer& a, std::span<const int> of_a, const GroupedLayer& b,
                std::span<const int> of_b, std::span<const ServingDevice> devices, Placed& best) {
  const std::vector<int> own = in_order(devices.size());
  ASSIGN_OR_RETURN(SwappedColocation end,
                   swapped_colocation({a.load, of_a, own}, {b.load, of_b, own}, devices));
  if (best.a == nullptr || end.inference_s < best.places.inference_s) {
    best = {&a, &b, std::move(end)};
  }
  return Status();
}

Result<Placed> place(const LayerGroups& a, const LayerGroups& b,
                     std::span<const ServingDevice> devices) {
  const std::vector<int> own = in_order(devices.size());
  Placed best;
  for (const GroupedLayer& of_a : a) {
    for (const GroupedLayer& of_b : b) {
      RETURN_IF_ERROR(try_from(of_a, own, of_b, own, devices, best));
      ASSIGN_OR_RETURN(const auto paired, decoupled_colocation(expert_demands(of_a.load),
                                                               expert_demands(of_b.load), devices));
      RETURN_IF_ERROR(try_from(of_a, paired.device_of_a, of_b, paired.device_of_b, devices, best));
    }
  }
  return best;
}

void set_homes(const RunShape& shape, const GroupedLayer& layer, std::span<const int> places,
               std::vector<int>& homes) {
  const auto first = homes.begin() + shape.expert(layer.layer, 0);
  std::transform(layer.group_of_expert.begin(), layer.group_of_expert.end(), first,
                 [&](int group) { return places[static_cast<size_t>(group)]; });
}

Status place_alone(const RunShape& shape, std::span<const LayerGroups> layers,
                   std::span<const ServingDevice> devices, std::vector<int>& homes) {
  const std::vector<int> own = in_order(devices.size());
  for (const auto& [by_speed, of_equal] : layers) {
    ASSIGN_OR_RETURN(const auto one, swapped_assignment({by_speed.load, own, own}, devices));
    ASSIGN_OR_RETURN(const auto other, swapped_assignment({of_equal.load, own, own}, devices));
    if (other.inference_s < one.inference_s) {
      set_homes(shape, of_equal, other.device_of_expert, homes);
    } else {
      set_homes(shape, by_speed, one.device_of_expert, homes);
    }
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
  const std::vector<int> own = in_order(devices.size());
  const size_t both = std::min(of_a.size(), of_b.size());
  RETURN_IF_ERROR(place_alone(a.shape, std::span(of_a).subspan(both), devices, homes.of_a));
  RETURN_IF_ERROR(place_alone(b.shape, std::span(of_b).subspan(both), devices, homes.of_b));
  for (size_t i = 0; i < both; ++i) {
    ASSIGN_OR_RETURN(const Placed placed, place(of_a[i], of_b[i], devices));
    set_homes(a.shape, *placed.a, placed.places.device_of_a, homes.of_a);
    set_homes(b.shape, *placed.b, placed.places.device_of_b, homes.of_b);
    homes.together_s += placed.places.inference_s;
    ASSIGN_OR_RETURN(const auto by_speed, colocated_phases({of_a[i][0].load, own, own},
                                                           {of_b[i][0].load, own, own}, devices));
    homes.by_speed_s += colocated_times(by_speed).gate_a_s;
  }
  return homes;
}

}  // namespace pagoda
