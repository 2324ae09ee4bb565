// The expert-specific operators of HEXA-MoE (3.1, 3.2, Appendix B): what an MoE layer computes over
// all its experts at once, tokens read through indices. Nothing is padded, no token is dropped, and
// with top-k routing only the tensors between the two products grow k-fold.
//
//   ESMM   y_t = x_t W_r(t)^T + b_r(t)      ESS   S_e = sum over r(t) = e of x_t
//   ESTMM  G_e = Y_e^T X_e                  ESFK  the three of a layer's gradient in one launch
//
// Sums have the order of kernels/ops.h: an expert's rows have the bits that linear and
// linear_backward_input give them alone, and its weights' gradient those of linear_backward_weight.
// Where choices of a token meet they are added in the experts' order. There are no atomics.
//
// The grouped operators of kernels/ops.h are the same kernels for the trainer, whose experts are
// pages that lie anywhere and whose rows the host knows. Here, for a layer that stays on a GPU as a
// whole, the weights are one tensor, and the host need not know how many rows an expert has, so
// that nothing waits for the routing to be read back.
//
// All pointers are to memory of the stream's device. Asynchronous.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace pagoda {

// Rows sorted by expert (HEXA-MoE's re-index vector without its padding): those of expert e are
// [offsets[e], offsets[e + 1]). The host need not know the offsets.
struct ExpertRows {
  const int32_t* offsets;  // (num_experts + 1)
  int64_t num_experts;
  int64_t rows;  // at least offsets[num_experts]
};

class ExpertOps {
 public:
  virtual ~ExpertOps() = default;

  // Sorts the choices that are not -1: rows[i] is the token and choices[i] the position t*k + j in
  // `experts` of row i, tokens in order within an expert.
  // experts (tokens, k), offsets (num_experts + 1), rows, choices (tokens k)
  virtual void reindex(const int32_t* experts, int64_t tokens, int64_t k, int64_t num_experts,
                       int32_t* offsets, int32_t* rows, int32_t* choices, Stream& s) = 0;

  // y[i] = x[index[i]] w_e^T + bias_e.   x (N, in), index (rows) or none: x[i]; w (E, out, in),
  // bias (E, out) of dt or none, y (rows, out) of y_dt
  virtual void esmm(DType dt, const ExpertRows& e, const void* x, const int32_t* index,
                    const void* w, const void* bias, int64_t in, int64_t out, DType y_dt, void* y,
                    Stream& s) = 0;
  // y[index[i]] += scale[i] (x[i] w_e^T), with a launch for each expert, since the tokens of one
  // expert are distinct. x (rows, in), index, scale (rows), y (tokens, out) fp32
  virtual void esmm_combine(DType dt, const ExpertRows& e, const void* x, const void* w,
                            int64_t in, int64_t out, const int32_t* index, const float* scale,
                            int64_t tokens, float* y, Stream& s) = 0;
  // dx[i] = dy[index[i]] w_e.   dy (N, out), dx (rows, in) of dx_dt
  virtual void esmm_backward_input(DType dt, const ExpertRows& e, const void* dy,
                                   const int32_t* index, const void* w, int64_t in, int64_t out,
                                   DType dx_dt, void* dx, Stream& s) = 0;
  // sums_e += the sum of x[index[i]], in kRowBlock blocks.   x (N, dim), sums (E, dim) fp32
  virtual void ess(DType dt, const ExpertRows& e, const void* x, const int32_t* index, int64_t dim,
                   float* sums, Stream& s) = 0;
  // dw_e += sum of dy[dy_index[i]]^T x[x_index[i]], in kRowBlock blocks; without `add` as if dw
  // held zeros.   dy (N, out), x (M, in), dw (E, out, in) fp32
  virtual void estmm(DType dt, const ExpertRows& e, const void* dy, const int32_t* dy_index,
                     const void* x, const int32_t* x_index, int64_t in, int64_t out, bool add,
                     float* dw, Stream& s) = 0;
  // The gradient of one layer of all experts: esmm_backward_input, estmm and, where dbias is not
  // null, ess, with their bits.
  virtual void esfk(DType dt, const ExpertRows& e, const void* dy, const int32_t* dy_index,
                    const void* x, const int32_t* x_index, const void* w, int64_t in, int64_t out,
                    DType dx_dt, void* dx, bool add, float* dw, float* dbias, Stream& s) = 0;
};

// Ops for streams of `device`, a GPU (if the build has CUDA); and emulated ones, like
// make_emulated_ops().
std::unique_ptr<ExpertOps> make_cuda_expert_ops(Device& device);
std::unique_ptr<ExpertOps> make_emulated_expert_ops(bool bf16_cores, int multiprocessors);

}  // namespace pagoda
