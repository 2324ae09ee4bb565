// Cuts the rows that go through a layer's experts. Experts come one after the other; an expert's
// tokens of all microbatches stand behind each other and are cut into row blocks of row_block rows,
// anew in each cell of the grid of microbatches (plan/sums/sum_shape.h).
// The blocks fix which rows are summed together, so they depend on routing alone.
//
// A group's rows come from the devices that attend to their tokens. A parcel has those of one such
// device, in the order that they have in the group; it travels where another device computes them.
//
// A group holds row blocks of one device's experts that are computed together, on a GPU in as few
// launches of each operator as experts go in (kMostTogether), and whose weights are there at once.
// It has blocks of one expert, or the last blocks of one expert and blocks of the device's experts
// behind it. Where an expert is a guest of other devices beside its seat
// (plan/step/expert_seats.h), each has the blocks of its own cells.
//
// A wave is a group for each device. It takes the experts in order, of each what the group of its
// device has room for, but no row of a microbatch in which an expert before has rows for later
// waves. So the waves, one after the other, have each token's experts in order, which is that of
// its sum, and devices whose experts are larger than groups work side by side. An expert is not
// overtaken on its device. Devices apart (GroupLimits) have waves of their own; and where experts
// are guests or padded, one begins when those before it end. Groups and waves change no bit: an
// expert's row blocks are cut from its own first row on, and a group computes each block as it
// would alone. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pagoda {

// The number of tokens that chose each expert of a layer, for one microbatch or for all:
// [microbatch][num_experts]
using LayerRouting = std::vector<std::vector<int64_t>>;

// The routing of parts from that of experts, whose rows go through all of their parts, and back.
LayerRouting routing_of_parts(const LayerRouting& experts, int64_t parts);
std::vector<int64_t> tokens_of_experts(const std::vector<int64_t>& of_parts, int64_t parts);

// (num_experts), all microbatches of `routing` together
std::vector<int64_t> tokens_per_expert(const LayerRouting& routing);

struct ExpertGroup {
  // Rows of one expert and one microbatch.
  struct Run {
    int64_t expert = 0;
    int64_t first_row = 0;  // in the layer's re-index vector
    int64_t group_row = 0;
    int64_t rows = 0;
    int64_t parcel_row = 0;  // in the parcel of the device that attends to the microbatch
  };
  // All rows of one microbatch.
  struct Part {
    int64_t microbatch = 0;  // an index into the LayerRouting
    int64_t rows = 0;
    std::vector<Run> runs;  // by expert
  };
  // Rows of one expert: whole row blocks, of which the expert's last may be shorter.
  struct Block {
    int64_t expert = 0;
    // The expert's first or last block of these microbatches; last: only if it has tokens.
    bool first = false, last = false;
    int64_t first_row = 0;             // in the layer's re-index vector
    int64_t group_row = 0;
    int64_t rows = 0;
    int64_t padding = 0;  // rows of zeros behind the block; such a group has one expert
    int64_t ordinal = 0;  // counts the device's experts that compute rows, from 0
    int64_t cell = 0;     // of all rows
    bool begins_cell = false, ends_cell = false;
  };
  // All rows of one attending device.
  struct Parcel {
    struct Rows {
      int64_t parcel_row = 0, group_row = 0, rows = 0;
    };
    int device = 0;
    int64_t rows = 0;
    std::vector<Rows> runs;  // as few as there can be, in their order
  };
  std::vector<Block> blocks;  // in the order of the rows; none: the device has nothing to do
  std::vector<Part> parts;    // in the order of the microbatches; none: nothing but padding
  std::vector<Parcel> parcels;  // in the order of the devices
  int64_t rows() const { return blocks.back().group_row + blocks.back().rows; }
  int64_t padding() const { return blocks.back().padding; }
  const Part* part(int64_t microbatch) const;  // nullptr: it has no rows here
  const Parcel* parcel(int device) const;      // nullptr: it has no rows here
  // The group is one parcel, so that it travels as it is.
  bool is_parcel() const { return parcels.size() == 1 && padding() == 0; }
};
using ExpertWave = std::vector<ExpertGroup>;  // [device]

// Says which device computes an expert's rows.
struct LayerSeats {
  std::vector<int> seats = {};  // [expert]; empty: all have theirs on device 0
  // [expert * expert_shards + shard] the device whose guest the expert is, for its rows of the
  // shard; -1: its seat computes them. Empty: no expert is a guest.
  std::vector<int> guests = {};
  int seat(int64_t expert) const { return seats.empty() ? 0 : seats[static_cast<size_t>(expert)]; }
  bool is_guest(int64_t expert, int64_t cell, int64_t expert_shards) const {
    return !guests.empty() && guests[place(expert, cell, expert_shards)] >= 0;
  }
  int device_of(int64_t expert, int64_t cell, int64_t expert_shards) const {
    return is_guest(expert, cell, expert_shards) ? guests[place(expert, cell, expert_shards)]
                                                 : seat(expert);
  }
  static size_t place(int64_t expert, int64_t cell, int64_t expert_shards) {
    return static_cast<size_t>(expert * expert_shards + cell % expert_shards);
  }
};

struct GroupLimits {
  int64_t row_block = 0;
  int64_t group_blocks = 1;  // row blocks in a group, at most
  // true: every expert has as many rows as the busiest (PlanOptions::padded_experts), and groups
  // have one each.
  bool padded = false;
  int devices = 1;
  LayerSeats seats = {};
  // (microbatches of the routing) the cell of each, ascending. Empty: cell 0.
  std::vector<int64_t> cells = {};
  int64_t expert_shards = 1;  // cells of one chunk
  // (microbatches of the routing) the device that attends to each; empty: device 0 to all
  std::vector<int> attends = {};
  int64_t first_row = 0;  // of all, in the layer's re-index vector
  bool goes_on = false;  // other chunks follow, so that no block is an expert's last
  // [device] its experts have waves without those of devices that are not. Empty: none is.
  std::vector<uint8_t> apart = {};
};
std::vector<ExpertWave> expert_waves(const LayerRouting& routing, const GroupLimits& limits);

}  // namespace pagoda
