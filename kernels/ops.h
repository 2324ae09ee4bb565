// Every operation of the model, declared once, forward beside backward.
//
// Conventions
//  - Tensors are dense, row-major, in memory of the stream's device; shapes stand in the comments.
//  - `Mat` pointers (void*) hold elements of the call's DType; float* and int32_t* are what they
//  say.
//  - All arithmetic is fp32 inside (sums of a dot product in fp32); results are rounded once, to
//    nearest-even, when they are stored as bf16.
//  - Calls are asynchronous: they enqueue on `s` and return. Pointers stay valid until then.
//  - Results depend on shapes and values only: never on thread count, timing or alignment. Sums run
//    in a fixed order; "+=" outputs are read, added to in that order and written.
//  - Rows of an expert are computed the same whether in one call or several: a call of n rows gives
//    each row the bits it would have in a call of any other size (forward and input gradients).
//  - Misuse (negative sizes, head sizes that do not divide) is a bug: CHECK.
// kernels/cpu defines what is correct; another backend is tested against it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <string>

#include "base/dtype.h"
#include "device/device.h"
#include "kernels/rope.h"

namespace pagoda {

// Row blocks: kernels that sum over rows (weight gradients) do it in blocks of this many rows, and
// callers hand expert rows over in blocks of exactly this size except the last. Part of the
// arithmetic: changing it changes bits.
inline constexpr int64_t kRowBlock = 256;

// The most experts, or runs of rows, that a GPU computes in one launch. A call may have any number
// of them, whose weights lie anywhere; an expert's rows get the bits they would get alone.
inline constexpr int64_t kMostTogether = 16;

// The most rows that short_conv looks at for one.
inline constexpr int64_t kMaxConvWidth = 64;

// Rows [first, first + count) of the call's matrices and the weight they are multiplied with.
struct RowsOfWeight {
  int64_t first = 0, count = 0;
  const void* w = nullptr;  // (out, in) of dt
  const void* bias = nullptr;  // (out) of dt, which grouped_linear adds; nullptr: none
};
struct RowsOfGradient {
  int64_t first = 0, count = 0;
  float* dw = nullptr;  // (out, in)
  bool add = false;     // false: as if dw held zeros
};
// The rows that a call reads: dense, or each where it lies, in any number of matrices. So experts
// read tokens in place through an index (HEXA-MoE 3.2). Bits are those of dense rows.
struct InputRows {
  const void* dense = nullptr;        // (n, dim) of dt, if
  const void* const* each = nullptr;  // (n) is none: where each row is (locate_rows)

  InputRows(const void* rows) : dense(rows) {}
  static InputRows at(const void* const* each) {
    InputRows rows(nullptr);
    rows.each = each;
    return rows;
  }
  // The rows from `first` on.
  InputRows from(int64_t first, int64_t row_bytes) const {
    if (each != nullptr) return at(each + first);
    return static_cast<const std::byte*>(dense) + first * row_bytes;
  }
  // Where row i is. REQUIRES: `each` is none, or memory that the host reads.
  const void* row(int64_t i, int64_t row_bytes) const {
    return each != nullptr ? each[i] : static_cast<const std::byte*>(dense) + i * row_bytes;
  }
};
// The rows that a call gives: dense, or each added to a sum where that lies. So experts that come
// one after the other add what they give to the sums of tokens in place (HEXA-MoE 3.2). A row is
// rounded to the call's type, scaled and then added: bits are those of dense rows that
// scatter_add_rows adds.
struct OutputRows {
  void* dense = nullptr;              // (n, dim) of the call's type, if
  const void* const* sums = nullptr;  // (n) is none: where each (dim) fp32 is (locate_rows)
  const float* scale = nullptr;       // (n), of sums; nullptr: 1

