#include "plan/step/expert_seats.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace pagoda {
namespace {

using Rows = std::vector<int64_t>;

Rows rows_of_devices(std::span<const int64_t> rows, std::span<const int> seats, Rows taken) {
  for (size_t e = 0; e < rows.size(); ++e) taken[static_cast<size_t>(seats[e])] += rows[e];
  return taken;
}

// What devices have taken, or nothing.
Rows begun(std::span<const int64_t> taken, size_t devices) {
  return taken.empty() ? Rows(devices, 0) : Rows(taken.begin(), taken.end());
}

std::vector<double> device_ends(const Rows& taken, std::span<const double> speeds) {
  std::vector<double> ends;
  for (size_t d = 0; d < speeds.size(); ++d) {
    ends.push_back(static_cast<double>(taken[d]) / speeds[d]);
  }
  return ends;
}

struct Exchange {
  size_t expert = 0;  // on the busiest device
  size_t other = 0;   // an expert of another device; the same expert: exchanged for none
  int device = 0;
  double end = 0;  // of the busier of the two devices afterwards
};

// The best exchange of the busiest device; its end is that device's when none helps.
Exchange best_exchange(std::span<const int64_t> rows, std::span<const int> seats,
                       std::span<const double> speeds, const std::vector<double>& ends) {
  const auto busiest =
      static_cast<size_t>(std::max_element(ends.begin(), ends.end()) - ends.begin());
  Exchange best{0, 0, 0, ends[busiest]};
  const auto consider = [&](size_t expert, size_t other, int device) {
    const auto d = static_cast<size_t>(device);
    const int64_t back = other == expert ? 0 : rows[other];
    const auto given = static_cast<double>(rows[expert] - back);
    const double end =
        std::max(ends[busiest] - given / speeds[busiest], ends[d] + given / speeds[d]);
    if (end < best.end) best = {expert, other, device, end};
  };
  for (size_t e = 0; e < rows.size(); ++e) {
    if (seats[e] != static_cast<int>(busiest)) continue;
    for (size_t d = 0; d < speeds.size(); ++d) {
      if (d != busiest) consider(e, e, static_cast<int>(d));
    }
    for (size_t other = 0; other < rows.size(); ++other) {
      if (seats[other] != static_cast<int>(busiest)) consider(e, other, seats[other]);
    }
  }
  return best;
}

}  // namespace

std::vector<int> place_longest_first(std::span<const int64_t> rows, std::span<const double> speeds,
                                     std::span<const int64_t> taken) {
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return rows[a] > rows[b]; });
  Rows has = begun(taken, speeds.size());
  std::vector<int> seats(rows.size(), 0);
  for (const size_t e : order) {
    size_t first = 0;
    const auto end = [&](size_t d) { return static_cast<double>(has[d] + rows[e]) / speeds[d]; };
    for (size_t d = 1; d < speeds.size(); ++d) {
      if (end(d) < end(first)) first = d;
    }
    has[first] += rows[e];
    seats[e] = static_cast<int>(first);
  }
  return seats;
}

namespace {

// Exchanges experts of the busiest device until it ends at `enough`, or no exchange helps any more.
// Returns when it ends.
double exchange(std::span<const int64_t> rows, std::span<const double> speeds, const Rows& before,
                double enough, std::vector<int>& seats) {
  for (int turn = 0;; ++turn) {
    const std::vector<double> ends = device_ends(rows_of_devices(rows, seats, before), speeds);
    const double end = *std::max_element(ends.begin(), ends.end());
    if (turn == kMostExchanges || end <= enough) return end;
    const Exchange best = best_exchange(rows, seats, speeds, ends);
    if (best.end >= end) return end;
    seats[best.other] = seats[best.expert];
    seats[best.expert] = best.device;
  }
}

}  // namespace

std::vector<int> place_balanced(std::span<const int64_t> rows, std::span<const double> speeds,
                                std::span<const int64_t> taken) {
  std::vector<int> seats = place_longest_first(rows, speeds, taken);
  exchange(rows, speeds, begun(taken, speeds.size()), 0, seats);
  return seats;
}

