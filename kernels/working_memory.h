// How much memory of their own the CPU kernels keep for each thread, until the thread ends.
#pragma once

#include <cstdint>

#include "base/dtype.h"

namespace pagoda {

// The largest sizes in a model's calls.
struct KernelSizes {
  DType dtype = DType::kBF16;
  int64_t input_dim = 0;     // columns of any multiply's input, weight gradients included
  int64_t row_dim = 0;       // widest row of a norm or a bias, or all taps of a convolution
  int64_t head_dim = 0;
  int64_t heads = 0;
  int64_t tokens = 0;        // rows of one call
  int64_t document_len = 0;  // rows that attend to each other, at most
  bool windows = false;      // some layers attend in windows
  int64_t cached_scores = 0;  // query heads that share keys, times cached positions
};

// Upper bounds for one device with `threads` compute threads. The first is the scratch
// (kernels/cpu/rows/scratch.h) of the stream's thread and of the workers; the second adds
// attention's sums of rows and the code that oneDNN generates for these sizes.
int64_t kernel_scratch_bytes(const KernelSizes& sizes, int threads);
int64_t kernel_working_bytes(const KernelSizes& sizes, int threads);

}  // namespace pagoda
