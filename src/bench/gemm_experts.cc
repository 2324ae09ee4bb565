#include "bench/gemm_experts.h"

#include <algorithm>
#include <type_traits>

#include "base/bytes.h"
#include "bench/race/noise.h"

namespace pagoda {

int64_t Experts::count_in(const ExpertShape& shape, int64_t bytes) {
  return std::max<int64_t>(2, bytes / (shape.weights() * int64_t{sizeof(bf16)}));
}

int64_t Experts::bytes_of(const ExpertShape& shape, int64_t count) {
  return align_up(2 * count * shape.weights(), kIoAlign) +
         align_up(4 * div_ceil(count, 4) * shape.weights(), kIoAlign) +
         align_up(shape.activation_bytes(shape.tokens), kIoAlign);
}

Result<Experts> Experts::allocate(const ExpertShape& shape, int64_t bytes) {
  const int64_t count = count_in(shape, bytes), all = bytes_of(shape, count);
  ASSIGN_OR_RETURN(HostMemory memory, HostMemory::allocate(all));
  fill_values(reinterpret_cast<bf16*>(memory.data()), all / 2);
  Experts experts(shape, count, memory.data(), cpu_ops());
  experts.memory_ = std::move(memory);
  return experts;
}

Experts::Experts(const ExpertShape& shape, int64_t count, std::byte* memory, Ops& ops)
    : shape_(shape), count_(count), gradients_(div_ceil(count, 4)), ops_(&ops) {
  weights_ = reinterpret_cast<bf16*>(memory);
  memory += align_up(weight_bytes(), kIoAlign);
  gradient_ = reinterpret_cast<float*>(memory);
  place_activations(memory + align_up(gradient_bytes(), kIoAlign));
}

void Experts::place_activations(std::byte* place) {
  const auto take = [&](auto& pointer, int64_t columns) {
    pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(place);
    place += shape_.tokens * columns * int64_t{sizeof *pointer};
  };
  take(out, shape_.hidden);
  take(dx, shape_.hidden);
  take(x, shape_.hidden);
  take(dout, shape_.hidden);
  take(gate_up, 2 * shape_.ffn);
  take(act, shape_.ffn);
  take(dact, shape_.ffn);
}

void Experts::forward(int64_t expert, int64_t tokens, Stream& s) {
  constexpr DType kType = DType::kBF16;
  const int64_t d = shape_.hidden, f = shape_.ffn;
  const bf16 *up = weights(expert), *down = up + 2 * f * d;
  for (int64_t row = 0; row < tokens; row += kRowBlock) {
    const int64_t n = std::min(kRowBlock, tokens - row);
    ops_->linear(kType, x + row * d, up, n, d, 2 * f, kType, gate_up + row * 2 * f, s);
    ops_->linear(kType, act + row * f, down, n, f, d, DType::kF32, out + row * d, s);
  }
}

void Experts::backward(int64_t expert, int64_t tokens, Stream& s) {
  constexpr DType kType = DType::kBF16;
  const int64_t d = shape_.hidden, f = shape_.ffn;
  const bf16 *up = weights(expert), *down = up + 2 * f * d;
  float* grad = gradient(expert);
  Ops& ops = *ops_;
  for (int64_t row = 0; row < tokens; row += kRowBlock) {
    const int64_t n = std::min(kRowBlock, tokens - row);
    const bf16 *dout_rows = dout + row * d, *gate_up_rows = gate_up + row * 2 * f;
    ops.linear_backward_input(kType, dout_rows, down, n, f, d, kType, dact + row * f, s);
    ops.linear_backward_weight(kType, dout_rows, act + row * f, n, f, d, row > 0,
                               grad + 2 * f * d, s);
    ops.linear_backward_weight(kType, gate_up_rows, x + row * d, n, d, 2 * f, row > 0, grad, s);
    ops.linear_backward_input(kType, gate_up_rows, up, n, d, 2 * f, DType::kF32, dx + row * d, s);
  }
}

void Experts::run(int64_t tokens, Stream& s) {
  for (int64_t e = 0; e < count_; ++e) forward(e, tokens, s);
  for (int64_t e = 0; e < count_; ++e) backward(e, tokens, s);
  s.synchronize();
}

// ---- the library ----

namespace {

// The six products: which columns of weights, or rows of a gradient, are shared out, and how long
// a sum is.
enum Product : size_t { kGateUp, kDown, kDact, kDownGradient, kGateUpGradient, kDx };
int64_t shared_out(size_t product, int64_t d, int64_t f) {
  if (product == kGateUp || product == kGateUpGradient) return 2 * f;
  return product == kDact ? f : d;
}

}  // namespace

Result<std::unique_ptr<LibraryExperts>> LibraryExperts::make(const Experts& experts,
                                                             int64_t tokens, Stream& s) {
  std::unique_ptr<LibraryExperts> made(new LibraryExperts(experts, tokens));
  if (!made->make_parts(s.pool().threads())) return std::unique_ptr<LibraryExperts>();
  ASSIGN_OR_RETURN(made->packed_, HostMemory::allocate(made->packed_bytes_ * experts.count()));
  s.enqueue([&] {
    for (int64_t e = 0; e < experts.count(); ++e) made->pack(e, s.pool());
  });
  s.synchronize();
  return made;
}

bool LibraryExperts::make_parts(int64_t threads) {
  const int64_t d = experts_.shape().hidden, f = experts_.shape().ffn;
  for (size_t product = 0; product < kProducts; ++product) {
    const int64_t shares = std::min(threads, shared_out(product, d, f));
    for (int64_t t = 0; t < shares; ++t) {
      Part made = part(product, t, shares);
      if (made.matmul == nullptr) return false;
      if (made.b == nullptr) {
        made.packed_at = packed_bytes_;
        packed_bytes_ += align_up(made.matmul->packed_bytes(), kIoAlign);
      }
      parts_[product].push_back(std::move(made));
    }
  }
  return true;
}

LibraryExperts::Part LibraryExperts::part(size_t product, int64_t share, int64_t shares) const {
  const Experts& e = experts_;
  const int64_t d = e.shape().hidden, f = e.shape().ffn, n = tokens_;
  const int64_t all = shared_out(product, d, f);
  const int64_t first = all * share / shares, count = all * (share + 1) / shares - first;
  Part p;
  const auto weighted = [&](const bf16* a, int64_t k, DType c_dt, void* c) {
    p.matmul = make_library_matmul({n, count, k, c_dt, false, true});
    p.a = a;
    p.c = static_cast<std::byte*>(c) + first * n * dtype_bytes(c_dt);
  };
  const auto gradient = [&](const bf16* a, const bf16* b, int64_t columns, int64_t at) {
    p.matmul = make_library_matmul({count, columns, n, DType::kF32, true, false});
    p.a = a + first * n;
    p.b = b;
    p.gradient_at = at + first * columns;
  };
  switch (product) {
    case kGateUp: weighted(e.x, d, DType::kBF16, e.gate_up); break;
    case kDown: weighted(e.act, f, DType::kF32, e.out); break;
    case kDact: weighted(e.dout, d, DType::kBF16, e.dact); break;
    case kDx: weighted(e.gate_up, 2 * f, DType::kF32, e.dx); break;
    case kDownGradient: gradient(e.dout, e.act, f, 2 * f * d); break;
    default: gradient(e.gate_up, e.x, d, 0);
  }
  return p;
}

void LibraryExperts::pack(int64_t expert, ThreadPool& pool) {
  const int64_t d = experts_.shape().hidden, f = experts_.shape().ffn;
  const bf16 *up = experts_.weights(expert), *down = up + 2 * f * d;
  const auto pack = [&](size_t product, const bf16* weights, int64_t stride, bool transposed) {
    const int64_t shares = std::ssize(parts_[product]);
    pool.parallel_for(shares, [&](int64_t t) {
      const Part& p = parts_[product][static_cast<size_t>(t)];
      const int64_t first = shared_out(product, d, f) * t / shares;
      p.matmul->pack(weights + first * (transposed ? stride : 1), stride, transposed,
                     packed_.data() + expert * packed_bytes_ + p.packed_at);
    });
  };
  pack(kGateUp, up, d, true);
  pack(kDown, down, f, true);
  pack(kDact, down, f, false);
  pack(kDx, up, d, false);
}

void LibraryExperts::multiply(int64_t expert, size_t first_product, size_t end_product,
                              ThreadPool& pool) const {
  const std::byte* packed = packed_.data() + expert * packed_bytes_;
  float* gradients = experts_.gradient(expert);
  for (size_t product = first_product; product < end_product; ++product) {
    const std::vector<Part>& parts = parts_[product];
    pool.parallel_for(std::ssize(parts), [&](int64_t t) {
      const Part& p = parts[static_cast<size_t>(t)];
      const void* b = p.b != nullptr ? static_cast<const void*>(p.b) : packed + p.packed_at;
      p.matmul->multiply(p.a, b, p.c != nullptr ? p.c : gradients + p.gradient_at);
    });
  }
}

void LibraryExperts::run(Stream& s) {
  s.enqueue([&] {
    for (int64_t e = 0; e < experts_.count(); ++e) multiply(e, kGateUp, kDact, s.pool());
    for (int64_t e = 0; e < experts_.count(); ++e) multiply(e, kDact, kProducts, s.pool());
  });
  s.synchronize();
}

}  // namespace pagoda
