// Adam's moments in fewer bits. A moving average of nearly 1 - beta of the new value would stand
// still if it were rounded to nearest (the new share is below half a step of 8 or 16 bits), so it
// is rounded stochastically: up with the probability that makes it right on average, from a hash of
// the element's number and a key that the caller draws per record and update. No state, so a replay
// gives the same bits.
//
// 8 bits (after Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", arXiv
// 2110.02861, with plain floats in place of their table, which vector units convert without a
// search): each block of kMomentBlock elements is divided by its largest magnitude, and what is
// left, at most 1, has 3 bits of mantissa and
//   m: a sign and exponents from 2^-15; below that it is 0 or 2^-15, stochastically
//   v: exponents from 2^-31; below that 2^-31, since a v of 0 would make the step boundless
// Code 0 is 0; code c is the fp32 with the bits (c + c0) << 20.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace pagoda {

// n values of one block or more. `first` is the number of the first element in its record.
void widen_moments(const bf16* in, int64_t n, float* out);
void round_moments(const float* in, int64_t n, uint32_t key, int64_t first, bf16* out);

// One block, n <= kMomentBlock. scale: the largest magnitude.
void decode_first_moments(const uint8_t* codes, float scale, int64_t n, float* out);
void decode_second_moments(const uint8_t* codes, float scale, int64_t n, float* out);
float encode_first_moments(const float* in, int64_t n, uint32_t key, int64_t first,
                           uint8_t* codes);
float encode_second_moments(const float* in, int64_t n, uint32_t key, int64_t first,
                            uint8_t* codes);

}  // namespace pagoda
