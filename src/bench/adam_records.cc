#include "bench/adam_records.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "base/check.h"
#include "bench/race/noise.h"
#include "bench/roofs/adam_stream.h"

namespace pagoda {
namespace {

int64_t weights_bytes(const StateLayout& layout) {
  return align_up(layout.num_elements * 2, kIoAlign);
}

}  // namespace

AdamRecords::AdamRecords(const StateLayout& layout, int64_t count, std::byte* memory)
    : layout_(layout), span_{0, layout.num_elements, true}, count_(count), memory_(memory) {
  CHECK(layout.weight_dtype == DType::kBF16);
  for (int64_t r = 0; r < count; ++r) {
    fill_values(gradient(r), layout.num_elements);
    fill_values(static_cast<bf16*>(record(r).weights), layout.num_elements);
    std::memset(record(r).state, 0, static_cast<size_t>(layout.bytes));
  }
}

int64_t AdamRecords::bytes_of(const StateLayout& layout) {
  return 2 * weights_bytes(layout) + align_up(layout.bytes, kIoAlign);
}

bf16* AdamRecords::gradient(int64_t record) const { return reinterpret_cast<bf16*>(at(record)); }

AdamRecord AdamRecords::record(int64_t record) const {
  std::byte* weights = at(record) + weights_bytes(layout_);
  return {layout_, {&span_, 1}, weights, weights + weights_bytes(layout_)};
}

Timing AdamRecords::update(int64_t passes, ThreadPool& pool) {
  const TimingClock timer;
  for (int64_t pass = 0; pass < passes; ++pass) {
    ++t_;
    const AdamStep step = {.lr = 1e-5, .t = t_, .noise_key = static_cast<uint32_t>(t_)};
    for (int64_t r = 0; r < count_; ++r) {
      CHECK(adam_update(step, record(r), gradient(r), 1.0f, pool));
    }
  }
  return timer.finish(passes * count_ * adam_bytes(layout_));
}

Timing AdamRecords::stream(int64_t passes, ThreadPool& pool) {
  const int64_t threads = pool.threads();
  const TimingClock timer;
  pool.parallel_for(threads, [&](int64_t t) {
    for (int64_t i = 0; i < passes * count_; ++i) {
      seen_ ^= stream_record(record(i % count_), gradient(i % count_), no_flip_, t, threads);
    }
  });
  return timer.finish(passes * count_ * adam_bytes(layout_));
}

}  // namespace pagoda
