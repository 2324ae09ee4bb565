// Attention: rated by a dense product's rate, and beside cuDNN's where there is one.
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/counted_library.h"

namespace pagoda::check {
namespace {

constexpr int64_t kHeads = 16, kDim = 128;

// The library's side of the race; or none.
struct Rival {
  std::shared_ptr<CountedLibrary> library;
  std::unique_ptr<Ops> ops;
};

Rival open_rival(Bench& b) {
  Result<std::shared_ptr<LibraryAttention>> library = open_library_attention(b.s);
  if (!library.ok()) {
    print_line("no cuDNN to race attention with: " + library.status().message());
    return {};
  }
  const auto counted = std::make_shared<CountedLibrary>(library.value());
  return {counted, make_cuda_ops(b.device, {.attention = counted})};
}

void race_rival(Bench& b, const Rival& rival, const std::string& what,
                const std::function<void(Ops&)>& call) {
  if (!rival.ops) return;
  const std::string name = library_attention_name();
  const int before = rival.library->ran;
  call(*rival.ops);
  if (rival.library->ran == before) {
    return print_line(strf("      %-44s %s refuses: %s", what.c_str(), name.c_str(),
                           rival.library->refused.c_str()));
  }
  const auto [us, rival_us] = b.race([&] { call(*b.ops); }, [&] { call(*rival.ops); });
  print_line(b.scores.at_least(what + ", of " + name, rival_us / us, 0.7,
                               strf("%.0f us, %s %.0f us: %s is faster", us, name.c_str(), rival_us,
                                    us <= rival_us ? "ours" : name.c_str())));
}

void run(Bench& b, const Rival& rival, int64_t tokens) {
  const AttentionShape shape{tokens, kHeads, kHeads, kDim, 3 * kHeads * kDim};
  const bf16* qkv = b.random_bf16(tokens * shape.qkv_stride, 1.0);
  const bf16* dout = b.random_bf16(tokens * kHeads * kDim, 1.0);
  bf16* out = b.arena.take_as<bf16>(tokens * kHeads * kDim);
  bf16* dqkv = b.arena.take_as<bf16>(tokens * shape.qkv_stride);
  float* lse = b.arena.take_as<float>(tokens * kHeads);
  const int32_t starts[] = {0, static_cast<int32_t>(tokens)};
  const bf16 *k = qkv + kHeads * kDim, *v = k + kHeads * kDim;
  const auto part = [&](int64_t i) { return dqkv + i * kHeads * kDim; };
  const auto forward = [&](Ops& ops) {
    ops.attention(DType::kBF16, shape, starts, 1, qkv, k, v, out, lse, b.s);
  };
  const auto backward = [&](Ops& ops) {
    ops.attention_backward(DType::kBF16, shape, starts, 1, qkv, k, v, out, lse, dout, part(0),
                           part(1), part(2), b.s);
  };
  // Causal: half of 4 T^2 d flops a head forward; two products and a half as many back.
  const double flops = 2.0 * double(tokens) * double(tokens) * double(kHeads * kDim);
  const int64_t side = 4096;
  const bf16 *left = b.random_bf16(side * side, 1.0), *right = b.random_bf16(side * side, 1.0);
  bf16* product = b.arena.take_as<bf16>(side * side);
  const double product_flops = 2.0 * double(side) * double(side) * double(side);
  const auto line = [&](const char* way, const std::function<void(Ops&)>& call,
                        double work_flops) {
    const std::string what =
        strf("attention %s, %lld tokens", way, static_cast<long long>(tokens));
    const auto [us, dense_us] = b.race([&] { call(*b.ops); }, [&] {
      if (b.library) b.library->multiply(side, side, side, left, right, product);
    });
    const double rate = work_flops / us;
    std::string text =
        strf("      %-44s %.0f us, %.1f TFLOP/s", what.c_str(), us, rate * 1e-6);
    if (b.library) text += strf(", %.3f of a dense product's", rate / (product_flops / dense_us));
    print_line(text);
    race_rival(b, rival, what, call);
  };
  line("forward", forward, flops);
  line("backward", backward, 2.5 * flops);
}

}  // namespace

void bench_attention(Bench& b) {
  const Rival rival = open_rival(b);
  const std::span<std::byte> scratch = b.s.scratch();
  for (int64_t tokens : {2048, 8192}) {
    const Arena before = b.arena;
    const int64_t scratch_bytes = library_attention_bytes(tokens, kHeads, kDim);
    b.s.use_scratch({b.arena.take(scratch_bytes), static_cast<size_t>(scratch_bytes)});
    run(b, rival, tokens);
    b.s.use_scratch(scratch);
    b.arena = before;
  }
}

}  // namespace pagoda::check
