// Chooses who computes on a GPU, by architecture alone: our kernels (kernels/cuda), or a library's
// (kernels/cuda/library) where the build and the machine have it and it takes the shape. Pure, for
// host tests.
#pragma once

#include <algorithm>

namespace pagoda {

enum class ComputedBy { kOwnKernel, kLibrary };

// The choice by major compute capability: of attention (cuDNN's, in its deterministic mode) and of
// the products of experts with their rows, forward and of inputs' gradients (cuBLAS's grouped
// call). Ours are preferred everywhere: on an H200 (tools/bench/results/gpu_check-h200.txt) cuBLAS
// was faster only for few tokens an expert, and cuDNN's backward wants 2 GiB for a document of 8192
// tokens. tools/gpu_check.sh races them where the libraries were found, and prints which is faster.
// It also says whether an expert gets the same bits from cuBLAS alone and among others: where it
// does not, cuBLAS must not be preferred, since budgets decide which experts are computed together.
struct LibraryChoice {
  int major = 0;
  ComputedBy attention = ComputedBy::kOwnKernel;
  ComputedBy experts = ComputedBy::kOwnKernel;
};
inline constexpr LibraryChoice kLibraryChoices[] = {
    {8, ComputedBy::kOwnKernel, ComputedBy::kOwnKernel},
    {9, ComputedBy::kOwnKernel, ComputedBy::kOwnKernel},
    {10, ComputedBy::kOwnKernel, ComputedBy::kOwnKernel},
    {12, ComputedBy::kOwnKernel, ComputedBy::kOwnKernel},
};

constexpr LibraryChoice library_choice(int major) {
  for (const LibraryChoice& choice : kLibraryChoices) {
    if (choice.major == major) return choice;
  }
  return {.major = major};
}

// Whether a run on some GPU may want a library.
constexpr bool library_attention_is_preferred() {
  return std::ranges::any_of(kLibraryChoices, [](const LibraryChoice& choice) {
    return choice.attention == ComputedBy::kLibrary;
  });
}
constexpr bool library_experts_are_preferred() {
  return std::ranges::any_of(kLibraryChoices, [](const LibraryChoice& choice) {
    return choice.experts == ComputedBy::kLibrary;
  });
}

}  // namespace pagoda
