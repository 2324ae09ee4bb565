// The calls of grouped products that a library may compute on a GPU (kernels/cuda/library): which
// of them it is asked for, and what it finds in memory. Pure, for host tests.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops.h"

namespace pagoda {

// Several products in one call, in bf16 with sums in fp32: the i-th is y (rows[i], columns) = x
// (rows[i], depth) times its weights.
struct ExpertProducts {
  const char* op = "";
  bool depth_in_rows = true;  // weights are (columns, depth), as linear's; else (depth, columns)
  int64_t depth = 0, columns = 0;
  std::vector<int32_t> rows;          // of each product, at least one
  std::vector<const void*> pointers;  // all weights, then all x, then all y

  int64_t count() const { return static_cast<int64_t>(rows.size()); }
};

// The products of a call of grouped_linear, or with `backward` of grouped_linear_backward_input,
// without those of experts that have no rows.
inline ExpertProducts expert_products(bool backward, const void* x,
                                      std::span<const RowsOfWeight> experts, int64_t in,
                                      int64_t out, const void* y) {
  ExpertProducts products;
  products.op = backward ? "grouped_linear_backward_input" : "grouped_linear";
  products.depth_in_rows = !backward;
  products.depth = backward ? out : in;
  products.columns = backward ? in : out;
  std::vector<const void*> inputs, outputs;
  for (const RowsOfWeight& e : experts) {
    if (e.count == 0) continue;
    products.rows.push_back(static_cast<int32_t>(e.count));
    products.pointers.push_back(e.w);
    inputs.push_back(static_cast<const bf16*>(x) + e.first * products.depth);
    outputs.push_back(static_cast<const bf16*>(y) + e.first * products.columns);
  }
  products.pointers.insert(products.pointers.end(), inputs.begin(), inputs.end());
  products.pointers.insert(products.pointers.end(), outputs.begin(), outputs.end());
  return products;
}

// Whether to ask the library for such a call: it takes bf16 in whole vectors of 16 bytes, and adds
// no biases.
inline bool library_takes(DType dt, const void* x, std::span<const RowsOfWeight> experts,
                          int64_t in, int64_t out, DType y_dt, const void* y) {
  const auto in_vectors = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  return dt == DType::kBF16 && y_dt == DType::kBF16 && in % 8 == 0 && out % 8 == 0 &&
         in <= INT32_MAX && out <= INT32_MAX && in_vectors(x) && in_vectors(y) &&
         std::all_of(experts.begin(), experts.end(), [&](const RowsOfWeight& e) {
           return in_vectors(e.w) && e.bias == nullptr && e.count <= INT32_MAX;
         });
}

// The scratch of a call: a workspace that begins at a multiple of kProductsAlign, and the pointers.
inline constexpr int64_t kProductsWorkspaceBytes = int64_t{4} << 20;
inline constexpr int64_t kProductsAlign = 256;
inline constexpr int64_t kLibraryProductsBytes =
    kProductsWorkspaceBytes + kProductsAlign + 3 * kMostTogether * 8 + 64;

}  // namespace pagoda