  OutputRows(void* rows) : dense(rows) {}
  static OutputRows added(const void* const* sums, const float* scale) {
    OutputRows rows(nullptr);
    rows.sums = sums;
    rows.scale = scale;
    return rows;
  }
  // The rows from `first` on.
  OutputRows from(int64_t first, int64_t row_bytes) const {
    if (sums != nullptr) return added(sums + first, scale == nullptr ? nullptr : scale + first);
    return static_cast<std::byte*>(dense) + first * row_bytes;
  }
  // REQUIRES: sums, in memory that the host reads.
  float* sum(int64_t i) const { return static_cast<float*>(const_cast<void*>(sums[i])); }
  float scale_of(int64_t i) const { return scale == nullptr ? 1.0f : scale[i]; }
};
// Entries [from, from + count) of a list of rows, which are rows [to, to + count) of a block.
struct RowRun {
  int64_t from = 0, to = 0, count = 0;
};

struct AttentionShape {
  int64_t tokens = 0;    // T, rows of q, k, v
  int64_t heads = 0;     // query heads
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;  // even
  // Elements from one token's row to the next, so that q, k, v may be parts of one fused
  // projection (T, (heads + 2 kv_heads) * head_dim). out and dout are dense (heads * head_dim).
  int64_t qkv_stride = 0;
  int64_t window = 0;  // keys that a query sees, the newest and its own; 0: all
  // A logit for each head that takes part in the softmax and has no value (attention sinks, Xiao et
  // al. 2023, as in gpt-oss).   (heads) of dt; nullptr: there are none
  const void* sinks = nullptr;
};

// Heads of multi-head latent attention, as attention takes them: a query and a key have `plain`
// numbers and then `rotated` ones, which all keys of a token share; a value has `value` numbers.
struct LatentShape {
  int64_t tokens = 0;
  int64_t heads = 0;
  int64_t plain = 0, rotated = 0, value = 0;  // rotated: even
  bool neighbours = true;   // rotated pairs are numbers (2i, 2i + 1); else (i, i + rotated / 2)
  float query_scale = 1.0f;  // queries are multiplied by it
  // Elements from one token's q, and one token's shared part, to the next.
  int64_t q_stride = 0, shared_stride = 0;

  int64_t head_dim() const { return std::max(plain + rotated, value); }  // zeros fill it
  void check() const;  // CHECKs all that
};

inline void LatentShape::check() const {
  CHECK(tokens >= 0 && heads > 0 && plain > 0 && value > 0 && rotated > 0 && rotated % 2 == 0);
  CHECK(q_stride >= heads * (plain + rotated) && shared_stride >= rotated);
}

// SwiGLU with the changes of gpt-oss; as it stands it is the plain one.
struct SwigluShape {
  float slope = 1.0f;                                    // of the sigmoid
  float limit = std::numeric_limits<float>::infinity();  // gate is at most that, and up's magnitude
  float offset = 0.0f;                                   // added to up
};

// How a router chooses experts for a token, and what they weigh (Ops::route).
struct RouterShape {
  int64_t num_experts = 0;   // E
  int64_t k = 0;             // experts of a token
  bool renormalise = false;  // weights of a token sum to `scale`
  bool sigmoid = false;      // scores are sigmoids, each by itself; else their softmax
  float scale = 1.0f;        // of weights
  float least_sum = 1e-20f;  // added to the sum that renormalised weights are divided by
  // Neighbouring experts form equal groups; the k are of groups_chosen of them, which have at least
  // k experts. A group has at least two experts unless all groups are chosen.
  int64_t groups = 1, groups_chosen = 1;
  bool group_by_best = false;  // groups are chosen by their best expert, not by their two best

  bool excludes() const { return groups_chosen < groups; }
  void check() const;  // CHECKs all that
};

inline void RouterShape::check() const {
  CHECK(k > 0 && k <= num_experts && groups > 0 && num_experts % groups == 0);
  CHECK(groups_chosen > 0 && groups_chosen <= groups);
  CHECK(k <= num_experts / groups * groups_chosen);
  CHECK(!excludes() || group_by_best || num_experts / groups >= 2);
}

class Ops {
 public:
  virtual ~Ops() = default;

