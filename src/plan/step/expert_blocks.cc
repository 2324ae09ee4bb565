#include "plan/step/expert_blocks.h"

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

// Hands an expert's tokens to groups, microbatch by microbatch.
class ExpertRows {
 public:
  ExpertRows(const LayerRouting& routing, int64_t expert, int64_t first_row)
      : routing_(routing), expert_(static_cast<size_t>(expert)), row_(first_row) {}

  void take(int64_t rows, ExpertGroup& group) {
    int64_t group_row = group.blocks.back().group_row;
    while (rows > 0) {
      const int64_t left = routing_[microbatch_][expert_] - done_;
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
    for (ExpertGroup::Part& part : parts) {
      if (part.microbatch != microbatch) continue;
      part.rows += count;
      return;
    }
    parts.push_back({microbatch, row_, group_row, count});
  }

  const LayerRouting& routing_;
  size_t expert_, microbatch_ = 0;
  int64_t row_, done_ = 0;  // the microbatch's next row, and its rows so far
};

// An expert's rows up to the end of the run of microbatches, without a beginning block inside, that
// its row `done` lies in; all `computed` rows, padding too, in the last run.
int64_t run_end(const LayerRouting& routing, const GroupLimits& limits, size_t expert, int64_t done,
                int64_t computed) {
  int64_t rows = 0, left = 0;
  for (size_t b = 0; b < routing.size(); ++b) {
    const bool begins = b < limits.begins_block.size() && limits.begins_block[b] != 0;
    if (begins && rows > done && left == 0) left = rows;
    rows += routing[b][expert];
  }
  return left == 0 || left == rows ? computed : left;
}

}  // namespace

std::vector<ExpertGroup> expert_groups(const LayerRouting& routing, const GroupLimits& limits) {
  const std::vector<int64_t> tokens = tokens_per_expert(routing);
  const int64_t least = limits.padded ? *std::max_element(tokens.begin(), tokens.end()) : 0;
  std::vector<ExpertGroup> groups;
  int64_t first_row = 0, ordinal = 0, room = 0;  // row blocks that the newest group has room for
  for (int64_t e = 0; e < std::ssize(tokens); ++e) {
    const int64_t own = tokens[static_cast<size_t>(e)], computed = std::max(own, least);
    ExpertRows rows(routing, e, first_row);
    if (limits.padded || limits.one_expert) room = 0;
    for (int64_t done = 0; done < computed;) {
      // A group has one run of rows of an expert, so that its products can be computed in any
      // order.
      if (room == 0 || (done > 0 && groups.back().blocks.back().expert == e)) {
        groups.emplace_back();
        room = limits.group_blocks;
      }
      ExpertGroup& group = groups.back();
      const int64_t end = run_end(routing, limits, static_cast<size_t>(e), done, computed);
      const int64_t height = std::min(room * limits.row_block, end - done);
      ExpertGroup::Block block;
      block.expert = e;
      block.first = done == 0;
      block.last = own > 0 && done + height == computed;
      block.first_row = rows.row();
      block.group_row = group.blocks.empty() ? 0 : group.rows();
      block.rows = std::clamp<int64_t>(own - done, 0, height);
      block.padding = height - block.rows;
      block.ordinal = ordinal;
      group.blocks.push_back(block);
      rows.take(block.rows, group);
      room -= (height + limits.row_block - 1) / limits.row_block;
      done += height;
    }
    first_row = rows.row();
    ordinal += computed > 0;
  }
  return groups;
}

}  // namespace pagoda
