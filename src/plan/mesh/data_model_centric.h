// Unequal devices that each compute a share of every expert (HEXA-MoE sections 3.3 and 3.4).
// Data-centric: a device computes its share of the batch, and the weights of a layer travel to all.
// Model-centric: a device computes its share of the experts' hidden dimension, and the tokens of
// the step travel to all. In both cases the weights rest divided by shares of the hidden dimension.
// Planned only: runs share experts in their own ways (config/sharing_config.h). Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace pagoda {

// How devices share a layer's experts. Either each has some experts, and rows travel; or each has a
// part of every expert, and weights (data-centric) or rows to all (model-centric) travel.
enum class ExpertSharing : uint8_t { kRows, kDataCentric, kModelCentric };

// Equations 1 and 2: device i of n gets the share (1 / t_i) / sum_j (1 / t_j) of `whole` (tokens or
// sequences of the batch, or columns of the hidden dimension), where t_i is its time for a test
// that is the same for all. Shares are whole tiles and add up to the whole: each device gets its
// share rounded down, then tile by tile goes to the device that has it done soonest (among equals
// the first), so that no other division into tiles ends sooner. [n], some may be 0. O(n^2).
// Refuses: no device, times that are not above 0, a whole that is not a multiple of tiles.
Result<std::vector<int64_t>> shares_by_speed(std::span<const double> device_s, int64_t whole,
                                             int64_t tile);

// A model whose experts are divided in this way, and one step of it.
struct SharedExperts {
  int32_t layers = 1;                // layers with experts
  int64_t layer_weight_bytes = 0;    // all experts of a layer, as they travel
  int64_t layer_gradient_bytes = 0;  // the gradients of those
  int64_t token_bytes = 0;           // one row that goes into a layer or comes out
  int64_t tokens = 0;                // the step's tokens on all devices
  int32_t cached_layers = 1;  // layers in the pipeline-shared cache; 2: one comes while another is
                              // used
};

// Device memory of one device.
struct SharedBytes {
  int64_t resident = 0;  // the weights of its own share
  int64_t cache = 0;     // weights and gradients of whole layers, one layer after the other
  int64_t gathered = 0;  // rows from and for other devices
  int64_t all() const { return resident + cache + gathered; }
};

// Data-centric: with the cache that all layers share; and as if each layer's gathered weights
// stayed until the backward (Janus, in section 3.3). `hidden_share`: in (0, 1].
Result<SharedBytes> data_centric_bytes(const SharedExperts& experts, double hidden_share);
Result<SharedBytes> saved_layers_bytes(const SharedExperts& experts, double hidden_share);
// Model-centric. `token_share`: the share of the batch that the rest of the model computes here.
Result<SharedBytes> model_centric_bytes(const SharedExperts& experts, double hidden_share,
                                        double token_share);

// The bytes that a layer moves in a step; each of n equal devices takes part in (n - 1) / n of
// them. Data-centric: all weights are gathered for the forward and again for the backward,
// gradients are summed and scattered. Model-centric: rows are gathered before the experts, and
// outputs are summed over all devices (twice their bytes) after them; the backward does the same
// with the gradients.
int64_t data_centric_traffic(const SharedExperts& experts);
int64_t model_centric_traffic(const SharedExperts& experts);

// The fewest tokens of a step for which data-centric moves less than model-centric: more than
// (2 weights + gradients) / (6 row bytes). REQUIRES: token_bytes > 0.
int64_t crossover_tokens(const SharedExperts& experts);

// How long a layer's transfers hold up one of `devices` devices, each of which receives
// `link_bytes_per_s`. Data-centric transfers hide behind `overlapped_s` of other work of the layer
// (attention, router; forward and backward together). Model-centric ones hide behind nothing: they
// wait for the rows, and the experts wait for them.
struct ExchangeSeconds {
  double data_centric_s = 0;
  double model_centric_s = 0;
  bool prefers_data() const { return data_centric_s < model_centric_s; }
};
Result<ExchangeSeconds> exchange_seconds(const SharedExperts& experts, int32_t devices,
                                         double link_bytes_per_s, double overlapped_s);

}  // namespace pagoda