  // out[t] = table[ids[t]].   ids (T), table (V, d), out (T, d)
  virtual void embedding(DType dt, const int32_t* ids, const void* table, int64_t tokens,
                         int64_t dim, void* out, Stream& s) = 0;
  // dtable[ids[t]] += dout[t], tokens in order; the row of pad_token (-1: none) is left as it is.
  //   dtable (V, d) fp32
  virtual void embedding_backward(DType dt, const int32_t* ids, const void* dout, int64_t tokens,
                                  int64_t dim, int64_t pad_token, float* dtable, Stream& s) = 0;

  // Root mean square norm over the last dimension (Zhang & Sennrich 2019; as in Qwen3: statistics
  // in fp32, x * rstd rounded to dt, then times weight). Row r of x is x + r * stride elements,
  // `groups` vectors of `dim` behind each other in a row (per-head norms); out has x's layout. rstd
  // (rows * groups) is saved for the backward.   x, out (rows, groups, dim), weight (dim)
  virtual void rmsnorm(DType dt, const void* x, const void* weight, float eps, int64_t rows,
                       int64_t groups, int64_t dim, int64_t stride, void* out, float* rstd,
                       Stream& s) = 0;
  // dx = gradient (overwrites; may alias dout), dweight += sum over rows, in kRowBlock blocks.
  // x, dout, dx share the layout of the forward.
  virtual void rmsnorm_backward(DType dt, const void* x, const void* weight, const float* rstd,
                                const void* dout, int64_t rows, int64_t groups, int64_t dim,
                                int64_t stride, void* dx, float* dweight, Stream& s) = 0;

  // y = x w^T.   x (n, in), w (out, in), y (n, out) of type `y_dt`
  virtual void linear(DType dt, const void* x, const void* w, int64_t n, int64_t in, int64_t out,
                      DType y_dt, void* y, Stream& s) = 0;
  // y = x w^T + bias, rounded once.   bias (out) of dt, y (n, out) of type `y_dt`
  virtual void linear_biased(DType dt, const void* x, const void* w, const void* bias, int64_t n,
                             int64_t in, int64_t out, DType y_dt, void* y, Stream& s) = 0;
  // dx = dy w.   dy (n, out) of dt, w (out, in), dx (n, in) of type `dx_dt`
  virtual void linear_backward_input(DType dt, const void* dy, const void* w, int64_t n, int64_t in,
                                     int64_t out, DType dx_dt, void* dx, Stream& s) = 0;
  // dw += dy^T x, in kRowBlock blocks of rows in order; without `add`, as if dw held zeros. Rows of
  // zeros behind the others change no bit of a dw that began at zero.   dw (out, in) fp32
  virtual void linear_backward_weight(DType dt, const void* dy, const void* x, int64_t n,
                                      int64_t in, int64_t out, bool add, float* dw, Stream& s) = 0;

  // The three above for the rows of several experts, which follow one another; they give the bits
  // of a call for each expert. In linear_backward_weight blocks begin with each expert's rows. Only
  // the CPU adds y and dx to sums, expert after expert: a GPU computes experts side by side. Rows
  // of one expert have different sums.
  virtual void grouped_linear(DType dt, InputRows x, std::span<const RowsOfWeight> experts,
                              int64_t in, int64_t out, DType y_dt, OutputRows y, Stream& s) = 0;
  virtual void grouped_linear_backward_input(DType dt, InputRows dy,
                                             std::span<const RowsOfWeight> experts, int64_t in,
                                             int64_t out, DType dx_dt, OutputRows dx,
                                             Stream& s) = 0;
  virtual void grouped_linear_backward_weight(DType dt, InputRows dy, InputRows x,
                                              std::span<const RowsOfGradient> experts, int64_t in,
                                              int64_t out, Stream& s) = 0;