std::vector<int> place_near_home(std::span<const int64_t> rows, std::span<const double> speeds,
                                 std::span<const int64_t> taken, std::span<const int> home) {
  constexpr double kNear = 1.02;
  const Rows before = begun(taken, speeds.size());
  std::vector<int> balanced = place_longest_first(rows, speeds, taken);
  const double enough = kNear * exchange(rows, speeds, before, 0, balanced);
  std::vector<int> seats(home.begin(), home.end());
  return exchange(rows, speeds, before, enough, seats) <= enough ? seats : balanced;
}

double busiest_device(std::span<const int64_t> rows, std::span<const int> seats,
                      std::span<const double> speeds) {
  const std::vector<double> ends =
      device_ends(rows_of_devices(rows, seats, Rows(speeds.size(), 0)), speeds);
  return *std::max_element(ends.begin(), ends.end());
}

namespace {

// Neighbours that fill about a wave of all devices, from `first` on.
size_t neighbours(const RunShape& shape, std::span<const int64_t> rows, size_t first) {
  const int64_t room = shape.devices * shape.group_blocks;
  size_t end = first;
  for (int64_t blocks = 0; end < rows.size() && blocks < room; ++end) {
    blocks += div_ceil(rows[end], shape.row_block);
  }
  return end - first;
}

// Gives the rank's experts among [first, end) seats on its devices, which take their rows.
void place_on_rank(const RunShape& shape, int64_t layer, int rank, std::pair<size_t, size_t> wave,
                   std::span<const int64_t> rows, std::vector<int>& seats, Rows& taken) {
  const DeviceRange own = shape.devices_of(rank);
  const auto first = static_cast<size_t>(own.first), count = static_cast<size_t>(own.count);
  std::vector<size_t> experts;
  std::vector<int> homes;
  Rows of_rank;
  for (size_t e = wave.first; e < wave.second; ++e) {
    const int64_t record = shape.expert(layer, static_cast<int64_t>(e));
    if (shape.home_rank(record) != rank) continue;
    experts.push_back(e);
    homes.push_back(shape.records[static_cast<size_t>(record)].device - own.first);
    of_rank.push_back(rows[e]);
  }
  const std::vector<int> placed =
      place_near_home(of_rank, std::span(shape.seat_speeds).subspan(first, count),
                      std::span<const int64_t>(taken).subspan(first, count), homes);
  for (size_t i = 0; i < experts.size(); ++i) {
    seats[experts[i]] = own.first + placed[i];
    taken[static_cast<size_t>(seats[experts[i]])] += of_rank[i];
  }
}

}  // namespace

std::vector<int> layer_seats(const RunShape& shape, int64_t layer, std::span<const int64_t> rows,
                             std::span<const int64_t> taken) {
  std::vector<int> seats;
  if (shape.seat_speeds.empty() || rows.empty()) {
    for (int64_t e = 0; e < shape.num_experts; ++e) {
      seats.push_back(shape.records[static_cast<size_t>(shape.expert(layer, e))].device);
    }
    return seats;
  }
  Rows has = begun(taken, shape.seat_speeds.size());
  seats.assign(rows.size(), 0);
  for (size_t first = 0; first < rows.size();) {
    const size_t end = first + neighbours(shape, rows, first);
    for (int rank = 0; rank < shape.ranks(); ++rank) {
      place_on_rank(shape, layer, rank, {first, end}, rows, seats, has);
    }
    first = end;
  }
  return seats;
}

int64_t travelling_row_bytes(const RunShape& shape, bool kept) {
  // Forward a row and what the expert gives, backward the row again unless it stayed, the gradients
  // of both, the routing weight and its gradient.
  const int64_t rows = kept ? 4 : 5;
  return rows * shape.hidden_size * shape.dtype_bytes + 2 * static_cast<int64_t>(sizeof(float));
}

