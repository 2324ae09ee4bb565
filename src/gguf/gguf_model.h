// A model in llama.cpp's terms: the entries that describe it, and its tensors by llama.cpp's names
// (gguf-py/gguf/constants.py). Experts are stacked; rows of queries and keys of the "llama"
// architecture, whose rotated pairs are neighbours there, are permuted; and of latent attention the
// matrix that makes keys and values of the latent is cut in two (conversion/deepseek.py).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/hf_folder.h"
#include "gguf/gguf_file.h"

namespace pagoda {

// How a matrix lies in the file. All but the first have heads of equal rows behind one another.
enum class GgufOrder : uint8_t {
  kAsItIs,
  kPermuted,    // in each head row i of the first half, then row i of the second
  kKeyHeads,    // of each head the first rows, those of its key, transposed
  kValueHeads,  // of each head the last rows, those of its value
};

// Where a tensor of the table stands in the file.
struct GgufPlace {
  int64_t tensor = 0;  // of the table
  size_t in_file = 0;  // the file's tensor
  int64_t first = 0;   // its element that it begins at
  GgufOrder order = GgufOrder::kAsItIs;
  int64_t heads = 1;
  int64_t key_rows = 0;  // of a head: kKeyHeads, kValueHeads
};

struct GgufModel {
  GgufEntries entries;
  std::vector<GgufTensor> tensors;
  std::vector<GgufPlace> places;  // in table order; a tensor may have two
};

// `type`: of matrices. Vectors and routers are fp32, as llama.cpp wants them, and with kQ8_0 what
// has rows of other than whole blocks is fp16. kBadData for a family that llama.cpp has no
// architecture for that is written here, and for what that architecture would compute otherwise.
Result<GgufModel> describe_for_gguf(const HfFolder& folder, GgufType type, const std::string& name);

// The elements of a matrix (all_rows, in) that belong to a place, in its order. REQUIRES: another
// order than kAsItIs.
std::vector<float> in_order(const GgufPlace& place, const float* rows, int64_t all_rows,
                            int64_t in);

}  // namespace pagoda
