// How a record's optimizer state is stored (optim.state). With bf16 weights a master is its weight
// plus a signed 16-bit remainder, exactly (base/dtype.h); with fp32 weights it is the weight. Bytes
// per parameter, bf16 weight included:
//
//   fp32   moments as they are                                             12 bytes
//   bf16   moments rounded stochastically to bf16                           8
//   8bit   moments as 8-bit floats of their block's largest (moments.h)     6.03
//
// A state page holds, each part on a 64-byte border:
//   remainders (n) int16            if weights are bf16
//   m, v       (n) fp32, bf16 or 8-bit codes each
//   scales     (ceil(n / kMomentBlock), 2) fp32, of m and v     8bit only
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/dtype.h"

namespace pagoda {

enum class StateFormat : uint8_t { kFp32, kBf16, k8Bit };

const char* state_format_name(StateFormat format);
// The name in checkpoints. Whoever changes an encoding changes this name, so that older pages are
// refused, not misread ("8bit" named other codes in another order).
const char* stored_state_name(StateFormat format);
// Finds the format of a name, or of a name in checkpoints; false if there is none.
bool parse_state_format(std::string_view name, StateFormat* format);
bool parse_stored_state(std::string_view name, StateFormat* format);

inline constexpr int64_t kMomentBlock = 256;  // elements that share a scale

// The places of the parts of a record's state, in bytes from the page's start.
struct StateLayout {
  StateLayout() = default;
  StateLayout(StateFormat format, DType weight_dtype, int64_t num_elements);

  StateFormat format = StateFormat::kFp32;
  DType weight_dtype = DType::kF32;
  int64_t num_elements = 0;
  // The bytes of the m, and equally of the v, of a record's first n elements. REQUIRES: n is a
  // multiple of 64, or the whole record.
  int64_t moments_bytes(int64_t n) const;

  int64_t remainders_at = 0, m_at = 0, v_at = 0, scales_at = 0;
  int64_t bytes = 0;
};

// Rounds masters to weights.
void begin_weights(const StateLayout& layout, const float* masters, void* weights);
// Splits masters into weights and remainders, and sets the moments to zero.
void begin_state(const StateLayout& layout, const float* masters, void* weights, void* state);

// The values of n weights of this type.
void widen_weights(DType dtype, const void* weights, int64_t n, float* values);

// Reads masters [first, first + count) of a record.
void read_masters(const StateLayout& layout, const void* weights, const void* state, int64_t first,
                  int64_t count, float* masters);

}  // namespace pagoda
