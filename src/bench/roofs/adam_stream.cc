#include "bench/roofs/adam_stream.h"

#include "base/check.h"
#include "base/target_clones.h"
#include "optim/lanes.h"

namespace pagoda {
namespace {

constexpr int64_t kGroup = 64;  // elements that are whole lines in every array
constexpr int64_t kWords = 8;   // of a line

struct Arrays {
  const uint64_t* gradient;
  uint64_t *weights, *remainders, *m, *v;
};

template <int kBytes>
PAGODA_LANES void flip_lines(uint64_t* array, int64_t group, uint64_t flip) {
  uint64_t* words = array + group * kBytes * kWords;
  fetch_ahead<kBytes>(words);
  for (int64_t i = 0; i < kBytes * kWords; ++i) words[i] ^= flip;
}

// With moments of kBytes each, blocks [begin, end): gradients and moments, then weights.
template <int kBytes>
PAGODA_LANES uint64_t stream(const Arrays& arrays, int64_t begin, int64_t end, uint64_t flip) {
  constexpr int64_t kGroups = kMomentBlock / kGroup;
  uint64_t seen[kWords] = {};
  for (int64_t block = begin * kGroups; block < end * kGroups; block += kGroups) {
    for (int64_t group = block; group < block + kGroups; ++group) {
      const uint64_t* gradient = arrays.gradient + group * 2 * kWords;
      fetch_ahead<2>(gradient);
      for (int64_t i = 0; i < kWords; ++i) seen[i] ^= gradient[i] ^ gradient[i + kWords];
      flip_lines<kBytes>(arrays.m, group, flip);
      flip_lines<kBytes>(arrays.v, group, flip);
    }
    for (int64_t group = block; group < block + kGroups; ++group) {
      flip_lines<2>(arrays.weights, group, flip);
      flip_lines<2>(arrays.remainders, group, flip);
    }
  }
  uint64_t all = 0;
  for (const uint64_t word : seen) all ^= word;
  return all;
}

PAGODA_TARGET_CLONES uint64_t stream_fp32(const Arrays& arrays, int64_t begin, int64_t end,
                                          uint64_t flip) {
  return stream<4>(arrays, begin, end, flip);
}
PAGODA_TARGET_CLONES uint64_t stream_bf16(const Arrays& arrays, int64_t begin, int64_t end,
                                          uint64_t flip) {
  return stream<2>(arrays, begin, end, flip);
}
PAGODA_TARGET_CLONES uint64_t stream_8bit(const Arrays& arrays, int64_t begin, int64_t end,
                                          uint64_t flip) {
  return stream<1>(arrays, begin, end, flip);
}

uint64_t* words(void* at) { return static_cast<uint64_t*>(at); }

}  // namespace

int64_t adam_bytes(const StateLayout& layout) {
  const int64_t weights = layout.num_elements * dtype_bytes(layout.weight_dtype);
  return weights + 2 * (weights + layout.bytes);
}

uint64_t stream_record(const AdamRecord& record, const void* gradient, uint64_t flip,
                       int64_t share, int64_t shares) {
  const StateLayout& layout = record.layout;
  CHECK(layout.weight_dtype == DType::kBF16 && layout.num_elements % kMomentBlock == 0);
  const Arrays arrays = {static_cast<const uint64_t*>(gradient), words(record.weights),
                         words(record.state + layout.remainders_at),
                         words(record.state + layout.m_at), words(record.state + layout.v_at)};
  const int64_t blocks = layout.num_elements / kMomentBlock;
  const int64_t begin = blocks * share / shares, end = blocks * (share + 1) / shares;
  switch (layout.format) {
    case StateFormat::kFp32:
      return stream_fp32(arrays, begin, end, flip);
    case StateFormat::kBf16:
      return stream_bf16(arrays, begin, end, flip);
    case StateFormat::k8Bit:
      // The scales, a line for eight blocks, are left out.
      return stream_8bit(arrays, begin, end, flip);
  }
  return 0;
}

}  // namespace pagoda
