// Unequal devices that each compute a share of every expert (HEXA-MoE sections 3.3 and 3.4).
// Data-centric: a device computes its share of the batch, and the weights of a layer travel to all.
// Model-centric: a device computes its share of the experts' hidden dimension, and the tokens of
// the step travel to all. Either way the weights rest divided by shares of the hidden dimension.
// Planned only: `pagoda plan` simulates it, and no run executes it yet. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace pagoda {

// Equations 1 and 2: device i of n has the share (1 / t_i) / sum_j (1 / t_j) of `whole` (tokens or
// sequences of the batch; columns of the hidden dimension), t_i being what it takes for a test that
// is the same for all. In whole tiles, which add up to the whole: every device its share rounded
// down, then tile by tile to who has it done soonest (equal ones: the first), so that no other
// division into tiles is done sooner than the slowest device here. [n], some may be 0.
// O(n^2). Refused: no device, times that are not above 0, a whole that is not in tiles.
Result<std::vector<int64_t>> shares_by_speed(std::span<const double> device_s, int64_t whole,
                                             int64_t tile);

// A model whose experts are divided like that, and one step of it.
struct SharedExperts {
  int32_t layers = 1;                // with experts
  int64_t layer_weight_bytes = 0;    // of all experts of a layer, as they travel
  int64_t layer_gradient_bytes = 0;  // likewise of their gradients
  int64_t token_bytes = 0;           // of one row that goes into a layer, or comes out
  int64_t tokens = 0;                // of the step, on all devices
  int32_t cached_layers = 1;  // in the pipeline-shared cache; 2: one comes while another is used
};

// Of device memory, on one device.
struct SharedBytes {
  int64_t resident = 0;  // weights of its own share
  int64_t cache = 0;     // weights and gradients of whole layers, one after the other in one room
  int64_t gathered = 0;  // rows of other devices, in and out
  int64_t all() const { return resident + cache + gathered; }
};

// Data-centric, with the cache that all layers share, and as if each layer's weights stayed where
// they were gathered until the backward (Janus, of section 3.3). `hidden_share`: in (0, 1].
Result<SharedBytes> data_centric_bytes(const SharedExperts& experts, double hidden_share);
Result<SharedBytes> saved_layers_bytes(const SharedExperts& experts, double hidden_share);
// Model-centric. `token_share`: of the batch, where the rest of the model computes it.
Result<SharedBytes> model_centric_bytes(const SharedExperts& experts, double hidden_share,
                                        double token_share);

// What a layer's step moves in all, by (n - 1) / n of which each of n equal devices is concerned.
// Data-centric: all weights gathered for the forward and again for the backward, gradients summed
// and scattered. Model-centric: rows gathered before the experts, and outputs summed over all
// devices (twice their bytes) after them; in the backward the same of the gradients.
int64_t data_centric_traffic(const SharedExperts& experts);
int64_t model_centric_traffic(const SharedExperts& experts);

// The fewest tokens of a step for which data-centric moves less than model-centric: more than
// (2 weights + gradients) / (6 row bytes). REQUIRES: token_bytes > 0.
int64_t crossover_tokens(const SharedExperts& experts);

// Seconds that a layer's transfers hold up a device that receives `link_bytes_per_s`, of `devices`:
// data-centric transfers hide behind `overlapped_s` of other work of the layer (attention, router;
// forward and backward together), model-centric ones wait for the rows and are waited for.
struct ExchangeSeconds {
  double data_centric_s = 0;
  double model_centric_s = 0;
  bool prefers_data() const { return data_centric_s < model_centric_s; }
};
Result<ExchangeSeconds> exchange_seconds(const SharedExperts& experts, int32_t devices,
                                         double link_bytes_per_s, double overlapped_s);

}  // namespace pagoda
