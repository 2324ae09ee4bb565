#include "bench/roofs/step_products.h"

#include <algorithm>

#include "base/bytes.h"
#include "bench/race/noise.h"
#include "kernels/ops.h"

namespace pagoda {
namespace {

constexpr int64_t kColdBytes = 64 * kMiB;  // of different weights that take turns
constexpr int64_t kTileOperations = int64_t{1} << 34;

// Rows cut into pieces of at most `most`, as even as they come.
LinearProduct in_pieces(int64_t rows, int64_t most, int64_t in, int64_t out, int64_t count) {
  const int64_t pieces = div_ceil(rows, most);
  return {div_ceil(rows, pieces), in, out, count * pieces};
}

// A gated MLP of width f, whose output is as wide as its input.
void add_mlp(int64_t rows, int64_t most, int64_t d, int64_t f, int64_t count,
             std::vector<LinearProduct>& products) {
  products.push_back(in_pieces(rows, most, d, 2 * f, count));
  products.push_back(in_pieces(rows, most, f, d, count));
}

int64_t attention_of_step(const ModelConfig& c, int64_t tokens, int64_t sequence_len) {
  const AttentionOperations of_layer =
      attention_operations(tokens, sequence_len, c.num_heads, c.head_dim);
  return c.num_layers * (of_layer.forward + of_layer.backward);
}

Timing scaled(const Timing& timing, double by) {
  return {0, by * timing.seconds, by * timing.cpu_seconds};
}

template <typename T>
T* array(const HostMemory& memory) {
  return reinterpret_cast<T*>(memory.data());
}

}  // namespace

std::vector<LinearProduct> linear_products(const ModelConfig& c, int64_t tokens,
                                           int64_t sequence_len) {
  const int64_t d = c.hidden_size, q_dim = c.num_heads * c.head_dim;
  const int64_t qkv_dim = q_dim + 2 * c.num_kv_heads * c.head_dim;
  const int64_t moe = c.num_moe_layers(), dense = c.num_layers - moe;
  std::vector<LinearProduct> products = {
      in_pieces(tokens, sequence_len, d, qkv_dim, c.num_layers),
      in_pieces(tokens, sequence_len, q_dim, d, c.num_layers),
      in_pieces(tokens, std::min(kRowBlock, sequence_len), d, c.vocab_size, 1)};
  if (dense > 0) add_mlp(tokens, sequence_len, d, c.intermediate_size, dense, products);
  if (moe == 0) return products;
  products.push_back(in_pieces(tokens, sequence_len, d, c.num_experts, moe));
  if (c.shared_intermediate_size > 0) {
    add_mlp(tokens, sequence_len, d, c.shared_intermediate_size, moe, products);
  }
  const int64_t rows = div_ceil(tokens * c.experts_per_token, c.num_experts);
  add_mlp(rows, kRowBlock, d, c.moe_intermediate_size, moe * c.num_experts, products);
  return products;
}

int64_t step_operations(const ModelConfig& config, int64_t tokens, int64_t sequence_len) {
  int64_t operations = attention_of_step(config, tokens, sequence_len);
  for (const LinearProduct& p : linear_products(config, tokens, sequence_len)) {
    operations += 3 * 2 * p.rows * p.in * p.out * p.count;
  }
  return operations;
}

StepProducts::StepProducts(std::vector<LinearProduct> products, TileProducts tiles, Stream* stream)
    : products_(std::move(products)), tiles_(std::move(tiles)), stream_(stream) {}

int64_t StepProducts::distinct_weights(const LinearProduct& product) {
  return std::clamp<int64_t>(kColdBytes / (2 * product.in * product.out), 1, product.count);
}

Result<StepProducts> StepProducts::make(const ModelConfig& config, int64_t tokens,
                                        int64_t sequence_len, Stream* stream) {
  ASSIGN_OR_RETURN(TileProducts tiles, TileProducts::make(config.head_dim, stream));
  StepProducts made(linear_products(config, tokens, sequence_len), std::move(tiles), stream);
  made.attention_operations_ = attention_of_step(config, tokens, sequence_len);
  int64_t weights = 0, x = 0, y = 0, dw = 0;
  for (const LinearProduct& p : made.products_) {
    weights = std::max(weights, distinct_weights(p) * p.in * p.out);
    x = std::max(x, p.rows * p.in);
    y = std::max(y, p.rows * p.out);
    dw = std::max(dw, p.in * p.out);
  }
  ASSIGN_OR_RETURN(made.weights_, HostMemory::allocate(2 * weights));
  ASSIGN_OR_RETURN(made.x_, HostMemory::allocate(2 * x));
  ASSIGN_OR_RETURN(made.dx_, HostMemory::allocate(2 * x));
  ASSIGN_OR_RETURN(made.y_, HostMemory::allocate(2 * y));
  ASSIGN_OR_RETURN(made.dw_, HostMemory::allocate(4 * dw));
  fill_values(array<bf16>(made.weights_), weights);
  fill_values(array<bf16>(made.x_), x);
  return made;
}

void StepProducts::multiply(const LinearProduct& p, int64_t weights) const {
  Ops& ops = cpu_ops();
  const bf16* x = array<bf16>(x_);
  bf16* y = array<bf16>(y_);
  float* dw = array<float>(dw_);
  for (int64_t i = 0; i < weights; ++i) {
    const bf16* w = array<bf16>(weights_) + i * p.in * p.out;
    ops.linear(DType::kBF16, x, w, p.rows, p.in, p.out, DType::kBF16, y, *stream_);
    ops.linear_backward_input(DType::kBF16, y, w, p.rows, p.in, p.out, DType::kBF16, dx_.data(),
                              *stream_);
    ops.linear_backward_weight(DType::kBF16, y, x, p.rows, p.in, p.out, false, dw, *stream_);
  }
  stream_->synchronize();
}

Timing StepProducts::measure() {
  Timing sum;
  const auto add = [&sum](const Timing& timing) {
    sum.seconds += timing.seconds;
    sum.cpu_seconds += timing.cpu_seconds;
  };
  for (const LinearProduct& p : products_) {
    const int64_t weights = distinct_weights(p);
    const TimingClock timer;
    multiply(p, weights);
    add(scaled(timer.finish(0), static_cast<double>(p.count) / static_cast<double>(weights)));
  }
  const Timing tiles = tiles_.run(std::min(kTileOperations, attention_operations_));
  add(scaled(tiles, static_cast<double>(attention_operations_) / static_cast<double>(tiles.bytes)));
  return sum;
}

}  // namespace pagoda