int64_t travelling_weight_bytes(const RunShape& shape, int64_t record) {
  const RecordShape& of = shape.records[static_cast<size_t>(record)];
  const int64_t gradient = of.trains() ? static_cast<int64_t>(sizeof(float)) : 0;
  const int64_t times = shape.keeps_guests(of.layer) ? 1 : 2;
  return of.num_elements * (times * shape.dtype_bytes + gradient);
}

namespace {

// Whether the expert's rows of a device stay there. kept: they would stay at home otherwise, from
// the forward to the backward.
bool is_guest(const RunShape& shape, int64_t record, int64_t rows, bool kept) {
  if (shape.sharing == Sharing::kData) return rows > 0;
  return rows * travelling_row_bytes(shape, kept) > travelling_weight_bytes(shape, record);
}

// [expert] whether rows that come to its home are in waves whose rows stay until the backward,
// about: waves are known when guests are, so it counts blocks as if there were none.
std::vector<uint8_t> kept_at_home(const RunShape& shape, int64_t layer, const Rows& rows) {
  std::vector<uint8_t> kept(rows.size(), 0);
  if (shape.kept_rows == 0) return kept;
  Rows blocks(static_cast<size_t>(shape.devices), 0);  // [device] of the experts so far
  for (size_t e = 0; e < rows.size(); ++e) {
    const int64_t record = shape.expert(layer, static_cast<int64_t>(e));
    int64_t& of_home =
        blocks[static_cast<size_t>(shape.records[static_cast<size_t>(record)].device)];
    of_home += div_ceil(rows[e], shape.row_block);
    kept[e] = of_home <= shape.kept_waves() * shape.group_blocks;
  }
  return kept;
}

LayerSeats seats_in_copies(const RunShape& shape, int64_t layer, Microbatches microbatches) {
  LayerSeats seats{layer_seats(shape, layer, {}), {}};
  const int64_t shards = shape.sums.expert_shards;
  std::vector<int> copies(static_cast<size_t>(shards), -1);  // [shard]
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
    const int64_t shard = shape.sums.cell(b, shape.microbatches) % shards;
    int& copy = copies[static_cast<size_t>(shard)];
    const int own = shape.copies.of_device(shape.attending(layer, b));
    CHECK(copy < 0 || copy == own, "two copies have rows of a sum");
    copy = own;
  }
  seats.guests.assign(static_cast<size_t>(shape.num_experts * shards), -1);
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    for (int64_t shard = 0; shard < shards; ++shard) {
      const int copy = copies[static_cast<size_t>(shard)];
      if (copy < 0) continue;
      const int device = shape.seat_of(shape.expert(layer, e), copy);
      if (device != seats.seat(e)) seats.guests[LayerSeats::place(e, shard, shards)] = device;
    }
  }
  return seats;
}

}  // namespace

LayerSeats layer_seats(const RunShape& shape, int64_t layer, Microbatches microbatches,
                       const LayerRouting& routing) {
  if (shape.copies.several()) return seats_in_copies(shape, layer, microbatches);
  Rows rows = tokens_per_expert(routing);
  if (!shape.has_guests()) return {layer_seats(shape, layer, rows), {}};
  const int64_t shards = shape.sums.expert_shards;
  Rows taken(static_cast<size_t>(shape.devices), 0);
  std::vector<int> guests(rows.size() * static_cast<size_t>(shards), -1);
  const std::vector<uint8_t> kept = kept_at_home(shape, layer, rows);
  for (size_t e = 0; e < rows.size(); ++e) {
    const int64_t expert = static_cast<int64_t>(e), record = shape.expert(layer, expert);
    Rows of_device(taken.size(), 0);
    for (size_t b = 0; b < routing.size(); ++b) {
      const int64_t microbatch = microbatches.first + static_cast<int64_t>(b);
      of_device[static_cast<size_t>(shape.attending(layer, microbatch))] += routing[b][e];
    }
    for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
      const int device = shape.attending(layer, b);
      const int64_t shard = shape.sums.cell(b, shape.microbatches) % shards;
      if (!is_guest(shape, record, of_device[static_cast<size_t>(device)], kept[e])) continue;
      guests[static_cast<size_t>(expert * shards + shard)] = device;
    }
    for (size_t d = 0; d < of_device.size(); ++d) {
      if (!is_guest(shape, record, of_device[d], kept[e])) continue;
      taken[d] += of_device[d];
      rows[e] -= of_device[d];
    }
  }
  return {layer_seats(shape, layer, rows, taken), std::move(guests)};
}

