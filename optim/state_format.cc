#include "optim/state_format.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/bytes.h"
#include "optim/masters.h"

namespace pagoda {

namespace {

constexpr const char* kNames[] = {"fp32", "bf16", "8bit"};
constexpr const char* kStoredNames[] = {"fp32", "bf16", "8bit-2"};

bool parse(const char* const (&names)[3], std::string_view name, StateFormat* format) {
  const auto* found = std::find(std::begin(names), std::end(names), name);
  if (found == std::end(names)) return false;
  *format = static_cast<StateFormat>(found - names);
  return true;
}

}  // namespace

const char* state_format_name(StateFormat format) { return kNames[static_cast<int>(format)]; }
const char* stored_state_name(StateFormat format) {
  return kStoredNames[static_cast<int>(format)];
}
bool parse_state_format(std::string_view name, StateFormat* format) {
  return parse(kNames, name, format);
}
bool parse_stored_state(std::string_view name, StateFormat* format) {
  return parse(kStoredNames, name, format);
}

StateLayout::StateLayout(StateFormat format, DType weight_dtype, int64_t num_elements)
    : format(format), weight_dtype(weight_dtype), num_elements(num_elements) {
  const auto place = [&](int64_t size) {
    const int64_t at = bytes;
    bytes = align_up(at + size, 64);
    return at;
  };
  const int64_t moment_bytes = moments_bytes(num_elements);
  remainders_at = place(weight_dtype == DType::kBF16 ? num_elements * 2 : 0);
  m_at = place(moment_bytes);
  v_at = place(moment_bytes);
  const int64_t blocks = format == StateFormat::k8Bit ? div_ceil(num_elements, kMomentBlock) : 0;
  scales_at = place(blocks * 2 * static_cast<int64_t>(sizeof(float)));
}

int64_t StateLayout::moments_bytes(int64_t n) const {
  switch (format) {
    case StateFormat::kFp32:
      return n * 4;
    case StateFormat::kBf16:
      return n * 2;
    case StateFormat::k8Bit:
      return align_up(n, 64);  // an element's code lies somewhere in its 64 codes
  }
  return 0;
}

void begin_weights(const StateLayout& layout, const float* masters, void* weights) {
  if (layout.weight_dtype == DType::kF32) {
    std::memcpy(weights, masters, static_cast<size_t>(layout.num_elements) * sizeof(float));
  } else {
    round_masters(masters, layout.num_elements, static_cast<bf16*>(weights));
  }
}

void begin_state(const StateLayout& layout, const float* masters, void* weights, void* state) {
  auto* bytes = static_cast<std::byte*>(state);
  std::memset(bytes, 0, static_cast<size_t>(layout.bytes));
  if (layout.weight_dtype == DType::kF32) return begin_weights(layout, masters, weights);
  split_masters(masters, layout.num_elements, static_cast<bf16*>(weights),
                reinterpret_cast<int16_t*>(bytes + layout.remainders_at));
}

void widen_weights(DType dtype, const void* weights, int64_t n, float* values) {
  for (int64_t i = 0; i < n; ++i) {
    values[i] = dtype == DType::kF32 ? static_cast<const float*>(weights)[i]
                                     : to_float(static_cast<const bf16*>(weights)[i]);
  }
}

void read_masters(const StateLayout& layout, const void* weights, const void* state, int64_t first,
                  int64_t count, float* masters) {
  if (layout.weight_dtype == DType::kF32) {
    std::memcpy(masters, static_cast<const float*>(weights) + first,
                static_cast<size_t>(count) * sizeof(float));
  } else {
    const auto* remainders = reinterpret_cast<const int16_t*>(
        static_cast<const std::byte*>(state) + layout.remainders_at);
    join_masters(static_cast<const bf16*>(weights) + first, remainders + first, count, masters);
  }
}

}  // namespace pagoda