  // dbias += sum over rows of dy, in kRowBlock blocks in order.   dy (n, dim), dbias (dim) fp32
  virtual void bias_backward(DType dt, const void* dy, int64_t n, int64_t dim, float* dbias,
                             Stream& s) = 0;
  // The same for the rows of several experts, each row times scale[row] (nullptr: 1); blocks begin
  // with each expert's rows.   dy (n, dim), scale (n) fp32, an expert's dw (dim)
  virtual void grouped_bias_backward(DType dt, InputRows dy, const float* scale,
                                     std::span<const RowsOfGradient> experts, int64_t dim,
                                     Stream& s) = 0;

  // Rotary embedding in place on the first `rotated` numbers of each of a row's `heads` heads
  // (half-split as in Hugging Face Llama and Qwen: pairs (i, i + rotated/2)); angle = position *
  // frequency[i], cos and sin computed in double and rounded to fp32, after they were multiplied by
  // the rotation's size. `inverse` is the backward: it rotates back.   x (T, heads, head_dim),
  // rotated even and at most head_dim
  virtual void rope(DType dt, const int32_t* positions, const Rotation& rotation, int64_t tokens,
                    int64_t heads, int64_t head_dim, int64_t rotated, int64_t stride, bool inverse,
                    void* x, Stream& s) = 0;

  // q, k and v of latent attention's heads, which lie behind one another in qkv. Numbers are
  // rotated as rope rotates them, and queries scaled, before they are rounded once. kv has a head's
  // plain numbers of its key and then its value.   q (T, heads, plain + rotated), shared (T,
  // rotated), kv (T, heads, plain + value), qkv (T, 3, heads, head_dim)
  virtual void latent_heads(DType dt, const LatentShape& shape, const int32_t* positions,
                            const Rotation& rotation, const void* q, const void* shared,
                            const void* kv, void* qkv, Stream& s) = 0;
  // dq, dshared and dkv are overwritten (layouts of q, shared and kv, strides included); dshared is
  // the sum over heads in order, in fp32, rotated back.   dqkv like qkv
  virtual void latent_heads_backward(DType dt, const LatentShape& shape, const int32_t* positions,
                                     const Rotation& rotation, const void* dqkv, void* dq,
                                     void* dshared, void* dkv, Stream& s) = 0;
  // out[r] = [x[r] | zeros]: `columns` numbers of a row of x and then `zeros` times 0; the rest of
  // out's row stays.   rows of x_stride and of out_stride elements
  virtual void copy_columns(DType dt, const void* x, int64_t n, int64_t columns, int64_t x_stride,
                            int64_t zeros, int64_t out_stride, void* out, Stream& s) = 0;

  // Causal attention inside each document: softmax(q k^T / sqrt(head_dim)) v over keys of the same
  // document at or before the query, in the window, and over the head's sink. Documents are rows
  // [document_start[i], document_start[i+1]); document_start has documents + 1 entries, first 0,
  // last T, in host memory, copied at the call. Tiled: never more than a tile of scores in memory.
  // lse (heads, T) fp32 is saved for the backward. Probabilities, and in the backward their
  // gradients, are rounded to dt before they multiply.
  virtual void attention(DType dt, const AttentionShape& shape, const int32_t* document_start,
                         int64_t documents, const void* q, const void* k, const void* v, void* out,
                         float* lse, Stream& s) = 0;
  // dq, dk, dv overwritten (layout and stride of q, k, v).
  virtual void attention_backward(DType dt, const AttentionShape& shape,
                                  const int32_t* document_start, int64_t documents, const void* q,
                                  const void* k, const void* v, const void* out, const float* lse,
                                  const void* dout, void* dq, void* dk, void* dv, Stream& s) = 0;
  // dsinks[h] -= sum over rows of p (dout out), p the sink's probability, in kRowBlock blocks.
  // REQUIRES: shape.sinks.   out, dout (T, heads head_dim), lse (heads, T), dsinks (heads) fp32
  virtual void attention_sinks_backward(DType dt, const AttentionShape& shape, const void* out,
                                        const float* lse, const void* dout, float* dsinks,
                                        Stream& s) = 0;

