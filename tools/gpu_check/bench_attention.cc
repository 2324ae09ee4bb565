// Attention. There is no library for it in the toolkit: rated by a dense product's rate.
#include "tools/gpu_check/bench.h"

namespace pagoda::check {
namespace {

constexpr int64_t kHeads = 16, kDim = 128;

void run(Bench& b, int64_t tokens) {
  const AttentionShape shape{tokens, kHeads, kHeads, kDim, 3 * kHeads * kDim};
  const bf16* qkv = b.random_bf16(tokens * shape.qkv_stride, 1.0);
  const bf16* dout = b.random_bf16(tokens * kHeads * kDim, 1.0);
  bf16* out = b.arena.take_as<bf16>(tokens * kHeads * kDim);
  bf16* dqkv = b.arena.take_as<bf16>(tokens * shape.qkv_stride);
  float* lse = b.arena.take_as<float>(tokens * kHeads);
  const int32_t starts[] = {0, static_cast<int32_t>(tokens)};
  const bf16 *k = qkv + kHeads * kDim, *v = k + kHeads * kDim;
  const auto part = [&](int64_t i) { return dqkv + i * kHeads * kDim; };
  const Work forward = [&] {
    b.ops->attention(DType::kBF16, shape, starts, 1, qkv, k, v, out, lse, b.s);
  };
  const Work backward = [&] {
    b.ops->attention_backward(DType::kBF16, shape, starts, 1, qkv, k, v, out, lse, dout, part(0),
                              part(1), part(2), b.s);
  };
  // Causal: half of 4 T^2 d flops a head forward; two products and a half as many back.
  const double flops = 2.0 * double(tokens) * double(tokens) * double(kHeads * kDim);
  const int64_t side = 4096;
  const bf16 *left = b.random_bf16(side * side, 1.0), *right = b.random_bf16(side * side, 1.0);
  bf16* product = b.arena.take_as<bf16>(side * side);
  const double product_flops = 2.0 * double(side) * double(side) * double(side);
  const auto line = [&](const char* what, const Work& work, double work_flops) {
    const auto [us, dense_us] = b.race(work, [&] {
      if (b.library) b.library->multiply(side, side, side, left, right, product);
    });
    const double rate = work_flops / us;
    std::string text = strf("      %-44s %.0f us, %.1f TFLOP/s",
                            strf("attention %s, %lld tokens", what,
                                 static_cast<long long>(tokens)).c_str(), us, rate * 1e-6);
    if (b.library) text += strf(", %.3f of a dense product's", rate / (product_flops / dense_us));
    print_line(text);
  };
  line("forward", forward, flops);
  line("backward", backward, 2.5 * flops);
}

}  // namespace

void bench_attention(Bench& b) {
  for (int64_t tokens : {2048, 8192}) {
    const Arena before = b.arena;
    run(b, tokens);
    b.arena = before;
  }
}

}  // namespace pagoda::check
