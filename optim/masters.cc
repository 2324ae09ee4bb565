#include "optim/masters.h"

#include "base/target_clones.h"

namespace pagoda {

PAGODA_TARGET_CLONES void round_masters(const float* masters, int64_t n, bf16* weights) {
  for (int64_t i = 0; i < n; ++i) weights[i] = bf16_round_weight(masters[i]);
}

PAGODA_TARGET_CLONES void split_masters(const float* masters, int64_t n, bf16* weights,
                                        int16_t* remainders) {
  for (int64_t i = 0; i < n; ++i) {
    weights[i] = bf16_round_weight(masters[i]);
    remainders[i] = weight_remainder(masters[i]);
  }
}

PAGODA_TARGET_CLONES void join_masters(const bf16* weights, const int16_t* remainders, int64_t n,
                                       float* masters) {
  for (int64_t i = 0; i < n; ++i) masters[i] = join_weight(weights[i], remainders[i]);
}

}  // namespace pagoda
