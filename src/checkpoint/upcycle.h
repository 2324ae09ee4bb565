// `pagoda upcycle` makes a dense model into a Mixture-of-Experts (Komatsuzaki et al., "Sparse
// Upcycling", ICLR 2023). Every expert begins as a copy of its layer's MLP. The family that comes
// out, Mixtral, makes a token's weights sum to 1, so that without noise the new model computes what
// the dense one did, wherever its random router sends a token.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace pagoda {

struct UpcycleOptions {
  std::string dense_directory;  // a Hugging Face folder of a Llama or Mistral
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;  // <= num_experts
  // Standard deviation of the noise added to the experts, relative to that of each tensor; 0: none.
  // Equal experts get equal gradients up to their tokens and weights, so some noise helps.
  double noise = 0.0;
  uint64_t seed = 0;
  std::string out_directory;  // created (0700), or empty
};

// Weights keep their dtypes; routers are normal(0, initializer_range) in the dtype of their layer's
// MLP; tokenizer and generation files are copied. Element e of new tensor t is drawn as
// random_normal(seed, kUpcycle, t, e): same input and seed, same bytes. Holds only a piece of a
// tensor at a time. After an error nothing is left of the folder. REQUIRES: 1 <= experts_per_token
// <= num_experts, noise >= 0 and finite.
Status upcycle_folder(const UpcycleOptions& options);

}  // namespace pagoda
