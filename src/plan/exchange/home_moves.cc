#include "plan/exchange/home_moves.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "plan/step/expert_seats.h"
#include "plan/step/pages.h"

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
  std::vector<double> place_row_s;  // [place]
};

// Exchanges in the order in which a run makes them, of one layer or of several: a rank makes its
// own one behind another, and each of them waits until both of its ranks are free.
class Exchanges {
 public:
  explicit Exchanges(const RunShape& shape)
      : shape_(&shape), until_(static_cast<size_t>(shape.ranks()), 0) {
    for (int64_t r = 0; r < std::ssize(shape.records); ++r) home_.push_back(shape.home_rank(r));
  }

  // Within a rank nothing goes.
  void add(const HomeSwap& swap) {
    int &of_a = home_[static_cast<size_t>(swap.a)], &of_b = home_[static_cast<size_t>(swap.b)];
    if (of_a == of_b) return;
    int64_t &a = until_[static_cast<size_t>(of_a)], &b = until_[static_cast<size_t>(of_b)];
    const int64_t bytes = moved_bytes(*shape_, swap.a);
    a = b = std::max(a, b) + bytes;
    all_ += 2 * bytes;
    std::swap(of_a, of_b);
  }

  // Tells what those so far take. `bytes_per_s`: StepTimes's.
  void tell(double bytes_per_s, HomeMoves& moves) const {
    moves.bytes = all_;
    moves.in_turn_bytes = *std::max_element(until_.begin(), until_.end());
    moves.move_s = all_ > 0 ? static_cast<double>(moves.in_turn_bytes) / bytes_per_s : 0;
  }

 private:
  const RunShape* shape_;
  std::vector<int> home_;       // [record] its rank
  std::vector<int64_t> until_;  // [rank] bytes that go one behind the other until it is ready
  int64_t all_ = 0;
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

// How many rows the busiest place has, and how long one takes.
struct Busiest {
  double rows = 0, row_s = 0;
};

Busiest busiest(const Group& group) {
  const auto places = static_cast<int32_t>(group.place_row_s.size());
  const std::vector<int64_t> loads = device_loads(group.rows, group.at, places);
  Busiest most;
  for (size_t place = 0; place < loads.size(); ++place) {
    const double rows = static_cast<double>(loads[place]) / kParts;
    const double row_s = group.place_row_s[place];
    if (rows * row_s > most.rows * most.row_s) most = {rows, row_s};
  }
  return most;
}

// Says when a layer's experts have computed the rows that they have on average. Devices go through
// its waves together (plan/step/expert_blocks.h): none begins one before all have ended the one
// whose pages it takes (RunShape::waves_in_flight). So an expert that is larger than a few groups
// holds up the others, wherever it is. Experts that stay on devices that attend have waves of their
// own in zebra, for which no other waits.
class LayerClock {
 public:
  LayerClock(const RunShape& shape, int64_t layer, std::span<const double> rows,
             std::span<const double> row_s)
      : shape_(shape), layer_(layer), row_s_(row_s) {
    const auto count = shape.round_microbatches();
    routing_.assign(static_cast<size_t>(count), std::vector<int64_t>(rows.size()));
    for (size_t e = 0; e < rows.size(); ++e) {
      const int64_t of_round = std::llround(rows[e] / static_cast<double>(shape.rounds()));
      for (int64_t b = 0; b < count; ++b) {
        routing_[static_cast<size_t>(b)][e] = of_round * (b + 1) / count - of_round * b / count;
      }
    }
  }

  void exchange(const HomeSwap& swap) {
    std::swap(shape_.records[static_cast<size_t>(swap.a)].device,
              shape_.records[static_cast<size_t>(swap.b)].device);
  }

