#include "tests/cuda/placed_ops.h"

#include <utility>

#include "base/check.h"
#include "device/cuda_stream.h"
#include "tests/cuda/fake_cuda.h"

namespace pagoda {
namespace {

class PlacedOps final : public Ops {
 public:
  PlacedOps(int gpu, std::unique_ptr<Ops> inner) : gpu_(gpu), inner_(std::move(inner)) {}
#include "kernels/ops_overrides.inc"

 private:
  static void add(std::vector<const void*>& all, const void* tensor) { all.push_back(tensor); }
  static void add(std::vector<const void*>& all, const InputRows& rows) {
    all.push_back(rows.each != nullptr ? static_cast<const void*>(rows.each) : rows.dense);
  }
  static void add(std::vector<const void*>& all, const OutputRows& rows) {
    all.push_back(rows.sums != nullptr ? static_cast<const void*>(rows.sums) : rows.dense);
    all.push_back(rows.scale);
  }
  static void add(std::vector<const void*>& all, std::span<const RowsOfWeight> weights) {
    for (const RowsOfWeight& rows : weights) {
      all.push_back(rows.w);
      if (rows.bias != nullptr) all.push_back(rows.bias);
    }
  }
  static void add(std::vector<const void*>& all, std::span<const RowsOfGradient> gradients) {
    for (const RowsOfGradient& rows : gradients) all.push_back(rows.dw);
  }
  template <typename... Tensors>
  void require(const char* op, Stream& s, const Tensors&... tensors) const {
    std::vector<const void*> all;
    (add(all, tensors), ...);
    require_placed(gpu_, op, s, all);
  }

