#include "plan/exchange/home_moves.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "plan/step/expert_seats.h"

namespace pagoda {
namespace {

constexpr double kDeviations = 4;  // by which a load must stand out
constexpr double kParts = 64;      // of a row, by which means become whole numbers

// The devices among which a layer's experts may exchange homes, and the experts there.
struct Group {
  std::vector<int64_t> experts;     // of the layer
  ExpertDevices at;                 // [one of experts] place
  std::vector<int64_t> rows;        // [one of experts] mean in kParts of a row
  std::vector<int32_t> kind;        // [one of experts] which of them is the first alike
  std::vector<int64_t> bytes;       // [one of experts] moved_bytes()
  std::vector<double> place_row_s;  // [place]
  std::vector<int> place_rank;      // [place]

  // What an exchange of the expert for one that is alike sends from either rank, from these places.
  int64_t exchanged_bytes(size_t expert, int32_t a, int32_t b) const {
    const auto rank = [&](int32_t place) { return place_rank[static_cast<size_t>(place)]; };
    return rank(a) == rank(b) ? 0 : bytes[expert];
  }
};

// Devices that had no row are taken to be like the mean of the others. Empty: none had any.
std::vector<double> known_row_s(std::span<const double> row_s) {
  double sum = 0;
  int known = 0;
  for (const double time : row_s) {
    sum += std::max(time, 0.0);
    known += time > 0;
  }
  if (known == 0) return {};
  std::vector<double> all(row_s.begin(), row_s.end());
  for (double& time : all) time = time > 0 ? time : sum / known;
  return all;
}

bool alike(const RecordShape& a, const RecordShape& b) {
  return a.layer == b.layer && a.expert >= 0 && b.expert >= 0 && a.num_elements == b.num_elements &&
         a.state_bytes == b.state_bytes && a.frozen_elements == b.frozen_elements;
}

const RecordShape& record_of(const RunShape& shape, int64_t layer, int64_t e) {
  return shape.records[static_cast<size_t>(shape.expert(layer, e))];
}

// Whether experts move from the device. In zebra those that stay where attention is, stay there.
bool gives(const RunShape& shape, int device) { return !shape.zebra || !shape.attends(device); }

// A place is a device, or with seats by step a rank, whose devices share its rows by their speed.
Group group_of(const RunShape& shape, int64_t layer, const RowMeans& means,
               const std::vector<double>& row_s) {
  Group group;
  const std::span<const double> rows = means.of_layer(layer);
  const bool by_rank = !shape.seat_speeds.empty();
  std::vector<int> places(static_cast<size_t>(shape.devices), -1);  // [device or rank]
  std::vector<double> speed;                                        // [place]
  for (int device = 0; device < shape.devices; ++device) {
    if (!gives(shape, device)) continue;
    bool has = false;
    for (int64_t e = 0; e < std::ssize(rows); ++e) {
      const int home = record_of(shape, layer, e).device;
      has |= by_rank ? shape.rank_of(home) == shape.rank_of(device) : home == device;
    }
    if (!has) continue;
    int& place = places[static_cast<size_t>(by_rank ? shape.rank_of(device) : device)];
    if (place < 0) {
      place = static_cast<int>(speed.size());
      speed.push_back(0);
      group.place_rank.push_back(shape.rank_of(device));
    }
    speed[static_cast<size_t>(place)] += 1 / row_s[static_cast<size_t>(device)];
  }
  for (int64_t e = 0; e < std::ssize(rows); ++e) {
    const RecordShape& expert = record_of(shape, layer, e);
    const int home = expert.device;
    if (!gives(shape, home)) continue;
    group.experts.push_back(e);
    size_t first = 0;
    while (!alike(record_of(shape, layer, group.experts[first]), expert)) ++first;
    group.kind.push_back(static_cast<int32_t>(first));
    group.bytes.push_back(moved_bytes(shape, shape.expert(layer, e)));
    group.at.push_back(places[static_cast<size_t>(by_rank ? shape.rank_of(home) : home)]);
    group.rows.push_back(std::llround(rows[static_cast<size_t>(e)] * kParts));
  }
  for (const double of_place : speed) group.place_row_s.push_back(1 / of_place);
  return group;
}

// The swaps of a group, by places in Group::experts.
std::vector<ExpertSwap> swaps_of(const Group& group, SwapPartner partner = SwapPartner::kAny) {
  const auto places = static_cast<int32_t>(group.place_row_s.size());
  if (places < 2) return {};
  auto balanced = balance_by_swaps(group.rows, group.at, places, partner, kMostSwaps,
                                   group.place_row_s, group.kind);
  return balanced.ok() ? std::move(balanced->swaps) : std::vector<ExpertSwap>();
}

// When the busiest place ends, how many rows it has, and how long one takes.
struct Busiest {
  double end_s = 0, rows = 0, row_s = 0;
};

Busiest busiest(const Group& group, const ExpertDevices& at) {
  const auto places = static_cast<int32_t>(group.place_row_s.size());
  const std::vector<int64_t> loads = device_loads(group.rows, at, places);
  Busiest most;
  for (size_t place = 0; place < loads.size(); ++place) {
    const double rows = static_cast<double>(loads[place]) / kParts;
    const double end_s = rows * group.place_row_s[place];
    if (end_s > most.end_s) most = {end_s, rows, group.place_row_s[place]};
  }
  return most;
}

// The moves of one layer that gain most beyond what they take.
HomeMoves layer_moves(const RunShape& shape, int64_t layer, const RowMeans& means,
                      const StepTimes& times, const std::vector<double>& row_s, double horizon,
                      double most_s) {
  const Group group = group_of(shape, layer, means, row_s);
  const std::vector<ExpertSwap> swaps = swaps_of(group);
  const Busiest before = busiest(group, group.at);
  ExpertDevices at = group.at;
  HomeMoves best, so_far;
  for (const ExpertSwap& swap : swaps) {
    const auto a = static_cast<size_t>(swap.a), b = static_cast<size_t>(swap.b);
    const int64_t bytes = group.exchanged_bytes(a, at[a], at[b]);
    so_far.bytes += 2 * bytes;
    if (bytes > 0) so_far.move_s += static_cast<double>(bytes) / times.bytes_per_s;
    std::swap(at[a], at[b]);
    so_far.swaps.push_back(
        {shape.expert(layer, group.experts[a]), shape.expert(layer, group.experts[b])});
    const Busiest now = busiest(group, at);
    so_far.gain_s = before.end_s - now.end_s;
    const double gained = so_far.gain_s / before.row_s * means.weight();  // rows
    const bool stands_out = gained > kDeviations * std::sqrt(before.rows * means.weight());
    const bool pays = so_far.gain_s * horizon >= kWorth * so_far.move_s;
    if (!stands_out || !pays || so_far.move_s > most_s) continue;
    const auto value = [&](const HomeMoves& m) { return m.gain_s * horizon - m.move_s; };
    if (value(so_far) > value(best)) best = so_far;
  }
  return best;
}

}  // namespace

std::vector<std::vector<int64_t>> home_loads(const RunShape& shape, const Routing& routing) {
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(shape.num_layers));
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    if (!shape.is_moe[static_cast<size_t>(l)]) continue;
    const LayerRouting of_layer = layer_routing(routing, l);
    rows[static_cast<size_t>(l)] = shape.has_guests()
                                       ? rows_at_seats(shape, l, all_microbatches(shape), of_layer)
                                       : tokens_per_expert(of_layer);
  }
  return rows;
}

