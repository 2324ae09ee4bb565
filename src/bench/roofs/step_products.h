// The products of a training step by themselves, which are its roof.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/roofs/tile_products.h"
#include "model/model_config.h"

namespace pagoda {

// y (rows, out) = x (rows, in) w^T, `count` times a step, each with both of its gradients.
struct LinearProduct {
  int64_t rows = 0, in = 0, out = 0, count = 0;
};

// The products of a step of `tokens` in sequences of `sequence_len`, in the pieces that the
// executor computes: a sequence at a time, experts and logits in kRowBlock rows. Tokens are spread
// evenly over all experts. Recomputation in the backward does not count.
std::vector<LinearProduct> linear_products(const ModelConfig& config, int64_t tokens,
                                           int64_t sequence_len);

// Operations of all of them with their gradients, and of attention.
int64_t step_operations(const ModelConfig& config, int64_t tokens, int64_t sequence_len);

class StepProducts {
 public:
  // Makes products in bf16 on `stream`, which is not owned and does nothing else meanwhile.
  static Result<StepProducts> make(const ModelConfig& config, int64_t tokens, int64_t sequence_len,
                                   Stream* stream);

  // The time, and the CPU time, that all products of a step would take at the rates that a part of
  // them has now: each shape of linear product on weights that fill the cache, then attention's
  // tiles. Timing::bytes is 0.
  Timing measure();

 private:
  StepProducts(std::vector<LinearProduct> products, TileProducts tiles, Stream* stream);
  // One call for each of `weights` different weights, forward and backward.
  void multiply(const LinearProduct& product, int64_t weights) const;
  static int64_t distinct_weights(const LinearProduct& product);

  std::vector<LinearProduct> products_;
  int64_t attention_operations_ = 0;
  TileProducts tiles_;
  Stream* stream_;
  HostMemory weights_, x_, dx_, y_, dw_;
};

}  // namespace pagoda