  double end_s() const {
    const LayerSeats seats{layer_seats(shape_, layer_, tokens_per_expert(routing_)), {}};
    std::vector<double> end_s(row_s_.size(), 0);  // [device]
    const auto in_flight = static_cast<size_t>(waves_in_flight(shape_));
    std::vector<double> all_s(in_flight, 0);  // [wave % in_flight] when all have ended it
    const bool apart = shape_.zebra && shape_.rounds() > 1;
    size_t waves = 0;
    for (const ExpertWave& wave :
         layer_waves(shape_, layer_, {0, std::ssize(routing_)}, routing_, seats)) {
      double& ended_s = all_s[waves % in_flight];
      bool counts = false;
      for (size_t d = 0; d < wave.size(); ++d) {
        if (wave[d].blocks.empty() || (apart && shape_.attends(static_cast<int>(d)))) continue;
        end_s[d] = std::max(end_s[d], ended_s) + static_cast<double>(wave[d].rows()) * row_s_[d];
        counts = true;
      }
      if (!counts) continue;
      ended_s = *std::max_element(end_s.begin(), end_s.end());
      ++waves;
    }
    return *std::max_element(end_s.begin(), end_s.end()) * static_cast<double>(shape_.rounds());
  }

 private:
  RunShape shape_;
  int64_t layer_;
  std::span<const double> row_s_;  // [device]
  LayerRouting routing_;           // of a round, spread evenly over its microbatches
};

// The moves of one layer that gain most beyond what they take.
HomeMoves layer_moves(const RunShape& shape, int64_t layer, const RowMeans& means,
                      const StepTimes& times, const std::vector<double>& row_s, double horizon,
                      double most_s) {
  const Group group = group_of(shape, layer, means, row_s);
  const std::vector<ExpertSwap> swaps = swaps_of(group);
  if (swaps.empty()) return {};
  const Busiest before = busiest(group);
  LayerClock clock(shape, layer, means.of_layer(layer), row_s);
  const double before_s = clock.end_s();
  HomeMoves best, so_far;
  Exchanges exchanges(shape);
  for (size_t i = 0; i < swaps.size(); ++i) {
    const auto a = static_cast<size_t>(swaps[i].a), b = static_cast<size_t>(swaps[i].b);
    const HomeSwap& swap = so_far.swaps.emplace_back(
        HomeSwap{shape.expert(layer, group.experts[a]), shape.expert(layer, group.experts[b])});
    exchanges.add(swap);
    exchanges.tell(times.bytes_per_s, so_far);
    clock.exchange(swap);
    // The clock goes through all waves of the layer each time.
    if (!std::has_single_bit(i + 1) && i + 1 < swaps.size()) continue;
    so_far.gain_s = before_s - clock.end_s();
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
  const double most_s = kMostShare * steps * times.step_s;
  std::vector<HomeMoves> layers;
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    if (means.of_layer(l).empty()) continue;
    HomeMoves moves = layer_moves(shape, l, means, times, row_s, kHorizon * steps, most_s);
    if (!moves.swaps.empty()) layers.push_back(std::move(moves));
  }
  std::stable_sort(layers.begin(), layers.end(), [](const HomeMoves& a, const HomeMoves& b) {
    return a.gain_s * b.move_s > b.gain_s * a.move_s;
  });
  // Layers whose exchanges are of other ranks move at once.
  Exchanges exchanges(shape);
  for (const HomeMoves& layer : layers) {
    Exchanges longer = exchanges;
    for (const HomeSwap& swap : layer.swaps) longer.add(swap);
    HomeMoves with;
    longer.tell(times.bytes_per_s, with);
    if (with.move_s > most_s) continue;
    exchanges = std::move(longer);
    with.gain_s = all.gain_s + layer.gain_s;
    with.swaps = std::move(all.swaps);
    with.swaps.insert(with.swaps.end(), layer.swaps.begin(), layer.swaps.end());
    all = std::move(with);
  }
  return all.gain_s >= kLeastGain * times.step_s ? all : HomeMoves();
}

}  // namespace pagoda