  const int gpu_;
  const std::unique_ptr<Ops> inner_;
};

void PlacedOps::embedding(DType dt, const int32_t* ids, const void* table, int64_t tokens,
                          int64_t dim, void* out, Stream& s) {
  require("embedding", s, ids, table, out);
  inner_->embedding(dt, ids, table, tokens, dim, out, s);
}

void PlacedOps::embedding_backward(DType dt, const int32_t* ids, const void* dout, int64_t tokens,
                                   int64_t dim, int64_t pad_token, float* dtable, Stream& s) {
  require("embedding_backward", s, ids, dout, dtable);
  inner_->embedding_backward(dt, ids, dout, tokens, dim, pad_token, dtable, s);
}

void PlacedOps::rmsnorm(DType dt, const void* x, const void* weight, float eps, int64_t rows,
                        int64_t groups, int64_t dim, int64_t stride, void* out, float* rstd,
                        Stream& s) {
  require("rmsnorm", s, x, weight, out, rstd);
  inner_->rmsnorm(dt, x, weight, eps, rows, groups, dim, stride, out, rstd, s);
}

void PlacedOps::rmsnorm_backward(DType dt, const void* x, const void* weight, const float* rstd,
                                 const void* dout, int64_t rows, int64_t groups, int64_t dim,
                                 int64_t stride, void* dx, float* dweight, Stream& s) {
  require("rmsnorm_backward", s, x, weight, rstd, dout, dx, dweight);
  inner_->rmsnorm_backward(dt, x, weight, rstd, dout, rows, groups, dim, stride, dx, dweight, s);
}

void PlacedOps::linear(DType dt, const void* x, const void* w, int64_t n, int64_t in, int64_t out,
                       DType y_dt, void* y, Stream& s) {
  require("linear", s, x, w, y);
  inner_->linear(dt, x, w, n, in, out, y_dt, y, s);
}

void PlacedOps::linear_biased(DType dt, const void* x, const void* w, const void* bias, int64_t n,
                              int64_t in, int64_t out, DType y_dt, void* y, Stream& s) {
  require("linear_biased", s, x, w, bias, y);
  inner_->linear_biased(dt, x, w, bias, n, in, out, y_dt, y, s);
}

void PlacedOps::linear_backward_input(DType dt, const void* dy, const void* w, int64_t n,
                                      int64_t in, int64_t out, DType dx_dt, void* dx, Stream& s) {
  require("linear_backward_input", s, dy, w, dx);
  inner_->linear_backward_input(dt, dy, w, n, in, out, dx_dt, dx, s);
}

void PlacedOps::linear_backward_weight(DType dt, const void* dy, const void* x, int64_t n,
                                       int64_t in, int64_t out, bool add, float* dw, Stream& s) {
  require("linear_backward_weight", s, dy, x, dw);
  inner_->linear_backward_weight(dt, dy, x, n, in, out, add, dw, s);
}

void PlacedOps::grouped_linear(DType dt, InputRows x, std::span<const RowsOfWeight> experts,
                               int64_t in, int64_t out, DType y_dt, OutputRows y, Stream& s) {
  require("grouped_linear", s, x, experts, y);
  inner_->grouped_linear(dt, x, experts, in, out, y_dt, y, s);
}

void PlacedOps::grouped_linear_backward_input(DType dt, InputRows dy,
                                              std::span<const RowsOfWeight> experts, int64_t in,
                                              int64_t out, DType dx_dt, OutputRows dx, Stream& s) {
  require("grouped_linear_backward_input", s, dy, experts, dx);
  inner_->grouped_linear_backward_input(dt, dy, experts, in, out, dx_dt, dx, s);
}

void PlacedOps::grouped_linear_backward_weight(DType dt, InputRows dy, InputRows x,
                                               std::span<const RowsOfGradient> experts, int64_t in,
                                               int64_t out, Stream& s) {
  require("grouped_linear_backward_weight", s, dy, x, experts);
  inner_->grouped_linear_backward_weight(dt, dy, x, experts, in, out, s);
}

void PlacedOps::bias_backward(DType dt, const void* dy, int64_t n, int64_t dim, float* dbias,
                              Stream& s) {
  require("bias_backward", s, dy, dbias);
  inner_->bias_backward(dt, dy, n, dim, dbias, s);
}

void PlacedOps::grouped_bias_backward(DType dt, InputRows dy, const float* scale,
                                      std::span<const RowsOfGradient> experts, int64_t dim,
                                      Stream& s) {
  require("grouped_bias_backward", s, dy, scale, experts);
  inner_->grouped_bias_backward(dt, dy, scale, experts, dim, s);
}

void PlacedOps::rope(DType dt, const int32_t* positions, const Rotation& rotation, int64_t tokens,
                     int64_t heads, int64_t head_dim, int64_t rotated, int64_t stride, bool inverse,
                     void* x, Stream& s) {
  require("rope", s, positions, x);
  inner_->rope(dt, positions, rotation, tokens, heads, head_dim, rotated, stride, inverse, x, s);
}

void PlacedOps::attention(DType dt, const AttentionShape& shape, const int32_t* document_start,
                          int64_t documents, const void* q, const void* k, const void* v, void* out,
                          float* lse, Stream& s) {
  require("attention", s, shape.sinks, q, k, v, out, lse);
  inner_->attention(dt, shape, document_start, documents, q, k, v, out, lse, s);
}

void PlacedOps::attention_backward(DType dt, const AttentionShape& shape,
                                   const int32_t* document_start, int64_t documents, const void* q,
                                   const void* k, const void* v, const void* out, const float* lse,
                                   const void* dout, void* dq, void* dk, void* dv, Stream& s) {
  require("attention_backward", s, q, k, v, out, lse, dout, dq, dk, dv);
  inner_->attention_backward(dt, shape, document_start, documents, q, k, v, out, lse, dout, dq, dk,
                             dv, s);
}

void PlacedOps::attention_sinks_backward(DType dt, const AttentionShape& shape, const void* out,
                                         const float* lse, const void* dout, float* dsinks,
                                         Stream& s) {
  require("attention_sinks_backward", s, shape.sinks, out, lse, dout, dsinks);
  inner_->attention_sinks_backward(dt, shape, out, lse, dout, dsinks, s);
}

void PlacedOps::cached_attention(DType dt, const AttentionShape& shape, int64_t capacity,
                                 const int32_t* sequence, const int32_t* position, const void* q,
                                 const void* k, const void* v, void* cache, void* out, Stream& s) {
  require("cached_attention", s, shape.sinks, sequence, position, q, k, v, cache, out);
  inner_->cached_attention(dt, shape, capacity, sequence, position, q, k, v, cache, out, s);
}

void PlacedOps::latent_heads(DType dt, const LatentShape& shape, const int32_t* positions,
                             const Rotation& rotation, const void* q, const void* shared,
                             const void* kv, void* qkv, Stream& s) {
  require("latent_heads", s, positions, q, shared, kv, qkv);
  inner_->latent_heads(dt, shape, positions, rotation, q, shared, kv, qkv, s);
}

void PlacedOps::latent_heads_backward(DType dt, const LatentShape& shape, const int32_t* positions,
                                      const Rotation& rotation, const void* dqkv, void* dq,
                                      void* dshared, void* dkv, Stream& s) {
  require("latent_heads_backward", s, positions, dqkv, dq, dshared, dkv);
  inner_->latent_heads_backward(dt, shape, positions, rotation, dqkv, dq, dshared, dkv, s);
}

void PlacedOps::copy_columns(DType dt, const void* x, int64_t n, int64_t columns, int64_t x_stride,
                             int64_t zeros, int64_t out_stride, void* out, Stream& s) {
  require("copy_columns", s, x, out);
  inner_->copy_columns(dt, x, n, columns, x_stride, zeros, out_stride, out, s);
}

void PlacedOps::short_conv(DType dt, const int32_t* positions, const void* bcx, const void* taps,
                           int64_t tokens, int64_t dim, int64_t width, void* out, Stream& s) {
  require("short_conv", s, positions, bcx, taps, out);
  inner_->short_conv(dt, positions, bcx, taps, tokens, dim, width, out, s);
}

void PlacedOps::short_conv_backward(DType dt, const int32_t* positions, const void* bcx,
                                    const void* taps, const void* dout, int64_t tokens,
                                    int64_t dim, int64_t width, void* dbcx, float* dtaps,
                                    Stream& s) {
  require("short_conv_backward", s, positions, bcx, taps, dout, dbcx, dtaps);
  inner_->short_conv_backward(dt, positions, bcx, taps, dout, tokens, dim, width, dbcx, dtaps, s);
}

void PlacedOps::cached_short_conv(DType dt, const int32_t* sequence, const int32_t* position,
                                  const void* bcx, const void* taps, int64_t tokens, int64_t dim,
                                  int64_t width, void* state, void* out, Stream& s) {
  require("cached_short_conv", s, sequence, position, bcx, taps, state, out);
  inner_->cached_short_conv(dt, sequence, position, bcx, taps, tokens, dim, width, state, out, s);
}

void PlacedOps::swiglu(DType dt, const SwigluShape& shape, const void* gate_up, int64_t n,
                       int64_t f, void* out, Stream& s) {
  require("swiglu", s, gate_up, out);
  inner_->swiglu(dt, shape, gate_up, n, f, out, s);
}

void PlacedOps::swiglu_backward(DType dt, const SwigluShape& shape, const void* gate_up,
                                const void* dact, const float* row_scale, int64_t n, int64_t f,
                                void* dgate_up, void* scaled_act, float* dscale, Stream& s) {
  require("swiglu_backward", s, gate_up, dact, row_scale, dgate_up, scaled_act, dscale);
  inner_->swiglu_backward(dt, shape, gate_up, dact, row_scale, n, f, dgate_up, scaled_act, dscale,
                          s);
}

void PlacedOps::route(const RouterShape& shape, const float* logits, DType dt,
                      const void* correction, const uint8_t* padding, int64_t tokens, bool replay,
                      float* probs, int32_t* experts, float* weights, int32_t* counts,
                      double* prob_sums, Stream& s) {
  require("route", s, logits, correction, padding, probs, experts, weights, counts, prob_sums);
  inner_->route(shape, logits, dt, correction, padding, tokens, replay, probs, experts, weights,
                counts, prob_sums, s);
}

void PlacedOps::route_backward(DType dt, const RouterShape& shape, const float* probs,
                               const int32_t* experts, const float* weights, const float* dweights,
                               const float* aux_grad, const float* log_sums, float z_slope,
                               int64_t tokens, void* dlogits, Stream& s) {
  require("route_backward", s, probs, experts, weights, dweights, aux_grad, log_sums, dlogits);
  inner_->route_backward(dt, shape, probs, experts, weights, dweights, aux_grad, log_sums, z_slope,
                         tokens, dlogits, s);
}

void PlacedOps::log_sums(const float* logits, const uint8_t* padding, int64_t tokens,
                         int64_t num_experts, float* log_sums, double* square_sum, Stream& s) {
  require("log_sums", s, logits, padding, log_sums, square_sum);
  inner_->log_sums(logits, padding, tokens, num_experts, log_sums, square_sum, s);
}

void PlacedOps::index_rows(const int32_t* experts, int64_t tokens, int64_t k, int64_t num_experts,
                           const int64_t* first, int32_t* rows, int32_t* choices, Stream& s) {
  require("index_rows", s, experts, rows, choices);
  inner_->index_rows(experts, tokens, k, num_experts, first, rows, choices, s);
}

void PlacedOps::gather_rows(DType dt, const void* x, const int32_t* rows, int64_t n, int64_t dim,
                            void* out, Stream& s) {
  require("gather_rows", s, x, rows, out);
  inner_->gather_rows(dt, x, rows, n, dim, out, s);
}

void PlacedOps::scatter_add_rows(DType dt, const void* x, const int32_t* rows, const float* scale,
                                 int64_t n, int64_t dim, float* y, Stream& s) {
  require("scatter_add_rows", s, x, rows, scale, y);
  inner_->scatter_add_rows(dt, x, rows, scale, n, dim, y, s);
}

void PlacedOps::gather_row_runs(DType dt, const void* x, const int32_t* rows,
                                std::span<const RowRun> runs, int64_t dim, void* out, Stream& s) {
  require("gather_row_runs", s, x, rows, out);
  inner_->gather_row_runs(dt, x, rows, runs, dim, out, s);
}

void PlacedOps::locate_rows(DType dt, const void* x, const int32_t* rows,
                            std::span<const RowRun> runs, int64_t dim, const void** out,
                            Stream& s) {
  require("locate_rows", s, x, rows, out);
  inner_->locate_rows(dt, x, rows, runs, dim, out, s);
}

void PlacedOps::copy_row_runs(DType dt, const void* x, std::span<const RowRun> runs, int64_t dim,
                              void* out, Stream& s) {
  require("copy_row_runs", s, x, out);
  inner_->copy_row_runs(dt, x, runs, dim, out, s);
}

void PlacedOps::scatter_add_row_runs(DType dt, const void* x, const int32_t* rows,
                                     const float* scale, std::span<const RowRun> runs, int64_t dim,
                                     float* y, Stream& s) {
  require("scatter_add_row_runs", s, x, rows, scale, y);
  inner_->scatter_add_row_runs(dt, x, rows, scale, runs, dim, y, s);
}

void PlacedOps::scale_rows(const float* scale, int64_t n, int64_t dim, float* x, Stream& s) {
  require("scale_rows", s, scale, x);
  inner_->scale_rows(scale, n, dim, x, s);
}

void PlacedOps::scale(DType dt, float factor, int64_t n, void* x, Stream& s) {
  require("scale", s, x);
  inner_->scale(dt, factor, n, x, s);
}

void PlacedOps::sigmoid(const float* logits, int64_t n, float* out, Stream& s) {
  require("sigmoid", s, logits, out);
  inner_->sigmoid(logits, n, out, s);
}

void PlacedOps::sigmoid_backward(DType dt, const float* out, const float* dout, int64_t n,
                                 void* dlogits, Stream& s) {
  require("sigmoid_backward", s, out, dout, dlogits);
  inner_->sigmoid_backward(dt, out, dout, n, dlogits, s);
}

void PlacedOps::move_correction(DType dt, const int32_t* load, int64_t total, int64_t experts,
                                float speed, void* parts, Stream& s) {
  require("move_correction", s, load, parts);
  inner_->move_correction(dt, load, total, experts, speed, parts, s);
}

void PlacedOps::add(DType dt, const void* a, DType b_dt, const void* b, int64_t n, void* out,
                    Stream& s) {
  require("add", s, a, b, out);
  inner_->add(dt, a, b_dt, b, n, out, s);
}

void PlacedOps::fill_zero(void* x, int64_t bytes, Stream& s) {
  require("fill_zero", s, x);
  inner_->fill_zero(x, bytes, s);
}

void PlacedOps::cross_entropy(DType dt, const float* logits, const int32_t* target,
                              const float* weight, int64_t n, int64_t vocab, float grad_scale,
                              void* dlogits, double* loss_sum, Stream& s) {
  require("cross_entropy", s, logits, target, weight, dlogits, loss_sum);
  inner_->cross_entropy(dt, logits, target, weight, n, vocab, grad_scale, dlogits, loss_sum, s);
}

void PlacedOps::finish_gradient(DType dt, const float* g, int64_t n, void* out,
                                double* sum_of_squares, Stream& s) {
  require("finish_gradient", s, g, out, sum_of_squares);
  inner_->finish_gradient(dt, g, n, out, sum_of_squares, s);
}

}  // namespace

std::unique_ptr<Ops> make_placed_ops(int gpu, std::unique_ptr<Ops> inner) {
  return std::make_unique<PlacedOps>(gpu, std::move(inner));
}

void require_placed(int gpu, const char* op, Stream& s, std::span<const void* const> tensors) {
  const int of_stream = fake_cuda::gpu_of(raw_stream(s));
  CHECK(of_stream == gpu, "%s of GPU %d on a stream of GPU %d", op, gpu, of_stream);
  for (const void* tensor : tensors) {
    if (tensor == nullptr) continue;
    const int of_tensor = fake_cuda::gpu_of(tensor);
    CHECK(of_tensor == gpu, "%s on GPU %d of memory of GPU %d (-1: the host's)", op, gpu,
          of_tensor);
  }
}

}  // namespace pagoda
