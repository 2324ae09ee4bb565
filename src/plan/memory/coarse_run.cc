#include "plan/memory/coarse_run.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"
#include "plan/step/pages.h"

namespace pagoda {
namespace {

int64_t expert_records(const RunShape& shape) {
  return shape.num_experts * std::count(shape.is_moe.begin(), shape.is_moe.end(), uint8_t{1});
}

// The home of an expert, and where there are copies its seat in each.
using ExpertPlaces = std::vector<int>;

ExpertPlaces places_of(const RunShape& shape, int64_t record) {
  ExpertPlaces places = {shape.records[static_cast<size_t>(record)].device};
  for (int copy = 0; copy < shape.copies.count && shape.copies.several(); ++copy) {
    places.push_back(shape.seat_of(record, copy));
  }
  return places;
}

// The largest number that divides the experts of every layer that have the same places.
int64_t experts_at_same_places(const RunShape& shape) {
  int64_t divisor = 0;
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    std::map<ExpertPlaces, int64_t> experts;
    for (int64_t e = 0; e < (shape.is_moe[l] ? shape.num_experts : 0); ++e) {
      ++experts[places_of(shape, shape.expert(l, e))];
    }
    for (const auto& [places, count] : experts) divisor = std::gcd(divisor, count);
  }
  return divisor;
}

// [expert] the coarse expert of the layer that it becomes a part of: the next `together` with the
// same places, in the order of their first experts.
std::vector<int64_t> coarse_experts(const RunShape& shape, int64_t layer, int64_t together) {
  struct Newest {
    int64_t taken = 0, coarse = 0;
  };
  std::map<ExpertPlaces, Newest> newest;
  std::vector<int64_t> parts;
  int64_t count = 0;
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    Newest& there = newest[places_of(shape, shape.expert(layer, e))];
    if (there.taken++ % together == 0) there.coarse = count++;
    parts.push_back(there.coarse);
  }
  return parts;
}

// Rows of an expert in a step in which all experts get equally many.
int64_t even_rows(const RunShape& shape) {
  const int64_t chosen = shape.microbatches * shape.microbatch_tokens * shape.experts_per_token;
  return std::max<int64_t>(1, chosen / std::max<int64_t>(1, shape.num_experts));
}

// Row blocks of such an expert, which begin anew in each cell of its sums (plan/sums/sum_shape.h).
int64_t blocks_of_cell(const RunShape& shape) {
  return div_ceil(div_ceil(even_rows(shape), shape.sums.cells()), shape.row_block);
}
int64_t even_blocks(const RunShape& shape) { return shape.sums.cells() * blocks_of_cell(shape); }

// The least divisor of `whole`, not above `most`, that brings `count` to the limit, or the largest.
int64_t fewest_together(int64_t whole, int64_t count, int64_t limit, int64_t most) {
  int64_t together = 1;
  for (int64_t g = 1; g <= std::min(whole, most) && count / together > limit; ++g) {
    if (whole % g == 0) together = g;
  }
  return together;
}

// Adds a record of `shape` to those of the other, with its seats in copies.
void copy_record(const RunShape& shape, int64_t record, RunShape& other) {
  other.records.push_back(shape.records[static_cast<size_t>(record)]);
  for (size_t copy = 0; copy < shape.copies.seats.size(); ++copy) {
    other.copies.seats[copy].push_back(shape.copies.seats[copy][static_cast<size_t>(record)]);
  }
}

void clear_records(RunShape& shape) {
  shape.records.clear();
  shape.layer_record.clear();
  for (std::vector<int>& seats : shape.copies.seats) seats.clear();
}

// A layer of `shape` becomes one of `brief`, with its records.
void copy_layer(const RunShape& shape, int64_t layer, RunShape& brief) {
  const auto at = static_cast<int64_t>(brief.is_moe.size());
  const bool moe = shape.is_moe[static_cast<size_t>(layer)] != 0;
  const int64_t first = shape.layer_record[static_cast<size_t>(layer)];
  brief.is_moe.push_back(moe);
  brief.layer_record.push_back(static_cast<int64_t>(brief.records.size()));
  for (int64_t r = first; r <= first + (moe ? shape.num_experts : 0); ++r) {
    copy_record(shape, r, brief);
    brief.records.back().layer = at;
  }
}

// Microbatches of a cell of the sums by shards: a rank that has one cell alone may have buffers of
// two microbatches on their way, up and down, which its host has a slot each for.
int64_t microbatches_of_cell(const RunShape& shape, const SumShape& sums) {
  const DeviceRange own = shape.own_devices();
  const int64_t shards = std::count_if(shape.shard_device.begin(), shape.shard_device.end(),
                                       [&](int device) { return own.contains(device); });
  return sums.chunks * shards == 1 ? 2 : 1;
}

// Two layers of each kind in each stage; the last one, behind which the head is; and with several
// devices those whose dense records are at home on the rank, one of each kind for each device, and
// two in all.
std::vector<int64_t> brief_layers(const RunShape& shape) {
  const DeviceRange own = shape.own_devices();
  std::map<std::pair<int, bool>, int64_t> seen;  // [stage, with experts]
  std::set<std::pair<int, bool>> homes;          // device, with experts
  std::array<int64_t, 2> at_home = {};           // [with experts]
  std::vector<int64_t> layers;
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    const bool moe = shape.is_moe[static_cast<size_t>(l)] != 0;
    const auto dense = static_cast<size_t>(shape.layer_record[static_cast<size_t>(l)]);
    const int home = shape.records[dense].device;
    const bool here = shape.devices > 1 && own.contains(home);
    const bool first = ++seen[{shape.stage_of(l), moe}] <= 2;
    const bool of_home = here && (homes.insert({home, moe}).second || at_home[moe] < 2);
    const bool last = shape.stages.several() && l + 1 == shape.num_layers;
    if (!first && !of_home && !last) continue;
    layers.push_back(l);
    at_home[moe] += here;
  }
  return layers;
}

}  // namespace

