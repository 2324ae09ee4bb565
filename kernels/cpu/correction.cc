// A router's corrections of the choice, moved by the load of experts.
#include <bit>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/rows/blocks.h"

namespace pagoda {
namespace {

// The upper half of a number, which bf16 holds: the first 8 bits of its magnitude.
float upper_half(float v) { return std::bit_cast<float>(std::bit_cast<uint32_t>(v) & 0xffff0000u); }

float moved(float correction, int64_t load, int64_t total, int64_t experts, float speed) {
  const int64_t above = load * experts - total;
  if (above == 0) return correction;
  return above < 0 ? correction + speed : correction - speed;
}

}  // namespace

void CpuOps::move_correction(DType dt, const int32_t* load, int64_t total, int64_t experts,
                             float speed, void* parts, Stream& s) {
  CHECK(experts > 0);
  s.enqueue([=] {
    const auto part = [=](int64_t p, int64_t e) { return at(dt, parts, p * experts + e); };
    for (int64_t e = 0; e < experts; ++e) {
      const float before = read_number(dt, part(0, e), 0) + read_number(dt, part(1, e), 0) +
                           read_number(dt, part(2, e), 0);
      float rest = moved(before, load[e], total, experts, speed);
      for (int64_t p = 0; p < 3; ++p) {
        const float upper = upper_half(rest);
        write_row(dt, &upper, 1, part(p, e));
        rest -= upper;
      }
    }
  });
}

}  // namespace pagoda
