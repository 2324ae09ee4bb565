// Records to be updated, stored as in training: bf16 weights, gradients and states.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "bench/race/timing.h"
#include "device/device.h"
#include "optim/adam.h"

namespace pagoda {

// Records of one size and format that lie behind each other in memory, each its gradient, weights
// and state on page borders. Gradients and weights are noise, moments start at zero.
class AdamRecords {
 public:
  // `memory` is aligned to kIoAlign, holds count * bytes_of(layout) and outlives this. REQUIRES:
  // bf16 weights.
  AdamRecords(const StateLayout& layout, int64_t count, std::byte* memory);
  AdamRecords(const AdamRecords&) = delete;
  AdamRecords& operator=(const AdamRecords&) = delete;
  static int64_t bytes_of(const StateLayout& layout);

  // Updates all records, one call behind the other, `passes` times.
  Timing update(int64_t passes, ThreadPool& pool);
  // Moves the same bytes through stream_record, in one call.
  Timing stream(int64_t passes, ThreadPool& pool);
  int64_t elements() const { return count_ * layout_.num_elements; }

 private:
  std::byte* at(int64_t record) const { return memory_ + record * bytes_of(layout_); }
  bf16* gradient(int64_t record) const;
  AdamRecord record(int64_t record) const;

  const StateLayout layout_;
  const AdamSpan span_;
  const int64_t count_;
  std::byte* const memory_;
  int64_t t_ = 0;
  std::atomic<uint64_t> no_flip_{0}, seen_{0};  // the compiler cannot know their values
};

}  // namespace pagoda