  // Attention of new tokens over those before them, for generation. The cache has a row of keys and
  // values for every position of every sequence: (sequences, capacity, 2 kv_heads head_dim), first
  // the keys. Stores k and v of each new token t at position[t] of sequence[t]; then
  //   out[t] = softmax(q[t] k^T / sqrt(head_dim)) v    over positions 0..position[t] of sequence[t]
  // with window and sinks as for attention, and probabilities in fp32. A token's result does not
  // depend on the other new tokens. REQUIRES: position < capacity; earlier positions were stored by
  // earlier calls or by this one. sequence, position (T), q, k, v as for attention, out (T, heads
  // head_dim)
  virtual void cached_attention(DType dt, const AttentionShape& shape, int64_t capacity,
                                const int32_t* sequence, const int32_t* position, const void* q,
                                const void* k, const void* v, void* cache, void* out,
                                Stream& s) = 0;

  // The gated short convolution of LFM2: u = b * x rounded to dt, then
  //   out[t] = c[t] * sum over j of taps[., j] * u[t - (width - 1) + j]    (j in order)
  // over rows of t's document, which begins where position is 0 and counts on by 1.
  // bcx (T, 3 dim) = [b | c | x], taps (dim, width), out (T, dim);
  // 2 <= width <= kMaxConvWidth
  virtual void short_conv(DType dt, const int32_t* positions, const void* bcx, const void* taps,
                          int64_t tokens, int64_t dim, int64_t width, void* out, Stream& s) = 0;
  // dbcx is overwritten and is not bcx; dtaps += sum over rows, in kRowBlock blocks in order.
  // dbcx (T, 3 dim) like bcx, dtaps (dim, width) fp32
  virtual void short_conv_backward(DType dt, const int32_t* positions, const void* bcx,
                                   const void* taps, const void* dout, int64_t tokens,
                                   int64_t dim, int64_t width, void* dbcx, float* dtaps,
                                   Stream& s) = 0;
  // short_conv of new tokens behind those before them, for generation, with the bits of short_conv.
  // Position p of a sequence has its u in row p % (width - 1) of the sequence's state, while it is
  // among the newest. REQUIRES: the new tokens of a sequence follow one another, and earlier
  // positions came in earlier calls. sequence, position (T), state (sequences, width - 1, dim)
  virtual void cached_short_conv(DType dt, const int32_t* sequence, const int32_t* position,
                                 const void* bcx, const void* taps, int64_t tokens, int64_t dim,
                                 int64_t width, void* state, void* out, Stream& s) = 0;

  // out = gate sigmoid(slope gate) * (up + offset), product in fp32; limits cut gate and up before.
  // gate_up (n, 2f) = [gate | up], out (n, f)
  virtual void swiglu(DType dt, const SwigluShape& shape, const void* gate_up, int64_t n, int64_t f,
                      void* out, Stream& s) = 0;
  // For a dense MLP pass row_scale = nullptr. For an expert, dact = d(loss)/d(expert output) times
  // the down projection, before the routing weight; row_scale (n) is the routing weight:
  //   dscale[t]   = sum_j dact[t,j] * act[t,j]          (gradient of the routing weight; if scaled)
  //   dgate_up    = swiglu'(gate_up) * (row_scale * dact)
  //   scaled_act  = row_scale * act                     (input of the down weight's gradient)
  // with act = swiglu(gate_up) recomputed and rounded to dt.
  // gate_up, dgate_up (n, 2f); dact, scaled_act (n, f); dscale (n) fp32. dgate_up may alias
  // gate_up.
  virtual void swiglu_backward(DType dt, const SwigluShape& shape, const void* gate_up,
                               const void* dact, const float* row_scale, int64_t n, int64_t f,
                               void* dgate_up, void* scaled_act, float* dscale, Stream& s) = 0;

