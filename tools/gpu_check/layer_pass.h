// Computes one MoE layer, forward and backward, by the operators over experts. gpu_check compares
// its memory with a scheme that pads every expert's part (HEXA-MoE, Table 7).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/expert_ops.h"
#include "kernels/ops.h"
#include "tools/gpu_check/arena.h"

namespace pagoda::check {

struct LayerShape {
  int64_t tokens, k, experts, model, inner;
  int64_t rows() const { return tokens * k; }
};

// Distinct experts for each token (tokens, k), expert e in proportion to 1 / (e + 1).
std::vector<int32_t> zipf_choices(const LayerShape& shape, uint64_t seed);

// The layer's tensors in bf16, in memory of the device; shared by all schemes.
struct LayerInputs {
  const int32_t* choices;  // (tokens, k)
  const float* weights;    // (tokens, k)
  const bf16 *x, *dy;      // (tokens, model)
  const bf16 *up, *down;   // (experts, 2 inner, model), (experts, model, inner)
  float *dup, *ddown;      // their gradients
};

class LayerPass {
 public:
  // Takes what a pass has beside its inputs.
  LayerPass(const LayerShape& shape, const std::vector<int32_t>& choices, Arena& arena);
  void forward(const LayerInputs& in, Ops& ops, ExpertOps& experts, Stream& s);
  void backward(const LayerInputs& in, Ops& ops, ExpertOps& experts, Stream& s);

  const float* y() const { return y_; }    // (tokens, model)
  const float* dx() const { return dx_; }  // (tokens, model)

 private:
  ExpertRows expert_rows() const { return {offsets_, shape_.experts, shape_.rows()}; }

  LayerShape shape_;
  std::vector<int64_t> first_;  // where each expert's rows begin
  int32_t *offsets_, *index_, *places_;
  float *row_weights_, *drow_weights_;
  bf16 *gate_up_, *act_, *dact_, *dx_rows_;
  float *y_, *dx_;
};

// What the padded scheme has in their place: all tensors of rows are as long as if every expert had
// as many as the busiest, and tokens are copied into such a tensor and out of one. Nothing is
// dropped.
int64_t padded_bytes(const LayerShape& shape, const std::vector<int32_t>& choices);

}  // namespace pagoda::check
