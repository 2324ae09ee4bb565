// A model in llama.cpp's terms: the entries that describe it, and its tensors by llama.cpp's names
// (gguf-py/gguf/constants.py). Experts are stacked; rows of queries and keys of the "llama"
// architecture, whose rotated pairs are neighbours there, are permuted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/hf_folder.h"
#include "gguf/gguf_file.h"

namespace pagoda {

// Where a tensor of the table stands in the file.
struct GgufPlace {
  int64_t tensor = 0;  // of the table
  size_t in_file = 0;  // the file's tensor
  int64_t first = 0;   // its element that it begins at
  int64_t heads = 0;   // 0: as it is; else rows are permuted in each of so many heads
};

struct GgufModel {
  GgufEntries entries;
  std::vector<GgufTensor> tensors;
  std::vector<GgufPlace> places;  // in table order
};

// `type`: of matrices. Vectors and routers are fp32, as llama.cpp wants them, and with kQ8_0 what
// has rows of other than whole blocks is fp16. kBadData for a family that llama.cpp has no
// architecture for that is written here, and for what that architecture would compute otherwise.
Result<GgufModel> describe_for_gguf(const HfFolder& folder, GgufType type, const std::string& name);

// Rows of a matrix (heads * dim, in) as that architecture has them: in each head row i of the first
// half, then row i of the second.
void permute_rows(const float* rows, int64_t heads, int64_t dim, int64_t in, float* permuted);

}  // namespace pagoda
