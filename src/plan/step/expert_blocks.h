// How the rows that go through a layer's experts are cut: expert by expert, of each its tokens of
// all microbatches behind each other, in row blocks of row_block. What is summed with what follows
// from these, so they depend on routing alone.
//
// A group is a run of row blocks that are computed together, with one launch for each operator on a
// GPU, whose weights are there at once: of one expert, or the last of one and those of experts
// behind it. It changes no bit: an expert's row blocks are cut from its own first row on, and what
// it computes is the same alone. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace pagoda {

// Tokens of each expert of a layer, of the microbatches it takes together: of one, or of all.
// [microbatch][num_experts]
using LayerRouting = std::vector<std::vector<int64_t>>;

// (num_experts), all microbatches of `routing` together
std::vector<int64_t> tokens_per_expert(const LayerRouting& routing);

struct ExpertGroup {
  // Rows of one microbatch: so many of its rows from first_row on.
  struct Part {
    int64_t microbatch = 0;  // of those taken together
    int64_t first_row = 0;   // in the layer's re-index vector
    int64_t group_row = 0;
    int64_t rows = 0;
  };
  // Rows of one expert: whole row blocks, or up to its last row.
  struct Block {
    int64_t expert = 0;
    bool first = false, last = false;  // of its expert; last: of one that has tokens
    int64_t first_row = 0;             // in the layer's re-index vector
    int64_t group_row = 0;
    int64_t rows = 0;
    int64_t padding = 0;  // rows of zeros behind them; then the group has one expert
    int64_t ordinal = 0;  // of its expert among those that compute rows
  };
  std::vector<Block> blocks;  // in the order of the rows
  std::vector<Part> parts;    // in the order of their first rows; none: nothing but padding
  int64_t rows() const { return blocks.back().group_row + blocks.back().rows; }
};

struct GroupLimits {
  int64_t row_block = 0;
  int64_t group_blocks = 1;  // row blocks in a group, at most
  bool one_expert = false;   // groups have one expert each: neighbours are on other devices
  // true: every expert has as many rows as the busiest (PlanOptions::padded_experts), and groups
  // have one each.
  bool padded = false;
};
std::vector<ExpertGroup> expert_groups(const LayerRouting& routing, const GroupLimits& limits);

}  // namespace pagoda
