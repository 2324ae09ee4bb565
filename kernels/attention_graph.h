// The calls of attention that a library may compute on a GPU (kernels/cuda/library): their shapes,
// and whether the library is asked at all. Pure, for host tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "kernels/ops.h"

namespace pagoda {

// The shape that one graph of the library is built for. A single document is dense; several are
// rows of one tensor behind each other, each of its own length and at most `rows` rows.
struct AttentionGraph {
  bool backward = false;
  int64_t documents = 0;  // documents that have rows
  int64_t rows = 0;
  AttentionShape shape;

  bool dense() const { return documents == 1; }
  auto key() const {
    return std::make_tuple(backward, documents, rows, shape.tokens, shape.heads, shape.kv_heads,
                           shape.head_dim, shape.qkv_stride);
  }
  bool operator<(const AttentionGraph& other) const { return key() < other.key(); }
};

inline AttentionGraph attention_graph(bool backward, const AttentionShape& shape,
                                      const int32_t* document_start, int64_t documents) {
  AttentionGraph graph{.backward = backward, .shape = shape};
  for (int64_t d = 0; d < documents; ++d) {
    const int64_t length = document_start[d + 1] - document_start[d];
    graph.documents += length > 0 ? 1 : 0;
    graph.rows = std::max(graph.rows, length);
  }
  if (graph.dense()) return graph;
  int64_t rows = 128;  // powers of two, so that graphs are few
  while (rows < graph.rows) rows *= 2;
  graph.rows = rows;
  return graph;
}

// The lists that several documents need in device memory, behind each other: the lengths; then,
// with one entry more each, the elements at which documents begin in q, k and v, in the output, and
// in a head's lse.
inline std::vector<int32_t> document_lists(const AttentionShape& shape,
                                           const int32_t* document_start, int64_t documents) {
  std::vector<int32_t> starts, lists;
  for (int64_t d = 0; d < documents; ++d) {
    const int32_t length = document_start[d + 1] - document_start[d];
    if (length == 0) continue;
    starts.push_back(document_start[d]);
    lists.push_back(length);
  }
  starts.push_back(document_start[documents]);
  for (const int64_t stride : {shape.qkv_stride, shape.heads * shape.head_dim, int64_t{1}}) {
    for (const int32_t start : starts) lists.push_back(static_cast<int32_t>(start * stride));
  }
  return lists;
}

// Whether to ask the library at all; it may still lack such a shape on a GPU.
inline bool library_takes(DType dt, const AttentionGraph& graph) {
  const AttentionShape& shape = graph.shape;
  return dt == DType::kBF16 && graph.documents > 0 && shape.window == 0 && shape.sinks == nullptr &&
         shape.head_dim % 8 == 0 && shape.qkv_stride % 8 == 0 &&
         shape.tokens * shape.qkv_stride <= INT32_MAX;
}

// The most scratch, lists and workspace, that a call of the library may take; if it wants more, our
// kernel computes. A workspace has a few fp32 or bf16 numbers for every element of a gradient.
inline int64_t library_attention_bytes(int64_t tokens, int64_t heads, int64_t head_dim) {
  return tokens * heads * (4 * 3 * head_dim + 16) + 4 * 4 * (tokens + 1) + (int64_t{1} << 20);
}

}  // namespace pagoda
