// Experts for `pagoda bench gemm`: their weights, gradients and activations, and their products.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "device/device.h"
#include "kernels/cpu/products/library_matmul.h"
#include "kernels/ops.h"

namespace pagoda {

struct ExpertShape {
  int64_t hidden = 0;
  int64_t ffn = 0;
  int64_t tokens = 0;  // at most

  int64_t weights() const { return 3 * hidden * ffn; }  // elements: gate and up, then down
  int64_t operations(int64_t rows) const { return 6 * rows * weights(); }
  // Bytes of the activations that the products of `rows` rows read and write, each once.
  int64_t activation_bytes(int64_t rows) const { return rows * (12 * hidden + 8 * ffn); }
};

// The weights of `count` experts, and fewer buffers of gradients that they use in turn. They
// multiply as in a step, all forward, then all backward, so that each reads its weights after those
// of all others. Weights are cold if together they are much larger than the caches.
class Experts {
 public:
  // How many experts have `bytes` of weights; at least two.
  static int64_t count_in(const ExpertShape& shape, int64_t bytes);
  // Experts in host memory, multiplied by the CPU.
  static Result<Experts> allocate(const ExpertShape& shape, int64_t bytes);
  // Experts in `memory`, multiplied by `ops`. `memory` is aligned like a device's arena, holds
  // bytes_of(shape, count) and outlives them. REQUIRES: it has values.
  Experts(const ExpertShape& shape, int64_t count, std::byte* memory, Ops& ops);
  static int64_t bytes_of(const ExpertShape& shape, int64_t count);

  // Computes the products of all experts with `tokens` rows, by the trainer's ops on `s`.
  void run(int64_t tokens, Stream& s);

  const ExpertShape& shape() const { return shape_; }
  int64_t count() const { return count_; }
  int64_t weight_bytes() const { return 2 * count_ * shape_.weights(); }  // weights of all experts
  int64_t gradient_bytes() const { return 4 * gradients_ * shape_.weights(); }
  bf16* weights(int64_t expert) const { return weights_ + expert * shape_.weights(); }
  float* gradient(int64_t expert) const {
    return gradient_ + expert % gradients_ * shape_.weights();
  }

  // Activations: input and gradient of the output (tokens, d), output and gradient of the input
  // (tokens, d); gate_up, standing for its gradient too (tokens, 2f); what follows it and that
  // one's gradient (tokens, f).
  bf16 *x = nullptr, *dout = nullptr, *gate_up = nullptr, *act = nullptr, *dact = nullptr;
  float *out = nullptr, *dx = nullptr;

 private:
  void place_activations(std::byte* place);
  void forward(int64_t expert, int64_t tokens, Stream& s);
  void backward(int64_t expert, int64_t tokens, Stream& s);

  ExpertShape shape_;
  int64_t count_ = 0, gradients_ = 0;
  Ops* ops_;  // not owned
  bf16* weights_ = nullptr;
  float* gradient_ = nullptr;
  HostMemory memory_;  // memory of the CPU's experts
};

// The same products in the same order by the library alone, each thread on its own columns of a
// product, or its own rows of a weight gradient. Its packed weights are other bytes in either
// direction, as cold as ours.
class LibraryExperts {
 public:
  // nullptr: no library is linked, or it has no such product. `experts` outlives it.
  static Result<std::unique_ptr<LibraryExperts>> make(const Experts& experts, int64_t tokens,
                                                      Stream& s);
  void run(Stream& s);

 private:
  // One thread's share of one product.
  struct Part {
    std::unique_ptr<LibraryMatmul> matmul;
    const bf16* a = nullptr;
    const bf16* b = nullptr;    // either this, or packed weights:
    int64_t packed_at = 0;      // bytes from where an expert's begin
    void* c = nullptr;          // either this, or a weight gradient:
    int64_t gradient_at = 0;    // elements from where an expert's begins
  };
  static constexpr size_t kProducts = 6;

  LibraryExperts(const Experts& experts, int64_t tokens) : experts_(experts), tokens_(tokens) {}
  Part part(size_t product, int64_t share, int64_t shares) const;
  bool make_parts(int64_t threads);
  void pack(int64_t expert, ThreadPool& pool);
  void multiply(int64_t expert, size_t first_product, size_t end_product, ThreadPool& pool) const;

  const Experts& experts_;
  const int64_t tokens_;
  std::array<std::vector<Part>, kProducts> parts_;
  int64_t packed_bytes_ = 0;  // packed weights of an expert
  HostMemory packed_;
};

}  // namespace pagoda
