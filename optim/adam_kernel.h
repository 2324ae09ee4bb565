// The inner loop of Adam, once per ISA. Which of them runs changes no bit of the result.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "optim/state_format.h"

namespace pagoda {

// The values that all elements of an update share, rounded once from double.
struct AdamScalars {
  float keep;          // 1 - lr * weight_decay; 1 without decay
  float lerp;          // 1 - beta1
  bool lerp_from_end;  // torch.lerp computes from the nearer end
  float lerp_rest;     // beta1
  float beta2;
  float square;        // 1 - beta2
  float root;          // sqrt(1 - beta2^t)
  float eps;
  float rate;          // -lr / (1 - beta1^t)
  float grad_scale;
  uint32_t noise_key;
};

// Whole blocks of kMomentBlock elements that follow each other in a record.
struct AdamBlocks {
  int64_t count = 0;
  int64_t first = 0;              // the number of the first element in its record
  const void* gradient = nullptr;  // in the weights' dtype
  bool same_gradient = false;     // one block of gradients serves all
  void* weights = nullptr;
  int16_t* remainders = nullptr;  // bf16 weights only
  void *m = nullptr, *v = nullptr;
  float* scales = nullptr;        // 8-bit moments only
};

// Updates the blocks. Returns false if a new master, or a new master rounded to bf16, is not
// finite.
using AdamLoop = bool (*)(const AdamScalars& scalars, const AdamBlocks& blocks);

struct AdamKernel {
  const char* isa;
  AdamLoop loops[2][3];  // [DType of weights][StateFormat]

  AdamLoop loop(DType weights, StateFormat format) const {
    return loops[static_cast<int>(weights)][static_cast<int>(format)];
  }
};

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PAGODA_X86_LEVELS 1
extern const AdamKernel kAdamAvx512, kAdamAvx2;  // x86-64-v4 and v3
#else
#define PAGODA_X86_LEVELS 0
#endif

// The kernels that this processor can run, the fastest first; the last one runs everywhere.
std::span<const AdamKernel> adam_kernels();

}  // namespace pagoda
