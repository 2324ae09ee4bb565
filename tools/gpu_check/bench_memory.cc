// Device memory, measured: what the head and cross-entropy take beside their inputs, and what a
// layer of experts takes from top-1 to top-8 beside a scheme that pads.
#include <algorithm>
#include <vector>

#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/layer_pass.h"

namespace pagoda::check {
namespace {

constexpr double kMiB = 1 << 20;

// Computes like the trainer's head: rows in chunks of kRowBlock, with the logits of one chunk at a
// time.
void head(Bench& b, int64_t tokens, int64_t model, int64_t vocab) {
  const bf16* x = b.random_bf16(tokens * model, 1.0);
  const bf16* table = b.random_bf16(vocab * model, 0.02);
  int32_t* targets = b.arena.take_as<int32_t>(tokens);
  float* weights = b.arena.take_as<float>(tokens);
  b.ops->fill_zero(targets, tokens * 4, b.s);
  b.ops->fill_zero(weights, tokens * 4, b.s);
  const int64_t inputs = b.arena.taken();
  float* dtable = b.arena.take_as<float>(vocab * model);
  bf16* dx = b.arena.take_as<bf16>(tokens * model);
  const int64_t gradient_bytes = b.arena.taken() - inputs;
  float* logits = b.arena.take_as<float>(kRowBlock * vocab);
  const int64_t chunk_bytes = b.arena.taken() - inputs - gradient_bytes;
  bf16* dlogits = b.arena.take_as<bf16>(kRowBlock * vocab);
  double* loss = b.arena.take_as<double>(1);
  const Work work = [&] {
    b.ops->fill_zero(loss, 8, b.s);
    for (int64_t first = 0; first < tokens; first += kRowBlock) {
      const int64_t n = std::min(kRowBlock, tokens - first);
      const bf16* rows = x + first * model;
      b.ops->linear(DType::kBF16, rows, table, n, model, vocab, DType::kF32, logits, b.s);
      b.ops->cross_entropy(DType::kBF16, logits, targets + first, weights + first, n, vocab, 1.0f,
                           dlogits, loss, b.s);
      b.ops->linear_backward_input(DType::kBF16, dlogits, table, n, model, vocab, DType::kBF16,
                                   dx + first * model, b.s);
      b.ops->linear_backward_weight(DType::kBF16, dlogits, rows, n, model, vocab, first > 0, dtable,
                                    b.s);
    }
  };
  const int64_t scratch = scratch_used(b.s, work);
  const int64_t extra = b.arena.taken() - inputs + scratch;
  print_line(b.scores.at_most(
      "head and cross-entropy, extra memory",
      double(extra) / double(gradient_bytes + chunk_bytes), 1.1,
      strf("%.0f MiB, of them gradients %.0f, a chunk of logits %.0f; %.0f us",
           double(extra) / kMiB, double(gradient_bytes) / kMiB, double(chunk_bytes) / kMiB,
           b.median_us(work))));
}

void layer(Bench& b, int64_t k) {
  const LayerShape shape{4096, k, 16, 2048, 1024};
  const std::vector<int32_t> choices = zipf_choices(shape, 11);
  LayerInputs in;
  int32_t* on_device = b.arena.take_as<int32_t>(shape.rows());
  b.s.copy(on_device, choices.data(), shape.rows() * 4);
  in.choices = on_device;
  float* weights = b.arena.take_as<float>(shape.rows());
  b.ops->fill_zero(weights, shape.rows() * 4, b.s);
  in.weights = weights;
  in.x = b.random_bf16(shape.tokens * shape.model, 1.0);
  in.dy = b.random_bf16(shape.tokens * shape.model, 1.0);
  in.up = b.random_bf16(shape.experts * 2 * shape.inner * shape.model, 0.02);
  in.down = b.random_bf16(shape.experts * shape.model * shape.inner, 0.02);
  in.dup = b.arena.take_as<float>(shape.experts * 2 * shape.inner * shape.model);
  in.ddown = b.arena.take_as<float>(shape.experts * shape.model * shape.inner);
  const int64_t inputs = b.arena.taken();
  LayerPass pass(shape, choices, b.arena);
  const int64_t scratch = scratch_used(b.s, [&] {
    pass.forward(in, *b.ops, b.s);
    pass.backward(in, *b.ops, b.s);
  });
  const double ours = double(b.arena.taken() - inputs + scratch) / kMiB;
  const double padded = double(padded_bytes(shape, choices)) / kMiB;
  print_line(strf("      top-%lld: %7.1f MiB, padded %8.1f MiB, %.3f of it",
                  static_cast<long long>(k), ours, padded, ours / padded));
}

}  // namespace

void bench_memory(Bench& b) {
  const Arena before = b.arena;
  head(b, 4096, 2048, 50304);
  b.arena = before;
  print_line("      memory of a layer of 16 experts, 4096 tokens, forward and backward (measured), "
             "and padded to the busiest expert (computed):");
  for (int64_t k = 1; k <= 8; ++k) {
    layer(b, k);
    b.arena = before;
  }
}

}  // namespace pagoda::check
