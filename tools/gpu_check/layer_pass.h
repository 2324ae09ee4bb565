// Computes one MoE layer, forward and backward, by the grouped operators, whose experts read tokens
// where they are. gpu_check compares its memory with a scheme that pads every expert's part
// (HEXA-MoE, Table 7).
#pragma once

#include <cstdint>
#include <vector>

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
  void forward(const LayerInputs& in, Ops& ops, Stream& s);
  void backward(const LayerInputs& in, Ops& ops, Stream& s);

  const float* y() const { return y_; }    // (tokens, model)
  const float* dx() const { return dx_; }  // (tokens, model)

 private:
  // Calls body(first, end) for neighbouring experts that go together.
  template <typename Body>
  void for_groups(const Body& body) const;
  std::vector<RowsOfWeight> weights(const bf16* w, int64_t elements, int64_t first,
                                    int64_t end) const;
  std::vector<RowsOfGradient> gradients(float* dw, int64_t elements, int64_t first,
                                        int64_t end) const;
  void sum_rows(Ops& ops, const float* scale, float* sums, Stream& s) const;

  LayerShape shape_;
  std::vector<int64_t> first_;  // where each expert's rows begin
  int32_t *index_, *places_;
  const void **x_rows_, **dy_rows_;
  float *row_weights_, *drow_weights_;
  bf16 *gate_up_, *act_, *dact_, *rows_out_;
  float *y_, *dx_;
};

// What the padded scheme has in their place: all tensors of rows are as long as if every expert had
// as many as the busiest, and tokens are copied into such a tensor and out of one. Nothing is
// dropped.
int64_t padded_bytes(const LayerShape& shape, const std::vector<int32_t>& choices);

}  // namespace pagoda::check
