#include "plan/exchange/place_swaps.h"

#include <functional>
#include <utility>

namespace pagoda {
namespace {

using Places = std::vector<std::vector<int>>;  // [model][expert] device
using InferenceTime = std::function<Result<double>(const Places&)>;

struct Swapped {
  Places places;
  double inference_s = 0;
};

// Exchanges the experts of two devices for the models whose bits are set.
Places swapped(Places places, unsigned models, int device, int other) {
  for (size_t m = 0; m < places.size(); ++m) {
    if ((models >> m & 1) == 0) continue;
    for (int& place : places[m]) place = place == device ? other : place == other ? device : place;
  }
  return places;
}

Result<Swapped> best_swap(const Swapped& at, int devices, const InferenceTime& time_s) {
  Swapped best = at;
  for (int device = 0; device < devices; ++device) {
    for (int other = device + 1; other < devices; ++other) {
      for (unsigned models = 1; models < 1u << at.places.size(); ++models) {
        Places places = swapped(at.places, models, device, other);
        ASSIGN_OR_RETURN(const double inference_s, time_s(places));
        if (inference_s < best.inference_s) best = {std::move(places), inference_s};
      }
    }
  }
  return best;
}

Result<Swapped> climb(Places start, int devices, const InferenceTime& time_s) {
  ASSIGN_OR_RETURN(const double start_s, time_s(start));
  Swapped at{std::move(start), start_s};
  while (true) {
    ASSIGN_OR_RETURN(auto next, best_swap(at, devices, time_s));
    if (next.inference_s >= at.inference_s) return at;
    at = std::move(next);
  }
}

std::vector<int> places_of(const PlacedLayer& layer) {
  return {layer.device_of_expert.begin(), layer.device_of_expert.end()};
}

}  // namespace

Result<SwappedAssignment> swapped_assignment(const PlacedLayer& start,
                                             std::span<const ServingDevice> devices) {
  const auto time_s = [&](const Places& places) -> Result<double> {
    ASSIGN_OR_RETURN(const auto phases,
                     device_phases({start.load, places[0], start.device_of_part}, devices));
    return exclusive_time_s(phases);
  };
  ASSIGN_OR_RETURN(auto end, climb({places_of(start)}, static_cast<int>(devices.size()), time_s));
  return SwappedAssignment{std::move(end.places[0]), end.inference_s};
}

Result<SwappedColocation> swapped_colocation(const PlacedLayer& a, const PlacedLayer& b,
                                             std::span<const ServingDevice> devices) {
  const auto time_s = [&](const Places& places) -> Result<double> {
    ASSIGN_OR_RETURN(const auto phases,
                     colocated_phases({a.load, places[0], a.device_of_part},
                                      {b.load, places[1], b.device_of_part}, devices));
    return colocated_times(phases).gate_a_s;
  };
  ASSIGN_OR_RETURN(auto end, climb({places_of(a), places_of(b)}, static_cast<int>(devices.size()),
                                   time_s));
  return SwappedColocation{std::move(end.places[0]), std::move(end.places[1]), end.inference_s};
}

}  // namespace pagoda
