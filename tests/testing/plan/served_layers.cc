#include "tests/testing/plan/served_layers.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "plan/exchange/colocation.h"
#include "plan/exchange/heterogeneous_colocation.h"
#include "plan/rounds/traffic.h"
#include "tests/testing/plan/aurora_baselines.h"

namespace pagoda {
namespace {

constexpr int kExperts = 8;
constexpr double kBytesPerS = 12.5e9;
using Devices = std::vector<ServingDevice>;
using Places = std::vector<int>;

// Two each of the paper's four kinds; computing and sending are fast together.
Devices heterogeneous_devices() {
  Devices devices;
  for (const double bytes_per_s : {12.5e9, 10e9, 6.25e9, 5e9}) {
    devices.insert(devices.end(), 2, {bytes_per_s, bytes_per_s / kBytesPerS});
  }
  return devices;
}

std::vector<double> bandwidths(const Devices& devices) {
  std::vector<double> rates;
  for (const ServingDevice& device : devices) rates.push_back(device.bytes_per_s);
  return rates;
}

Places in_order() {
  Places places(kExperts);
  std::iota(places.begin(), places.end(), 0);
  return places;
}

Places inverse(const Places& permutation) {
  Places places(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) places[permutation[i]] = static_cast<int>(i);
  return places;
}

double exclusive_s(const MoeLayerLoad& layer, const Places& places, const Devices& devices) {
  auto phases = device_phases({layer, places}, devices);
  return exclusive_time_s(*phases);
}

double colocated_s(const MoeLayerLoad& a, const Places& a_places, const MoeLayerLoad& b,
                   const Places& b_places, const Devices& devices) {
  auto phases = colocated_phases({a, a_places}, {b, b_places}, devices);
  return colocated_times(*phases).gate_a_s;
}

// [expert of b] its device, where expert i of a has device i.
Places best_partners(const MoeLayerLoad& a, const MoeLayerLoad& b) {
  auto pairs = colocate(expert_traffic(a.traffic_bytes), expert_traffic(b.traffic_bytes));
  return inverse(pairs->b_of_a);
}

// A model by itself on half as many devices, its experts packed as Lina does by the loads that were
// expected; all-to-alls in the planned order, or in the one that `seed` draws.
double lina_s(const MoeLayerLoad& layer, const std::vector<double>& expected,
              const Devices& devices, std::optional<uint64_t> seed = std::nullopt) {
  const int count = static_cast<int>(devices.size());
  const Places places = lina_packing(expected);
  auto phases = device_phases({layer, places}, devices);
  const auto& all = phases->all_to_all_s;
  const double bound_s = *std::max_element(all.begin(), all.end());
  if (!seed) return barrier_time_s(*phases, bound_s, bound_s);
  const auto there = placed(layer.traffic_bytes, places, places, count);
  const auto back = reversed(there);
  const std::vector<double> rates = bandwidths(devices);
  return barrier_time_s(
      *phases, *queued_seconds(there, rates, random_sending_order(count, 2 * *seed)),
      *queued_seconds(back, rates, random_sending_order(count, 2 * *seed + 1)));
}

// A layer as it was expected and as it comes.
struct Layer {
  MoeLayerLoad planned, served;
};

Layer draw_layer(const LayerSource& layers, uint64_t seed, double noise) {
  Layer layer{layers(seed), {}};
  CHECK(layer.planned.traffic_bytes.size() == kExperts);
  layer.served = layer.planned;
  for (int i = 0; i < kExperts; ++i) {
    for (int j = 0; j < kExperts; ++j) layer.served.traffic_bytes.at(i, j) *= 1 - noise;
    layer.served.ffn_s[i] *= 1 - noise;
  }
  for (uint64_t other = 1; other <= 3; ++other) {
    const MoeLayerLoad drawn = layers(1000000 * other + seed);
    for (int i = 0; i < kExperts; ++i) {
      for (int j = 0; j < kExperts; ++j) {
        layer.served.traffic_bytes.at(i, j) += noise / 3 * drawn.traffic_bytes.at(i, j);
      }
      layer.served.ffn_s[i] += noise / 3 * drawn.ffn_s[i];
    }
  }
  return layer;
}

// On equal devices.
void note_equal(const Layer& a, const Layer& b, uint64_t seed, ServedSpeedups& speedups) {
  const Devices devices(kExperts, {kBytesPerS, 1}), half(kExperts / 2, {kBytesPerS, 1});
  const std::vector<double> rates = bandwidths(devices);
  auto phases = device_phases({a.served, in_order()}, devices);
  const auto back = reversed(a.served.traffic_bytes);
  const auto queued_s = [&](const SendingOrder& there, const SendingOrder& then) {
    return barrier_time_s(*phases, *queued_seconds(a.served.traffic_bytes, rates, there),
                          *queued_seconds(back, rates, then));
  };
  const double bound_s = line_bound(a.served.traffic_bytes) / kBytesPerS;
  const double planned_s = barrier_time_s(*phases, bound_s, bound_s);
  speedups.sjf.note(queued_s(shortest_first(a.served.traffic_bytes), shortest_first(back)) /
                    planned_s);
  speedups.rcs.note(queued_s(random_sending_order(kExperts, seed),
                             random_sending_order(kExperts, 999 + seed)) / planned_s);

  const Places partners = best_partners(a.planned, b.planned);
  const auto both_s = [&](const Places& of_b) {
    return colocated_s(a.served, in_order(), b.served, of_b, devices);
  };
  const double paired_s = both_s(partners);
  speedups.rec.note(both_s(random_assignment(kExperts, seed)) / paired_s);
  speedups.pairs_loss.note(paired_s / both_s(best_partners(a.served, b.served)));
  speedups.lina.note(std::max(lina_s(a.served, a.planned.ffn_s, half),
                              lina_s(b.served, b.planned.ffn_s, half)) / paired_s);
  speedups.lina_rcs.note(std::max(lina_s(a.served, a.planned.ffn_s, half, seed),
                                  lina_s(b.served, b.planned.ffn_s, half, 999 + seed)) /
                         paired_s);
  auto of_b = device_phases({b.served, partners}, devices);
  speedups.busy_alone.note(utilisation({&*phases, 1}, planned_s));
  speedups.busy_together.note(utilisation(std::vector{*phases, *of_b}, paired_s));
}

void note_unequal(const Layer& a, const Layer& b, uint64_t seed, ServedSpeedups& speedups) {
  const Devices devices = heterogeneous_devices();
  const std::vector<double> rates = bandwidths(devices);
  const auto alone_s = [&](const std::vector<double>& loads) {
    return exclusive_s(a.served, assign_by_load(loads, rates), devices);
  };
  const auto both_s = [&](const MoeLayerLoad& of_a, const MoeLayerLoad& of_b) {
    auto places = decoupled_colocation(expert_demands(of_a), expert_demands(of_b), devices);
    return colocated_s(a.served, places->device_of_a, b.served, places->device_of_b, devices);
  };
  const double planned_s = alone_s(a.planned.ffn_s);
  const double planned_both_s = both_s(a.planned, b.planned);
  speedups.places_loss.note(planned_s / alone_s(a.served.ffn_s));
  speedups.both_loss.note(planned_both_s / both_s(a.served, b.served));
  constexpr uint64_t kDraws = 10;
  for (uint64_t draw = 0; draw < kDraws; ++draw) {
    const uint64_t drawn = 2 * (kDraws * seed + draw);
    const Places of_a = random_assignment(kExperts, drawn);
    const Places of_b = random_assignment(kExperts, drawn + 1);
    speedups.rga.note(exclusive_s(a.served, of_a, devices) / planned_s);
    speedups.rga_rec.note(colocated_s(a.served, of_a, b.served, of_b, devices) / planned_both_s);
  }
}

}  // namespace

void Speedup::note(double ratio) {
  mean += (ratio - mean) / ++count;
  least = std::min(least, ratio);
  most = std::max(most, ratio);
}

ServedSpeedups served_speedups(const LayerSource& layers, double noise, int trials) {
  ServedSpeedups speedups;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(trials); ++seed) {
    const Layer a = draw_layer(layers, seed, noise), b = draw_layer(layers, 999 + seed, noise);
    note_equal(a, b, seed, speedups);
    note_unequal(a, b, seed, speedups);
  }
  return speedups;
}

}  // namespace pagoda
