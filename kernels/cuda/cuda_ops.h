// The ops of kernels/ops.h on an NVIDIA GPU, and the same code emulated on the host.
//
// Elementwise results have the CPU's bits. Sums have an order of their own, which like the CPU's
// depends on shapes alone. Tensors are also bf16 on processors whose tensor cores do not multiply
// it (compute capability 7.5): there they are multiplied as scaled fp16 (fp16_tile.cuh). The ops
// take a few numbers a row from their stream's scratch (kernels/gpu_scratch.h). A CUDA error ends
// the program and names the op and its stream.
#pragma once

#include <memory>

#include "kernels/cuda/library/library_attention.h"
#include "kernels/cuda/library/library_products.h"
#include "kernels/ops.h"

namespace pagoda {

// The libraries that compute what they take of it; nullptr: our kernels do.
struct Libraries {
  std::shared_ptr<LibraryAttention> attention = nullptr;
  std::shared_ptr<LibraryProducts> experts = nullptr;
};

// Ops for streams of `device`, a GPU, with the libraries that kernels/library_choice.h prefers
// there. Defined if the build has CUDA.
std::unique_ptr<Ops> make_cuda_ops(Device& device);
// The same with these libraries.
std::unique_ptr<Ops> make_cuda_ops(Device& device, Libraries libraries);

// The same ops, their kernels emulated by threads of the host
// (kernels/cuda/machine/machine_emulated.h): for tests. Without `bf16_cores` they do what
// processors do whose tensor cores multiply only fp16. More `multiprocessors` make smaller tiles.
// Any host stream will do.
std::unique_ptr<Ops> make_emulated_ops(bool bf16_cores, int multiprocessors,
                                       Libraries libraries = {});

// Attention has kernels for even head sizes up to this; a larger one is a failed CHECK.
inline constexpr int64_t kCudaMostHeadDim = 128;

}  // namespace pagoda
