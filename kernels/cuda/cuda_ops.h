// The ops of kernels/ops.h on an NVIDIA GPU, and the same code emulated on the host.
//
// Element by element, results have the CPU's bits; sums have an order of their own, which like the
// CPU's depends on shapes alone. Tensors are bf16 on processors too whose tensor cores do not
// multiply it (compute capability 7.5): there it is multiplied as scaled fp16 (fp16_tile.cuh).
// Beside what they are given the ops take a few numbers a row from their stream's scratch
// (kernels/gpu_scratch.h); a CUDA error ends the program and names the op and its stream.
#pragma once

#include <memory>

#include "kernels/cuda/library_attention.h"
#include "kernels/ops.h"

namespace pagoda {

// For streams of `device`, a GPU, with the attention that kernels/attention_choice.h prefers there.
// Defined where the build has CUDA.
std::unique_ptr<Ops> make_cuda_ops(Device& device);
// With attention by `library` where it takes the shape; by our kernel with none.
std::unique_ptr<Ops> make_cuda_ops(Device& device, std::shared_ptr<LibraryAttention> library);

// The same ops, their kernels emulated by threads of the host
// (kernels/cuda/machine/machine_emulated.h): for tests. Without `bf16_cores` as on processors whose
// tensor cores multiply fp16 alone; the more `multiprocessors`, the smaller tiles are. Any host
// stream.
std::unique_ptr<Ops> make_emulated_ops(bool bf16_cores, int multiprocessors,
                                       std::shared_ptr<LibraryAttention> library = nullptr);

// Attention has kernels for even head sizes up to this; a larger one is a failed CHECK.
inline constexpr int64_t kCudaMostHeadDim = 128;

}  // namespace pagoda
