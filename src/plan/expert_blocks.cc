#include "plan/expert_blocks.h"

#include <algorithm>
#include <functional>

namespace pagoda {

std::vector<int64_t> tokens_per_expert(const LayerRouting& routing) {
  std::vector<int64_t> sum = routing.front();
  for (size_t b = 1; b < routing.size(); ++b) {
    std::transform(sum.begin(), sum.end(), routing[b].begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

namespace {

// Takes an expert's tokens, microbatch by microbatch.
class ExpertRows {
 public:
  ExpertRows(const LayerRouting& routing, int64_t expert, int64_t first_row)
      : routing_(routing), expert_(static_cast<size_t>(expert)), row_(first_row) {}

  void take(int64_t rows, std::vector<ExpertBlock::Part>& parts) {
    for (int64_t taken = 0; taken < rows;) {
      const int64_t left = routing_[microbatch_][expert_] - done_;
      const int64_t count = std::min(left, rows - taken);
      if (count > 0) parts.push_back({static_cast<int64_t>(microbatch_), row_, taken, count});
      row_ += count;
      taken += count;
      done_ += count;
      if (count == left) {
        ++microbatch_;
        done_ = 0;
      }
    }
  }
  int64_t row() const { return row_; }

 private:
  const LayerRouting& routing_;
  size_t expert_, microbatch_ = 0;
  int64_t row_, done_ = 0;  // of the microbatch
};

}  // namespace

std::vector<ExpertBlock> expert_blocks(const LayerRouting& routing, int64_t row_block,
                                       bool padded) {
  const std::vector<int64_t> tokens = tokens_per_expert(routing);
  const int64_t least = padded ? *std::max_element(tokens.begin(), tokens.end()) : 0;
  std::vector<ExpertBlock> blocks;
  int64_t first_row = 0;
  for (size_t e = 0; e < tokens.size(); ++e) {
    ExpertRows rows(routing, static_cast<int64_t>(e), first_row);
    const int64_t computed = std::max(tokens[e], least);
    for (int64_t done = 0; done < computed; done += row_block) {
      ExpertBlock block;
      block.expert = static_cast<int64_t>(e);
      block.first = done == 0;
      block.last = tokens[e] > 0 && done + row_block >= computed;
      block.first_row = rows.row();
      block.rows = std::clamp<int64_t>(tokens[e] - done, 0, row_block);
      block.padding = std::min(row_block, computed - done) - block.rows;
      rows.take(block.rows, block.parts);
      blocks.push_back(std::move(block));
    }
    first_row = rows.row();
  }
  return blocks;
}

}  // namespace pagoda