  // Router: probs = softmax(logits), or sigmoid(logits) of each by itself, in fp32. Chosen are the
  // k experts with the largest probs + correction, ties to the lowest expert, largest first; with
  // groups only experts of the groups_chosen groups whose two largest (probs + correction) have the
  // largest sum, or whose largest is the largest, ties to the lowest group. weight = their probs,
  // without the correction, divided by their sum + least_sum when `renormalise`, times scale.
  // counts[e] = choices of e, prob_sums[e] = sum over tokens of e's share of the token's probs,
  // which for softmax are probs[., e] (kRowBlock blocks, in order). Padding takes no expert: its
  // experts are -1, its weights 0, and it counts nowhere. With `replay` experts are read, not
  // chosen, and -1 marks padding; otherwise `padding` does (nullptr: there is none). logits, probs
  // (T, E) fp32 (may alias); correction (3, E) of dt, an expert's is the sum of its three, first to
  // last (nullptr: none); padding (T), 1: is padding; experts, weights (T, k); counts (E);
  // prob_sums (E)
  virtual void route(const RouterShape& shape, const float* logits, DType dt,
                     const void* correction, const uint8_t* padding, int64_t tokens, bool replay,
                     float* probs, int32_t* experts, float* weights, int32_t* counts,
                     double* prob_sums, Stream& s) = 0;
  // dlogits from the gradient of the weights and of the balance loss: the share of the token's
  // probs that e has also has the direct gradient aux_grad[e] (E). log_sums (T), log_sums() of the
  // logits, each have the gradient z_slope * log_sums[t]; nullptr: none, as REQUIRED of sigmoids.
  // The choice has no gradient, so neither has the correction. Padding (expert -1) has none: 0.
  // dlogits (T, E) of type dt
  virtual void route_backward(DType dt, const RouterShape& shape, const float* probs,
                              const int32_t* experts, const float* weights, const float* dweights,
                              const float* aux_grad, const float* log_sums, float z_slope,
                              int64_t tokens, void* dlogits, Stream& s) = 0;
  // What a router's z-loss is made of (ST-MoE, arXiv 2202.08906, equation 5):
  //   log_sums[t] = log(sum over e of exp(logits[t, e]))
  //   square_sum  = sum over tokens of log_sums[t]^2, in double and in order
  // where padding, as for route, adds nothing. logits (T, E) fp32, log_sums (T), square_sum (1)
  virtual void log_sums(const float* logits, const uint8_t* padding, int64_t tokens,
                        int64_t num_experts, float* log_sums, double* square_sum, Stream& s) = 0;

  // Re-index vector (HEXA-MoE 3.2, without its padding): sorts the T*k choices by expert, tokens in
  // order within an expert; choices of -1 are left out. rows[first[e] + i] is the token and
  // choices[first[e] + i] the position t*k + j in `experts` of e's i-th row. first (E) is in host
  // memory, copied at the call; with room left between experts, several calls fill one vector.
  // experts (T, k), rows, choices (at least the T*k choices made)
  virtual void index_rows(const int32_t* experts, int64_t tokens, int64_t k, int64_t num_experts,
                          const int64_t* first, int32_t* rows, int32_t* choices, Stream& s) = 0;

  // out[i] = x[rows[i]].   x (N, d), rows (n), out (n, d)
  virtual void gather_rows(DType dt, const void* x, const int32_t* rows, int64_t n, int64_t dim,
                           void* out, Stream& s) = 0;
  // y[rows[i]] += scale[i] * x[i] (scale nullptr: 1). rows are distinct.   x (n, d), y (N, d) fp32
  virtual void scatter_add_rows(DType dt, const void* x, const int32_t* rows, const float* scale,
                                int64_t n, int64_t dim, float* y, Stream& s) = 0;

