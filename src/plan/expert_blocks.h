// How the rows that go through a layer's experts are cut into blocks: expert by expert, of each its
// tokens of all microbatches behind each other, at most row_block at a time. What is summed with
// what follows from these blocks, so they depend on routing alone. Pure.
#pragma once

#include <cstdint>
#include <vector>

namespace pagoda {

// Tokens of each expert of a layer, of the microbatches it takes together: of one, or of all.
// [microbatch][num_experts]
using LayerRouting = std::vector<std::vector<int64_t>>;

// (num_experts), all microbatches of `routing` together
std::vector<int64_t> tokens_per_expert(const LayerRouting& routing);

struct ExpertBlock {
  // Rows of one microbatch.
  struct Part {
    int64_t microbatch = 0;  // of those taken together
    int64_t first_row = 0;   // in the layer's re-index vector
    int64_t block_row = 0;
    int64_t rows = 0;
  };
  int64_t expert = 0;
  bool first = false, last = false;  // of its expert; last: of one that has tokens
  int64_t first_row = 0;             // in the layer's re-index vector
  int64_t rows = 0;
  int64_t padding = 0;      // rows of zeros behind them
  std::vector<Part> parts;  // in the order of the rows; none: nothing but padding
};

// padded: every expert has as many rows as the busiest (PlanOptions::padded_experts).
std::vector<ExpertBlock> expert_blocks(const LayerRouting& routing, int64_t row_block,
                                       bool padded);

}  // namespace pagoda
