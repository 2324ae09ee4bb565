// `pagoda init`: a model folder with random weights, to train from scratch.
#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "base/status.h"

namespace pagoda {

struct InitOptions {
  std::string config_path;          // a config.json
  std::string tokenizer_directory;  // its tokenizer files are copied; "": the byte tokenizer
  std::string out_directory;        // created (0700), or empty
  uint64_t seed = 0;
  DType dtype = DType::kBF16;  // of the weights on disk
};

// Weights: matrices normal(0, initializer_range), element e of tensor t drawn as
// random_normal(seed, kInit, t, e); norms 1, biases 0. Same seed and config, same bytes. The
// config's dtype is set to that of the weights. The byte tokenizer needs a vocab_size of at least
// 257 (kBadData).
Status init_folder(const InitOptions& options);

}  // namespace pagoda
