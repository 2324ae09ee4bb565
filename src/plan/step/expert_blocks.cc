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
      const int64_t left = routing_[microbatch_][static_cast<size_t>(expert_)] - done_;
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

 private:
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

// Puts row blocks into the newest wave, or begins another.
class Waves {
 public:
  explicit Waves(const GroupLimits& limits)
      : limits_(limits), ordinals_(static_cast<size_t>(limits.devices), 0) {}

  // The group that takes the expert's next row blocks, and how many it has room for. A group has
  // one run of rows of a sum, so that its products can be computed in any order.
  ExpertGroup& group_for(int64_t expert, int64_t cell, size_t device, int64_t& room) {
    const bool apart = !limits_.apart.empty() && limits_.apart[device] != 0;
    if (!waves_.empty() && apart == apart_) {
      ExpertGroup& group = waves_.back()[device];
      const bool alone = limits_.padded && !group.blocks.empty();
      const int64_t shards = limits_.expert_shards;
      const bool again = std::any_of(
          group.blocks.begin(), group.blocks.end(), [&](const ExpertGroup::Block& block) {
            return block.expert == expert && block.cell % shards == cell % shards;
          });
      room = limits_.group_blocks - row_blocks_[device];
      if (room > 0 && !alone && !again) return group;
    }
    waves_.emplace_back(static_cast<size_t>(limits_.devices));
    row_blocks_.assign(static_cast<size_t>(limits_.devices), 0);
    apart_ = apart;
    room = limits_.group_blocks;
    return waves_.back()[device];
  }
  void took(size_t device, int64_t rows) {
    row_blocks_[device] += (rows + limits_.row_block - 1) / limits_.row_block;
  }
  int64_t& ordinal(size_t device) { return ordinals_[device]; }
  std::vector<ExpertWave> take() {
    for (ExpertWave& wave : waves_) {
      for (ExpertGroup& group : wave) divide(limits_, group);
    }
    return std::move(waves_);
  }

 private:
  const GroupLimits& limits_;
  std::vector<ExpertWave> waves_;
  std::vector<int64_t> row_blocks_;  // [device] of the newest wave
  std::vector<int64_t> ordinals_;    // [device]
  bool apart_ = false;               // the newest wave is of devices apart
};

}  // namespace

std::vector<ExpertWave> expert_waves(const LayerRouting& routing, const GroupLimits& limits) {
  const std::vector<int64_t> tokens = tokens_per_expert(routing);
  const int64_t least = limits.padded ? *std::max_element(tokens.begin(), tokens.end()) : 0;
  Waves waves(limits);
  int64_t first_row = limits.first_row;
  for (int64_t e = 0; e < std::ssize(tokens); ++e) {
    const auto expert = static_cast<size_t>(e);
    const auto seat = static_cast<size_t>(limits.seats.seat(e));
    const int64_t own = tokens[expert], computed = std::max(own, least);
    const std::vector<CellRows> cells = cells_of(routing, limits, expert, computed - own);
    ExpertRows rows(routing, e, first_row);
    int64_t in_cell = 0;  // rows of the cell that are done
    for (int64_t done = 0, at = 0; done < computed;) {
      int64_t room = 0;
      const CellRows& cell = cells[static_cast<size_t>(at)];
      const auto device =
          static_cast<size_t>(limits.seats.device_of(e, cell.cell, limits.expert_shards));
      ExpertGroup& group = waves.group_for(e, cell.cell, device, room);
      const int64_t height = std::min(room * limits.row_block, cell.rows - in_cell);
      ExpertGroup::Block block;
      block.cell = cell.cell;
      block.begins_cell = in_cell == 0;
      block.ends_cell = in_cell + height == cell.rows;
      block.expert = e;
      block.first = done == 0;
      block.last = own > 0 && done + height == computed && !limits.goes_on;
      block.first_row = rows.row();
      block.group_row = group.blocks.empty() ? 0 : group.rows();
      block.rows = std::clamp<int64_t>(own - done, 0, height);
      block.padding = height - block.rows;
      block.ordinal = waves.ordinal(seat);
      group.blocks.push_back(block);
      rows.take(block.rows, group);
      waves.took(device, height);
      done += height;
      in_cell = block.ends_cell ? 0 : in_cell + height;
      at += block.ends_cell;
    }
    first_row = rows.row();
    waves.ordinal(seat) += computed > 0;
  }
  return waves.take();
}

}  // namespace pagoda