void RowMeans::add(std::span<const std::vector<int64_t>> rows) {
  ++steps_;
  means_.resize(rows.size());
  for (size_t l = 0; l < rows.size(); ++l) {
    means_[l].resize(rows[l].size(), 0);
    for (size_t e = 0; e < rows[l].size(); ++e) {
      means_[l][e] += (static_cast<double>(rows[l][e]) - means_[l][e]) / weight();
    }
  }
}

double RowMeans::weight() const { return static_cast<double>(std::min(span_, steps_)); }

std::span<const double> RowMeans::of_layer(int64_t layer) const {
  if (layer >= std::ssize(means_)) return {};
  return means_[static_cast<size_t>(layer)];
}

int64_t moved_bytes(const RunShape& shape, int64_t record) {
  const RecordShape& of = shape.records[static_cast<size_t>(record)];
  return of.num_elements * shape.dtype_bytes + (shape.trains(record) ? of.state_bytes : 0);
}

bool may_exchange(const RunShape& shape, const HomeSwap& swap) {
  const auto records = std::ssize(shape.records);
  if (swap.a < 0 || swap.b < 0 || swap.a >= records || swap.b >= records) return false;
  const RecordShape& a = shape.records[static_cast<size_t>(swap.a)];
  const RecordShape& b = shape.records[static_cast<size_t>(swap.b)];
  return alike(a, b) && gives(shape, a.device) == gives(shape, b.device);
}

std::vector<HomeSwap> balancing_swaps(const RunShape& shape, int64_t layer, const RowMeans& means,
                                      std::span<const double> row_s, SwapPartner partner) {
  const std::vector<double> known = known_row_s(row_s);
  CHECK(std::ssize(known) == shape.devices);
  const Group group = group_of(shape, layer, means, known);
  std::vector<HomeSwap> swaps;
  for (const ExpertSwap& swap : swaps_of(group, partner)) {
    swaps.push_back({shape.expert(layer, group.experts[static_cast<size_t>(swap.a)]),
                     shape.expert(layer, group.experts[static_cast<size_t>(swap.b)])});
  }
  return swaps;
}

HomeMoves choose_moves(const RunShape& shape, const RowMeans& means, const StepTimes& times,
                       int64_t every) {
  const std::vector<double> row_s = known_row_s(times.row_s);
  HomeMoves all;
  if (row_s.empty() || !(times.step_s > 0)) return all;
  const auto steps = static_cast<double>(every);
  double left_s = kMostShare * steps * times.step_s;
  std::vector<HomeMoves> layers;
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    if (means.of_layer(l).empty()) continue;
    HomeMoves moves = layer_moves(shape, l, means, times, row_s, kHorizon * steps, left_s);
    if (!moves.swaps.empty()) layers.push_back(std::move(moves));
  }
  std::stable_sort(layers.begin(), layers.end(), [](const HomeMoves& a, const HomeMoves& b) {
    return a.gain_s * b.move_s > b.gain_s * a.move_s;
  });
  for (const HomeMoves& layer : layers) {
    if (layer.move_s > left_s) continue;
    left_s -= layer.move_s;
    all.swaps.insert(all.swaps.end(), layer.swaps.begin(), layer.swaps.end());
    all.gain_s += layer.gain_s;
    all.move_s += layer.move_s;
    all.bytes += layer.bytes;
  }
  return all.gain_s >= kLeastGain * times.step_s ? all : HomeMoves();
}

}  // namespace pagoda