std::vector<ExpertUse> far_guests(const RunShape& shape, int64_t layer, Microbatches microbatches,
                                  const LayerRouting& routing) {
  const LayerSeats seats = layer_seats(shape, layer, microbatches, routing);
  std::vector<ExpertUse> guests;
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    const int64_t record = shape.expert(layer, e);
    std::set<int> devices;
    for (size_t b = 0; b < routing.size(); ++b) {
      const int64_t microbatch = microbatches.first + static_cast<int64_t>(b);
      const int64_t cell = shape.sums.cell(microbatch, shape.microbatches);
      const int device = seats.device_of(e, cell, shape.sums.expert_shards);
      const bool far = shape.rank_of(device) != shape.home_rank(record);
      if (routing[b][static_cast<size_t>(e)] > 0 && far) devices.insert(device);
    }
    for (const int device : devices) guests.push_back({record, device});
  }
  return guests;
}

LayerRouting routing_to_seats(const RunShape& shape, Microbatches microbatches,
                              const LayerSeats& seats, LayerRouting routing) {
  for (size_t b = 0; b < routing.size(); ++b) {
    const int64_t microbatch = microbatches.first + static_cast<int64_t>(b);
    const int64_t cell = shape.sums.cell(microbatch, shape.microbatches);
    for (size_t e = 0; e < routing[b].size(); ++e) {
      const auto expert = static_cast<int64_t>(e);
      if (seats.is_guest(expert, cell, shape.sums.expert_shards)) routing[b][e] = 0;
    }
  }
  return routing;
}

std::vector<int64_t> rows_at_seats(const RunShape& shape, int64_t layer, Microbatches microbatches,
                                   const LayerRouting& routing) {
  const LayerSeats seats = layer_seats(shape, layer, microbatches, routing);
  return tokens_per_expert(routing_to_seats(shape, microbatches, seats, routing));
}

std::vector<ExpertWave> layer_waves(const RunShape& shape, int64_t layer, Microbatches microbatches,
                                    const LayerRouting& routing) {
  return layer_waves(shape, layer, microbatches, routing,
                     layer_seats(shape, layer, microbatches, routing));
}

std::vector<ExpertWave> layer_waves(const RunShape& shape, int64_t layer, Microbatches microbatches,
                                    const LayerRouting& routing, const LayerSeats& seats) {
  GroupLimits limits;
  limits.row_block = shape.row_block;
  limits.group_blocks = shape.group_blocks;
  limits.padded = shape.options.padded_experts;
  limits.devices = shape.devices;
  limits.seats = seats;
  limits.expert_shards = shape.sums.expert_shards;
  for (int64_t b = microbatches.first; b < microbatches.end(); ++b) {
    limits.cells.push_back(shape.sums.cell(b, shape.microbatches));
    limits.attends.push_back(shape.attending(layer, b));
  }
  limits.first_row = microbatches.first * shape.microbatch_tokens * shape.experts_per_token;
  // Zebra's devices that attend compute their experts between attention of other chunks, which the
  // waves of others do not wait for.
  for (int d = 0; d < shape.devices && shape.zebra && shape.rounds() > 1; ++d) {
    limits.apart.push_back(shape.attends(d));
  }
  limits.goes_on = shape.rounds() > 1 && microbatches.end() < shape.microbatches;
  return expert_waves(routing, limits);
}

}  // namespace pagoda