Coarseness coarseness(const RunShape& shape, const CoarseLimits& limits, bool in_order) {
  Coarseness c;
  const bool one_device = shape.devices == 1;
  if (shape.num_experts > 0) {
    const int64_t alike = experts_at_same_places(shape);
    const int64_t of_layer = std::max(1, shape.devices / (shape.stages.count * shape.copies.count));
    c.experts = fewest_together(alike, expert_records(shape), limits.expert_records,
                                std::max<int64_t>(1, alike / div_ceil(4, of_layer)));
  }
  const int64_t most = in_order ? std::min(kMostInOrder, limits.microbatches) : limits.microbatches;
  // The microbatches of a shard are one device's, or sums of their own.
  const int64_t of_shard = shape.sums.columns(shape.microbatches) / shape.sums.shards;
  const bool by_shards = !one_device || shape.sums.expert_shards > 1;
  const int64_t divided = by_shards ? of_shard : shape.microbatches;
  c.microbatches = fewest_together(divided, shape.microbatches, most, divided);
  const int64_t blocks = even_blocks(shape);
  const int64_t all = blocks * expert_records(shape) / c.experts;
  if (all <= limits.blocks) return c;
  const int64_t of_cell = blocks_of_cell(shape);
  const int64_t of_microbatch = blocks * c.microbatches / shape.microbatches;
  c.blocks = in_order ? std::clamp<int64_t>(of_microbatch, 1, of_cell) : of_cell;
  return c;
}

RunShape coarse_shape(const RunShape& shape, const Coarseness& c) {
  RunShape coarse = shape;
  coarse.ep_degree = shape.ep_degree * c.experts;
  coarse.num_experts = shape.num_experts / c.experts;
  coarse.least_sums = PageTable::sum_pages(shape);
  const int64_t expert_sums = PageTable::expert_sum_pages(shape);
  coarse.least_expert_sums = shape.rounds() > 1 ? expert_sums : div_ceil(expert_sums, c.experts);
  coarse.set_microbatches(shape.microbatches / c.microbatches);
  coarse.microbatch_tokens = shape.microbatch_tokens * c.microbatches;
  coarse.row_block = shape.row_block * c.experts * c.blocks;
  coarse.group_blocks = std::max<int64_t>(1, shape.group_blocks / (c.experts * c.blocks));
  // A group that has whole experts has whole ones here too: a part of one would be the tokens of
  // some devices only.
  if (shape.devices > 1 && even_blocks(shape) <= shape.group_blocks) {
    coarse.group_blocks = std::max(coarse.group_blocks, even_blocks(coarse));
  }
  CHECK(coarse.num_experts * c.experts == shape.num_experts &&
        coarse.microbatches * c.microbatches == shape.microbatches);
  clear_records(coarse);
  std::vector<int64_t> parts;  // of the layer
  for (int64_t r = 0; r <= shape.head(); ++r) {
    RecordShape record = shape.records[static_cast<size_t>(r)];
    if (record.layer >= 0 && record.expert < 0) {
      coarse.layer_record.push_back(static_cast<int64_t>(coarse.records.size()));
      const bool moe = shape.is_moe[static_cast<size_t>(record.layer)] != 0;
      if (moe) parts = coarse_experts(shape, record.layer, c.experts);
    }
    if (record.expert >= 0) record.expert = parts[static_cast<size_t>(record.expert)];
    const int64_t at = record.expert < 0 ? std::ssize(coarse.records)
                                         : coarse.layer_record.back() + 1 + record.expert;
    if (at == std::ssize(coarse.records)) {
      copy_record(shape, r, coarse);
      coarse.records.back().expert = record.expert;
    } else {
      coarse.records[static_cast<size_t>(at)].num_elements += record.num_elements;
      coarse.records[static_cast<size_t>(at)].state_bytes += record.state_bytes;
      coarse.records[static_cast<size_t>(at)].frozen_elements += record.frozen_elements;
    }
  }
  return coarse;
}

RunShape brief_shape(const RunShape& shape) {
  RunShape brief = shape;
  brief.in_place = false;  // the run's rows in place are of more microbatches
  brief.least_sums = PageTable::sum_pages(shape);
  brief.least_expert_sums = PageTable::expert_sum_pages(shape);
  brief.least_kept_actions = PageTable::kept_actions(shape);
  // An order that was given is that of all chunks and layers.
  if (shape.order != nullptr) return brief;
  // Chunks that follow each other need the same.
  if (shape.rounds() > 1) brief.sums.chunks = std::min<int64_t>(2, shape.sums.chunks);
  // Every device that attends keeps a shard, and an expert its sums.
  const bool by_shards = shape.devices > 1 || shape.sums.expert_shards > 1;
  const int64_t by_cells =
      brief.sums.chunks * shape.sums.shards * microbatches_of_cell(shape, brief.sums);
  const int64_t fewest = by_shards ? std::max<int64_t>(2, by_cells) : 2;
  brief.set_microbatches(std::min(fewest, shape.microbatches));
  if (shape.stages.chunk_by_chunk()) return brief;
  brief.is_moe.clear();
  brief.stages.layers.clear();
  clear_records(brief);
  copy_record(shape, shape.embedding(), brief);
  for (const int64_t l : brief_layers(shape)) {
    copy_layer(shape, l, brief);
    if (shape.stages.several()) brief.stages.layers.push_back(shape.stage_of(l));
  }
  copy_record(shape, shape.head(), brief);
  brief.num_layers = static_cast<int64_t>(brief.is_moe.size());
  return brief;
}

}  // namespace pagoda
