// The CPU's Ops. One class, its methods defined across this folder by subject.
//
// Work is split by shape alone into row blocks or tiles, and each is computed by one thread from
// start to end; sums across blocks are joined in block order. That is why results do not depend on
// the number of threads.
#pragma once

#include "kernels/ops.h"

namespace pagoda {

class CpuOps final : public Ops {
 public:
  void embedding(DType dt, const int32_t* ids, const void* table, int64_t tokens, int64_t dim,
                 void* out, Stream& s) override;
  void embedding_backward(DType dt, const int32_t* ids, const void* dout, int64_t tokens,
                          int64_t dim, int64_t pad_token, float* dtable, Stream& s) override;
  void rmsnorm(DType dt, const void* x, const void* weight, float eps, int64_t rows, int64_t groups,
               int64_t dim, int64_t stride, void* out, float* rstd, Stream& s) override;
  void rmsnorm_backward(DType dt, const void* x, const void* weight, const float* rstd,
                        const void* dout, int64_t rows, int64_t groups, int64_t dim, int64_t stride,
                        void* dx, float* dweight, Stream& s) override;
  void linear(DType dt, const void* x, const void* w, int64_t n, int64_t in, int64_t out,
              DType y_dt, void* y, Stream& s) override;
  void linear_biased(DType dt, const void* x, const void* w, const void* bias, int64_t n,
                     int64_t in, int64_t out, void* y, Stream& s) override;
  void linear_backward_input(DType dt, const void* dy, const void* w, int64_t n, int64_t in,
                             int64_t out, DType dx_dt, void* dx, Stream& s) override;
  void linear_backward_weight(DType dt, const void* dy, const void* x, int64_t n, int64_t in,
                              int64_t out, bool add, float* dw, Stream& s) override;
  void grouped_linear(DType dt, const void* x, std::span<const RowsOfWeight> experts, int64_t in,
                      int64_t out, DType y_dt, void* y, Stream& s) override;
  void grouped_linear_backward_input(DType dt, const void* dy,
                                     std::span<const RowsOfWeight> experts, int64_t in,
                                     int64_t out, DType dx_dt, void* dx, Stream& s) override;
  void grouped_linear_backward_weight(DType dt, const void* dy, const void* x,
                                      std::span<const RowsOfGradient> experts, int64_t in,
                                      int64_t out, Stream& s) override;
  void bias_backward(DType dt, const void* dy, int64_t n, int64_t dim, float* dbias,
                     Stream& s) override;
  void rope(DType dt, const int32_t* positions, double theta, int64_t tokens, int64_t heads,
            int64_t head_dim, int64_t stride, bool inverse, void* x, Stream& s) override;
  void attention(DType dt, const AttentionShape& shape, const int32_t* document_start,
                 int64_t documents, const void* q, const void* k, const void* v, void* out,
                 float* lse, Stream& s) override;
  void attention_backward(DType dt, const AttentionShape& shape, const int32_t* document_start,
                          int64_t documents, const void* q, const void* k, const void* v,
                          const void* out, const float* lse, const void* dout, void* dq, void* dk,
                          void* dv, Stream& s) override;
  void cached_attention(DType dt, const AttentionShape& shape, int64_t capacity,
                        const int32_t* sequence, const int32_t* position, const void* q,
                        const void* k, const void* v, void* cache, void* out, Stream& s) override;
  void swiglu(DType dt, const void* gate_up, int64_t n, int64_t f, void* out, Stream& s) override;
  void swiglu_backward(DType dt, const void* gate_up, const void* dact, const float* row_scale,
                       int64_t n, int64_t f, void* dgate_up, void* scaled_act, float* dscale,
                       Stream& s) override;
  void route(const float* logits, const uint8_t* padding, int64_t tokens, int64_t num_experts,
             int64_t k, bool renormalise, bool replay, float* probs, int32_t* experts,
             float* weights, int32_t* counts, double* prob_sums, Stream& s) override;
  void route_backward(DType dt, const float* probs, const int32_t* experts, const float* weights,
                      const float* dweights, const float* aux_grad, int64_t tokens,
                      int64_t num_experts, int64_t k, bool renormalise, void* dlogits,
                      Stream& s) override;
  void index_rows(const int32_t* experts, int64_t tokens, int64_t k, int64_t num_experts,
                  const int64_t* first, int32_t* rows, int32_t* choices, Stream& s) override;
  void gather_rows(DType dt, const void* x, const int32_t* rows, int64_t n, int64_t dim, void* out,
                   Stream& s) override;
  void scatter_add_rows(DType dt, const void* x, const int32_t* rows, const float* scale, int64_t n,
                        int64_t dim, float* y, Stream& s) override;
  void gather_row_runs(DType dt, const void* x, const int32_t* rows, std::span<const RowRun> runs,
                       int64_t dim, void* out, Stream& s) override;
  void scatter_add_row_runs(DType dt, const void* x, const int32_t* rows, const float* scale,
                            std::span<const RowRun> runs, int64_t dim, float* y,
                            Stream& s) override;
  void scale_rows(const float* scale, int64_t n, int64_t dim, float* x, Stream& s) override;
  void sigmoid(const float* logits, int64_t n, float* out, Stream& s) override;
  void sigmoid_backward(DType dt, const float* out, const float* dout, int64_t n, void* dlogits,
                        Stream& s) override;
  void add(DType dt, const void* a, DType b_dt, const void* b, int64_t n, void* out,
           Stream& s) override;
  void fill_zero(void* x, int64_t bytes, Stream& s) override;
  void cross_entropy(DType dt, const float* logits, const int32_t* target, const float* weight,
                     int64_t n, int64_t vocab, float grad_scale, void* dlogits, double* loss_sum,
                     Stream& s) override;
  void finish_gradient(DType dt, const float* g, int64_t n, void* out, double* sum_of_squares,
                       Stream& s) override;
};

}  // namespace pagoda
