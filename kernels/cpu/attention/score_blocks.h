// The work of attention on blocks of scores (block_kernel.h), between the products that make them
// and those that use them. Single-threaded; sums and steps are 64-byte aligned. Every ISA gives the
// same bits.
//
// `scale` turns a score into the exponent of 2: log2(e) / sqrt(head_dim).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/products/block_kernel.h"

namespace pagoda {

// For each query, which is a column of blocks: the highest exponent and the sum of 2^(exponent -
// highest) so far. They begin with -infinity and 0.
struct SoftmaxColumns {
  alignas(64) float highest[kBlock];
  alignas(64) float sum[kBlock];
};

// Turns `count` blocks of scores behind each other, keys by queries, into the steps of a right
// operand of `form`, depth along keys: 2^(exponent - highest) rounded to bf16. `diagonal`: the last
// block's keys are its queries, which see no later keys. shrink (kBlock) gets the factor for each
// query's earlier sums; returns false if all factors are 1.
bool softmax_columns(const float* scores, int64_t count, bool diagonal, float scale,
                     SoftmaxColumns& state, float* shrink, StepForm form, std::byte* weights);

// Multiplies column c of `count` blocks by by[c].
void scale_columns(float* sums, int64_t count, const float* by);

// A block of scores and one of dp = dout v^T, queries by keys, with p = 2^(score scale - lse) and
// ds = p (dp - delta).
struct ScoreGradient {
  const float *scores, *dp;
  float scale;
  const float* lse;    // (kBlock), times log2(e)
  const float* delta;  // (kBlock)
  bool diagonal;
  StepForm form;
  std::byte* weights;        // out: p, a step of a right operand, depth along queries
  std::byte* gradients;      // out: ds, in the same form
  std::byte* gradient_rows;  // out: ds, a step of a left operand, depth along keys
};
void find_score_gradient(const ScoreGradient& g);

}  // namespace pagoda
