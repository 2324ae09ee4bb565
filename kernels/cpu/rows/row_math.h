// Arithmetic over rows of fp32, compiled for every vector width (vector.h says why the results are
// the same). Outputs may be inputs; no pointer needs more alignment than its type. Single-threaded.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace pagoda {

void widen(const bf16* x, int64_t n, float* out);
void round_to_bf16(const float* x, int64_t n, bf16* out);  // rounds like bf16_round
float dot(const float* a, const float* b, int64_t n);
float max_of(const float* x, int64_t n);  // n >= 1; NaN is passed over, so test what follows
// out = exp(x - shift); returns the sum of out.
float exp_row(const float* x, int64_t n, float shift, float* out);
// The sum of exp(x - shift) alone.
float exp_sum(const float* x, int64_t n, float shift);
void scale_row(const float* x, int64_t n, float scale, float* out);
void add_row(const float* a, const float* b, int64_t n, float* out);
// y += scale * x
void add_scaled_row(const float* x, int64_t n, float scale, float* y);
// The same of x rounded to dt.
void add_rounded_row(DType dt, const float* x, int64_t n, float scale, float* y);

}  // namespace pagoda
