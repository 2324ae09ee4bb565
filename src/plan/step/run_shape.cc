#include "plan/step/run_shape.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace pagoda {

namespace {

std::vector<int> distinct(std::vector<int> devices) {
  if (devices.empty()) return {0};
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

}  // namespace

std::vector<int> RunShape::shards_of(int stage) const {
  if (shard_device.empty()) return {};
  CHECK(stage >= 0 && (stage + 1) * sums.shards <= std::ssize(shard_device));
  const auto first = shard_device.begin() + stage * sums.shards;
  return {first, first + sums.shards};
}

std::vector<int> RunShape::attending_devices() const { return distinct(shard_device); }

std::vector<int> RunShape::attending_devices(int stage) const { return distinct(shards_of(stage)); }

bool RunShape::computes_with(int device, int64_t record) const {
  if (records[static_cast<size_t>(record)].expert >= 0) return has_seat(device, record);
  if (!attends(device)) return false;
  if (!stages.several()) return true;
  const int stage = stages.of_device(device);
  const bool tied = tied_embeddings && record == embedding();
  if (tied && stage == stage_of(num_layers)) return true;
  return stage == stage_of_record(record);
}

bool RunShape::is_away(int64_t record) const {
  const std::vector<int> attending = attending_devices(stage_of_record(record));
  return std::ranges::count(attending, records[static_cast<size_t>(record)].device) == 0;
}

std::vector<int> RunShape::dense_homes(int stage) const {
  std::vector<int> homes = attending_devices(stage);
  for (const int64_t table : {embedding(), head()}) {
    const bool away = stage_of_record(table) == stage && is_away(table);
    if (away) homes.push_back(records[static_cast<size_t>(table)].device);
  }
  return homes;
}

int RunShape::whole_sum_device(int64_t table) const {
  const bool tied = tied_embeddings && table == head();
  if (tied) return records[static_cast<size_t>(embedding())].device;
  return is_away(table) ? records[static_cast<size_t>(table)].device : -1;
}

std::vector<int64_t> RunShape::whole_sums() const {
  std::vector<int64_t> tables = {embedding(), head()};
  std::erase_if(tables, [this](int64_t table) { return whole_sum_device(table) < 0; });
  return tables;
}

int64_t RunShape::boundaries() const {
  int64_t count = 0;
  for (int64_t l = 0; l < num_layers; ++l) count += leaves_stage(l);
  return count;
}

bool RunShape::keeps_rows(int64_t layer, int device) const {
  if (kept_waves() == 0 || !is_moe[static_cast<size_t>(layer)]) return false;
  std::vector<int> attending = attending_devices(stage_of(layer));
  std::erase_if(attending, [&](int d) { return copies.of_device(d) != copies.of_device(device); });
  if (attending == std::vector<int>{device}) return false;  // none come from others
  if (may_compute_any(device)) return true;
  for (int64_t e = 0; e < num_experts; ++e) {
    if (has_seat(device, expert(layer, e))) return true;
  }
  return false;
}

DeviceRange RunShape::devices_of(int rank) const {
  if (device_rank.empty()) return {0, devices};
  const auto [first, end] = std::equal_range(device_rank.begin(), device_rank.end(), rank);
  return {static_cast<int>(first - device_rank.begin()), static_cast<int>(end - first)};
}

ExchangeNodes RunShape::exchange_nodes() const {
  std::vector<int> nodes, cards;  // [device]
  std::vector<double> rates;      // [device]
  for (int d = 0; d < devices; ++d) {
    const bool same = d > 0 && rank_of(d) == rank_of(d - 1) &&
                      stages.of_device(d) == stages.of_device(d - 1) &&
                      copies.of_device(d) == copies.of_device(d - 1);
    nodes.push_back(d == 0 ? 0 : nodes.back() + (same ? 0 : 1));
    if (!network_rates.empty()) rates.push_back(network_rates[static_cast<size_t>(rank_of(d))]);
    if (shares_cards) cards.push_back(rank_of(d));
  }
  return ExchangeNodes(std::move(nodes), std::move(rates), std::move(cards));
}

bool RunShape::rank_computes_with(int rank, int64_t record) const {
  const DeviceRange of_rank = devices_of(rank);
  for (int d = of_rank.first; d < of_rank.end(); ++d) {
    if (computes_with(d, record)) return true;
  }
  return false;
}

int64_t RunShape::far_experts(int rank) const {
  int64_t most = 0;
  for (int64_t l = 0; l < num_layers; ++l) {
    int64_t far = 0;
    for (int64_t e = 0; e < (is_moe[static_cast<size_t>(l)] ? num_experts : 0); ++e) {
      far += home_rank(expert(l, e)) != rank;
    }
    most = std::max(most, far);
  }
  return most;
}

std::vector<int64_t> RunShape::guest_places(int rank) const {
  if (!has_far_guests() || guest_layers == 0) return {};
  CHECK(guest_layers >= std::min<int64_t>(2, moe_layers()));
  const int64_t of_layer = far_experts(rank);
  std::vector<int64_t> places(records.size(), -1);
  int64_t turn = 0;
  for (int64_t l = 0; l < num_layers; ++l) {
    if (!is_moe[static_cast<size_t>(l)]) continue;
    int64_t next = turn * of_layer;
    for (int64_t e = 0; e < num_experts; ++e) {
      if (home_rank(expert(l, e)) != rank) places[static_cast<size_t>(expert(l, e))] = next++;
    }
    turn = (turn + 1) % guest_layers;
  }
  return places;
}

int64_t RunShape::most_round_blocks() const {
  std::vector<int64_t> on_device(static_cast<size_t>(num_layers * devices), 0);
  int64_t most = 0;
  for (int64_t r = 0; r < std::ssize(records); ++r) {
    const RecordShape& record = records[static_cast<size_t>(r)];
    for (int copy = 0; copy < copies.count && record.expert >= 0; ++copy) {
      const int64_t at = record.layer * devices + seat_of(r, copy);
      most = std::max(most, ++on_device[static_cast<size_t>(at)]);
    }
  }
  if (most == 0) return 0;
  // Each of n experts ends in a block that may have one row, and the rows beyond are whole blocks.
  const int64_t rows = most * div_ceil(round_rows(), num_experts);
  return most + std::max<int64_t>(0, rows - most) / row_block;
}

int64_t RunShape::sum_elements() const {
  int64_t largest = hidden_size + records[static_cast<size_t>(embedding())].num_elements;
  for (const RecordShape& record : records) {
    if (record.expert < 0) largest = std::max(largest, record.num_elements);
  }
  return largest;
}

void RunShape::set_microbatches(int64_t count) {
  const SumShape fewer = coarser(sums, count);
  std::vector<int> fewer_devices;
  for (int stage = 0; stage < stages.count; ++stage) {
    const std::vector<int> of_stage = fewer_shards(shards_of(stage), fewer.shards);
    fewer_devices.insert(fewer_devices.end(), of_stage.begin(), of_stage.end());
  }
  const std::vector<int> before = std::exchange(shard_device, std::move(fewer_devices));
  sums = fewer;
  microbatches = count;
  for (int64_t r = 0; r < std::ssize(records); ++r) {
    RecordShape& record = records[static_cast<size_t>(r)];
    const bool attended = pagoda::attends(before, record.device);
    if (record.expert >= 0 || !attended || attends(record.device)) continue;
    record.device = attending(r == head() ? num_layers : record.layer, 0);
  }
}

}  // namespace pagoda
