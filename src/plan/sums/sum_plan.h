// The order in which a dense record's gradient is summed over a step's microbatches, on one device
// or on several: which microbatch adds to which buffer of which device, when two sums are added and
// when one goes to another device. The tree of additions is that of plan/sums/sum_shape.h, whoever
// attends, so that the sum has the same bits. Two sums are added on the home of the record if one
// of them is there, and else where the earlier shards' is; so of two devices the one that is not
// the home sends one sum. An expert's sum of several shards has the same tree (plan_expert_sum).
// Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "plan/sums/sum_shape.h"

namespace pagoda {

struct SumStep {
  enum class Kind : uint8_t {
    kChain,  // the microbatch's gradient is added to `buffer`; `first`: which begins at zero
    kAdd,    // `other` is added to `buffer`, and given up
    kMove,   // `buffer` goes to `other` of device `to`, and is given up
  };
  Kind kind = Kind::kChain;
  int device = 0;
  int64_t buffer = 0;  // of the device
  int64_t microbatch = -1;
  bool first = false;
  int64_t other = -1;
  int to = 0;
};

struct SumPlan {
  // Devices take their microbatches by turns, each shard by shard, so that a device keeps few
  // buffers: as a binary counter carries, two sums of as many shards become one. By chunks, each
  // takes a chunk of all its shards before the next, and keeps a buffer for each shard. What other
  // devices have comes behind all microbatches.
  std::vector<SumStep> steps;
  int64_t root = 0;     // the home's buffer that the whole sum ends in
  int64_t buffers = 0;  // on any device at most; 1 for one shard on one device, 4 for eight

  // Whether the whole sum waits for those of other devices.
  bool moves() const {
    return std::any_of(steps.begin(), steps.end(),
                       [](const SumStep& step) { return step.kind == SumStep::Kind::kMove; });
  }
};

// `shard_device`: [shard] the device that attends to it; empty: device 0 to all. REQUIRES: the
// shape divides the microbatches.
SumPlan plan_sums(const SumShape& sums, const std::vector<int>& shard_device, int64_t microbatches,
                  int home, bool by_chunks = false);

// The order in which an expert's gradient is summed where it is computed. A step's `microbatch` is
// a cell, and `first` begins its shard's chain; its buffers, and `root`, are named by the shard
// that began them, so that a group may compute several cells before any sums are added. `present`:
// [cell] whether the expert has rows in it; one has. By several chunks, sums are added behind all
// cells, so that the chains do not depend on the cells to come. `shard_device`: [shard] the device
// that computes its rows; empty: device 0 all. The whole sum ends at the home; what other devices
// have comes behind all cells.
SumPlan plan_expert_sum(const SumShape& sums, const std::vector<uint8_t>& present,
                        const std::vector<int>& shard_device = {}, int home = 0);
// Whatever is present, so many of its sums are there at a time where each cell's are added before
// the next is computed: on one device, or on any of several, whichever has which shards.
int64_t expert_sum_buffers(const SumShape& sums, bool several_devices = false);

}  // namespace pagoda
