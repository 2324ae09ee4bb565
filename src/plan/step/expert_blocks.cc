#include "plan/step/expert_blocks.h"

#include <algorithm>
#include <functional>
#include <map>

namespace pagoda {

LayerRouting routing_of_parts(const LayerRouting& experts, int64_t parts) {
  LayerRouting routing;
  for (const std::vector<int64_t>& counts : experts) {
    std::vector<int64_t>& of_parts = routing.emplace_back();
    for (const int64_t rows : counts) of_parts.insert(of_parts.end(), parts, rows);
  }
  return routing;
}

std::vector<int64_t> tokens_of_experts(const std::vector<int64_t>& of_parts, int64_t parts) {
  std::vector<int64_t> tokens;
  for (size_t i = 0; i < of_parts.size(); i += static_cast<size_t>(parts)) {
    tokens.push_back(of_parts[i]);
  }
  return tokens;
}

std::vector<int64_t> tokens_per_expert(const LayerRouting& routing) {
  std::vector<int64_t> sum = routing.front();
  for (size_t b = 1; b < routing.size(); ++b) {
    std::transform(sum.begin(), sum.end(), routing[b].begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

const ExpertGroup::Part* ExpertGroup::part(int64_t microbatch) const {
  const auto at = std::lower_bound(parts.begin(), parts.end(), microbatch,
                                   [](const Part& part, int64_t b) { return part.microbatch < b; });
  return at != parts.end() && at->microbatch == microbatch ? &*at : nullptr;
}

const ExpertGroup::Parcel* ExpertGroup::parcel(int device) const {
  const auto at = std::find_if(parcels.begin(), parcels.end(),
                               [&](const Parcel& parcel) { return parcel.device == device; });
  return at != parcels.end() ? &*at : nullptr;
}

namespace {

// Hands an expert's tokens to groups, microbatch by microbatch.
class ExpertRows {
 public:
  ExpertRows(const LayerRouting& routing, int64_t expert, int64_t first_row)
      : routing_(routing), expert_(expert), row_(first_row) {}

  void take(int64_t rows, ExpertGroup& group) {
    int64_t group_row = group.blocks.back().group_row;
    while (rows > 0) {
      const int64_t left = of(microbatch_) - done_;
      const int64_t count = std::min(left, rows);
      if (count > 0) add(count, group_row, group.parts);
      row_ += count;
      group_row += count;
      rows -= count;
      done_ += count;
      if (count == left) {
        ++microbatch_;
        done_ = 0;
      }
    }
  }
  int64_t row() const { return row_; }
  // The first microbatches, of which all rows are handed out.
  size_t complete() const {
    size_t end = microbatch_;
    while (end < routing_.size() && of(end) == 0) ++end;
    return end;
  }
  // The rows left of microbatches before `end`.
  int64_t left_before(size_t end) const {
    int64_t rows = -done_;
    for (size_t b = microbatch_; b < end; ++b) rows += of(b);
    return std::max<int64_t>(0, rows);
  }

 private:
  int64_t of(size_t microbatch) const {
    return routing_[microbatch][static_cast<size_t>(expert_)];
  }
  void add(int64_t count, int64_t group_row, std::vector<ExpertGroup::Part>& parts) const {
    const auto microbatch = static_cast<int64_t>(microbatch_);
    auto at = std::find_if(parts.begin(), parts.end(), [&](const ExpertGroup::Part& part) {
      return part.microbatch >= microbatch;
    });
    if (at == parts.end() || at->microbatch != microbatch) {
      at = parts.insert(at, {microbatch, 0, {}});
    }
    at->rows += count;
    at->runs.push_back({expert_, row_, group_row, count, 0});
  }

  const LayerRouting& routing_;
  int64_t expert_;
  size_t microbatch_ = 0;
  int64_t row_, done_ = 0;  // the microbatch's next row, and its rows so far
};

// An expert's rows in one cell.
struct CellRows {
  int64_t cell = 0, rows = 0;  // those computed, so padding in the last one
};

// In their order. Padding alone is in the first cell.
std::vector<CellRows> cells_of(const LayerRouting& routing, const GroupLimits& limits,
                               size_t expert, int64_t padding) {
  std::vector<CellRows> cells;
  for (size_t b = 0; b < routing.size(); ++b) {
    const int64_t cell = limits.cells.empty() ? 0 : limits.cells[b], rows = routing[b][expert];
    if (rows == 0) continue;
    if (cells.empty() || cells.back().cell != cell) cells.push_back({cell, 0});
    cells.back().rows += rows;
  }
  if (padding == 0) return cells;
  if (cells.empty()) cells.push_back({limits.cells.empty() ? 0 : limits.cells.front(), 0});
  cells.back().rows += padding;
  return cells;
}

// Finds the parcels of a group whose parts are complete.
void divide(const GroupLimits& limits, ExpertGroup& group) {
  std::vector<std::pair<ExpertGroup::Run*, int>> runs;  // with the devices that attend to them
  for (ExpertGroup::Part& part : group.parts) {
    const auto b = static_cast<size_t>(part.microbatch);
    const int device = limits.attends.empty() ? 0 : limits.attends[b];
    for (ExpertGroup::Run& run : part.runs) runs.emplace_back(&run, device);
  }
  std::sort(runs.begin(), runs.end(),
            [](const auto& x, const auto& y) { return x.first->group_row < y.first->group_row; });
  std::map<int, ExpertGroup::Parcel> parcels;
  for (const auto& [run, device] : runs) {
    ExpertGroup::Parcel& parcel = parcels[device];
    parcel.device = device;
    run->parcel_row = parcel.rows;
    const bool follows = !parcel.runs.empty() &&
                         parcel.runs.back().group_row + parcel.runs.back().rows == run->group_row;
    if (!follows) parcel.runs.push_back({parcel.rows, run->group_row, 0});
    parcel.runs.back().rows += run->rows;
    parcel.rows += run->rows;
  }
  for (auto& [device, parcel] : parcels) group.parcels.push_back(std::move(parcel));
}

// An expert whose rows go to groups.
struct ExpertLeft {
  int64_t expert = 0, ordinal = 0;
  int64_t own = 0, computed = 0, done = 0;  // rows
  std::vector<CellRows> cells;
  size_t at = 0;        // the cell whose rows are next
  int64_t in_cell = 0;  // rows of it that are done
  ExpertRows rows;
  bool over() const { return done == computed; }
};

// Fills a wave with row blocks.
class Wave {
 public:
  Wave(const GroupLimits& limits, size_t microbatches, bool apart)
      : limits_(limits),
        microbatches_(microbatches),
        apart_(apart),
        groups_(static_cast<size_t>(limits.devices)),
        row_blocks_(groups_.size(), 0),
        closed_(groups_.size(), 0) {}

  // Puts into the groups what the expert has left, as far as there is room, of microbatches before
  // `end`. What it does not take is not overtaken on its devices.
  void take(ExpertLeft& expert, size_t end) {
    while (!expert.over() && take_block(expert, end)) {
    }
    for (size_t c = expert.at; c < expert.cells.size(); ++c) {
      closed_[device_of(expert, expert.cells[c])] = 1;
    }
  }

  ExpertWave divided() {
    for (ExpertGroup& group : groups_) divide(limits_, group);
    return std::move(groups_);
  }

 private:
  size_t device_of(const ExpertLeft& expert, const CellRows& cell) const {
    return static_cast<size_t>(
        limits_.seats.device_of(expert.expert, cell.cell, limits_.expert_shards));
  }
  int64_t room(const ExpertLeft& expert, const CellRows& cell, size_t device) const;
  bool take_block(ExpertLeft& expert, size_t end);

  const GroupLimits& limits_;
  size_t microbatches_;
  bool apart_;  // it is of devices apart
  ExpertWave groups_;
  std::vector<int64_t> row_blocks_;  // [device]
  std::vector<uint8_t> closed_;      // [device]
};

// How many row blocks of the cell its group has room for. A group has one run of rows of a sum, so
// that its products can be computed in any order.
int64_t Wave::room(const ExpertLeft& expert, const CellRows& cell, size_t device) const {
  const bool apart = !limits_.apart.empty() && limits_.apart[device] != 0;
  const ExpertGroup& group = groups_[device];
  const bool alone = limits_.padded && !group.blocks.empty();
  if (apart != apart_ || alone || closed_[device] != 0) return 0;
  const int64_t shards = limits_.expert_shards;
  const bool again =
      std::any_of(group.blocks.begin(), group.blocks.end(), [&](const ExpertGroup::Block& block) {
        return block.expert == expert.expert && block.cell % shards == cell.cell % shards;
      });
  return again ? 0 : limits_.group_blocks - row_blocks_[device];
}

bool Wave::take_block(ExpertLeft& expert, size_t end) {
  const CellRows cell = expert.cells[expert.at];
  const size_t device = device_of(expert, cell);
  const int64_t left = cell.rows - expert.in_cell;
  int64_t height = std::min(room(expert, cell, device) * limits_.row_block, left);
  if (end < microbatches_) {
    const int64_t most = expert.rows.left_before(end);
    if (height > most) height = most / limits_.row_block * limits_.row_block;
  }
  if (height == 0) return false;
  ExpertGroup& group = groups_[device];
  ExpertGroup::Block block;
  block.cell = cell.cell;
  block.begins_cell = expert.in_cell == 0;
  block.ends_cell = height == left;
  block.expert = expert.expert;
  block.first = expert.done == 0;
  block.last = expert.own > 0 && expert.done + height == expert.computed && !limits_.goes_on;
  block.first_row = expert.rows.row();
  block.group_row = group.blocks.empty() ? 0 : group.rows();
  block.rows = std::clamp<int64_t>(expert.own - expert.done, 0, height);
  block.padding = height - block.rows;
  block.ordinal = expert.ordinal;
  group.blocks.push_back(block);
  expert.rows.take(block.rows, group);
  row_blocks_[device] += (height + limits_.row_block - 1) / limits_.row_block;
  expert.done += height;
  expert.in_cell = block.ends_cell ? 0 : expert.in_cell + height;
  expert.at += block.ends_cell;
  return true;
}

std::vector<ExpertLeft> all_experts(const LayerRouting& routing, const GroupLimits& limits) {
  const std::vector<int64_t> tokens = tokens_per_expert(routing);
  const int64_t least = limits.padded ? *std::max_element(tokens.begin(), tokens.end()) : 0;
  std::vector<int64_t> ordinals(static_cast<size_t>(limits.devices), 0);
  std::vector<ExpertLeft> experts;
  int64_t first_row = limits.first_row;
  for (size_t e = 0; e < tokens.size(); ++e) {
    const int64_t own = tokens[e], computed = std::max(own, least);
    const auto expert = static_cast<int64_t>(e);
    int64_t& ordinal = ordinals[static_cast<size_t>(limits.seats.seat(expert))];
    experts.push_back({.expert = expert,
                       .ordinal = ordinal,
                       .own = own,
                       .computed = computed,
                       .cells = cells_of(routing, limits, e, computed - own),
                       .rows = ExpertRows(routing, expert, first_row)});
    ordinal += computed > 0;
    first_row += own;
  }
  return experts;
}

}  // namespace

std::vector<ExpertWave> expert_waves(const LayerRouting& routing, const GroupLimits& limits) {
  std::vector<ExpertLeft> experts = all_experts(routing, limits);
  // Sums of guests wait for one another, and padding is of no microbatch.
  const bool one_by_one = limits.padded || !limits.seats.guests.empty();
  std::vector<ExpertWave> waves;
  for (size_t first = 0;;) {
    while (first < experts.size() && experts[first].over()) ++first;
    if (first == experts.size()) return waves;
    const ExpertLeft& next = experts[first];
    const int device =
        limits.seats.device_of(next.expert, next.cells[next.at].cell, limits.expert_shards);
    const bool apart = !limits.apart.empty() && limits.apart[static_cast<size_t>(device)] != 0;
    Wave wave(limits, routing.size(), apart);
    size_t end = routing.size();  // microbatches that all experts before have handed out
    for (size_t e = first; e < experts.size() && end > 0; ++e) {
      wave.take(experts[e], end);
      if (one_by_one && !experts[e].over()) break;
      end = std::min(end, experts[e].rows.complete());
    }
    waves.push_back(wave.divided());
  }
}

}  // namespace pagoda