  // out[to + i] = x[rows[from + i]] for each run.
  virtual void gather_row_runs(DType dt, const void* x, const int32_t* rows,
                               std::span<const RowRun> runs, int64_t dim, void* out,
                               Stream& s) = 0;
  // out[to + i] = the address of row rows[from + i] of x, or without `rows` of its row from + i,
  // for each run.   x (N, d), out (InputRows::each)
  virtual void locate_rows(DType dt, const void* x, const int32_t* rows,
                           std::span<const RowRun> runs, int64_t dim, const void** out,
                           Stream& s) = 0;
  // out[to + i] = x[from + i] for each run; they do not overlap.
  virtual void copy_row_runs(DType dt, const void* x, std::span<const RowRun> runs, int64_t dim,
                             void* out, Stream& s) = 0;
  // y[rows[from + i]] += scale[to + i] * x[to + i], run after run. The rows of a run ascend. Rows
  // of several runs may meet; then the earlier run is added first.
  virtual void scatter_add_row_runs(DType dt, const void* x, const int32_t* rows,
                                    const float* scale, std::span<const RowRun> runs, int64_t dim,
                                    float* y, Stream& s) = 0;

  // x[t] *= scale[t].   x (n, d) fp32, scale (n)
  virtual void scale_rows(const float* scale, int64_t n, int64_t dim, float* x, Stream& s) = 0;

  // x = round(factor x).   x (n) of dt
  virtual void scale(DType dt, float factor, int64_t n, void* x, Stream& s) = 0;

  // The gate of a shared expert: out = 1 / (1 + exp(-logits)).   logits, out (n) fp32, may alias
  virtual void sigmoid(const float* logits, int64_t n, float* out, Stream& s) = 0;
  // dlogits = dout out (1 - out).   out, dout (n) fp32, dlogits (n) of dt
  virtual void sigmoid_backward(DType dt, const float* out, const float* dout, int64_t n,
                                void* dlogits, Stream& s) = 0;

  // Moves a router's corrections towards equal loads (DeepSeek-V3, arXiv 2412.19437, section
  // 2.1.2): by speed upwards for an expert with fewer tokens than the mean of all, downwards for
  // one with more, each sum rounded to fp32. `parts` (3, experts) of dt holds a correction as the
  // sum of three numbers of bf16 (model/tensors.h, split_correction). load (experts) int32,
  // of which `total` is the sum.
  virtual void move_correction(DType dt, const int32_t* load, int64_t total, int64_t experts,
                               float speed, void* parts, Stream& s) = 0;

  // out = round(a + b).   a, out of dt, b of type b_dt; out may alias a or b (when of its type).
  virtual void add(DType dt, const void* a, DType b_dt, const void* b, int64_t n, void* out,
                   Stream& s) = 0;
  virtual void fill_zero(void* x, int64_t bytes, Stream& s) = 0;

  // Cross-entropy of one chunk of logits:
  //   loss_sum += sum_t weight[t] * (logsumexp(logits[t]) - logits[t, target[t]])   (rows in order)
  //   dlogits[t] = (softmax(logits[t]) - onehot(target[t])) * weight[t] * grad_scale
  // dlogits may be the logits' own memory when dt is fp32; nullptr: only the loss. A target < 0
  // counts as none: its weight is 0. logits (n, V) fp32, target, weight (n), dlogits (n, V) of dt
  virtual void cross_entropy(DType dt, const float* logits, const int32_t* target,
                             const float* weight, int64_t n, int64_t vocab, float grad_scale,
                             void* dlogits, double* loss_sum, Stream& s) = 0;

  // Rounds a finished gradient to dt and measures it: out = round(g), *sum_of_squares = sum of
  // round(g)^2 in double (fixed blocks of 4096 in order); non-finite values make it non-finite.
  virtual void finish_gradient(DType dt, const float* g, int64_t n, void* out,
                               double* sum_of_squares, Stream& s) = 0;
};

// What the bits of results depend on beside the inputs: the library that multiplies, and the
// processor features it uses.
std::string cpu_ops_build();

// The CPU's ops: any host stream. A stateless singleton.
Ops& cpu_ops();

}  // namespace pagoda
