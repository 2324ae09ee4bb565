// The pieces of the transformer, each the work of one kind of task, with forward and backward side
// by side.
//
// Every function enqueues ops on `s` and returns. Weights are the bytes of a record's weight page;
// gradients are fp32 arrays in the record's layout, added to. Working memory is a Workspace or an
// ExpertSpace, which say what they hold between tasks. A layer saves its input, the residual after
// attention, and the chosen experts; backward functions compute the rest again, unless the working
// memory saved it (model/workspace.h).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"
#include "model/frozen_tensors.h"
#include "model/tensors.h"
#include "model/workspace.h"

namespace pagoda {

// Where each tensor of a dense layer record lies, in elements; -1: it has none.
struct LayerOffsets {
  // A convolution's b, c and x lie where queries, keys and values do.
  int64_t norm1 = 0, qkv = 0, qkv_bias = 0, q_norm = 0, k_norm = 0, o = 0, norm2 = 0;
  int64_t taps = -1, sinks = -1, o_bias = -1;
  int64_t q_heads = -1, latent_heads = -1;
  int64_t router = -1, router_bias = -1, correction = -1, shared_gate = -1;
  int64_t gate_up = -1, down = -1;  // tensors of a dense MLP or a shared expert
};

// Rows of an expert in a group (plan/step/expert_blocks.h): `count` rows of the re-index vector
// from `first` on, which lie in the group from `at` on. Rows of padding are zeros; they are
// computed and not combined. at + count + padding <= group_rows().
struct GroupRows {
  int64_t first = 0, at = 0, count = 0, padding = 0;
  int64_t computed() const { return count + padding; }
};
// An expert of a group, or a part of one.
struct GroupExpert {
  const void* weights = nullptr;
  GroupRows rows;
  bool first = false;    // these are its first rows: its gradient begins here
  int64_t columns = 0;   // f, or of its part
  float* gradient = nullptr;  // training; nullptr: no expert of the group trains
};

// Where a microbatch's gradients of a dense record are added.
struct GradientSum {
  float* data = nullptr;  // PageTable::gradient_sum
  bool first = false;     // the sum begins here, at zero
};

class Blocks {
 public:
  // Gradients of matrices of which nothing trains are left out: these stay zero. `table`, `frozen`
  // and `ops` outlive the object.
  Blocks(const ModelConfig& config, const TensorTable& table, const FrozenTensors& frozen,
         const WorkspaceSize& size, Ops& ops);

  // Sets the rows of a microbatch from here on, at most those that the spaces were made for.
  void set_microbatch_tokens(int64_t tokens) { size_.microbatch_tokens = tokens; }
  int64_t microbatch_tokens() const { return size_.microbatch_tokens; }

  // Rows [first, first + T) of the step are microbatch b: first = b * T.
  // document_start is relative to the microbatch, in host memory.
  struct Documents {
    std::span<const int32_t> start;  // documents + 1 entries
  };

  void embed(int64_t b, const void* embedding, void* x, const Workspace& w, Stream& s) const;
  // May overwrite dresidual (T, d).
  void embed_backward(int64_t b, void* dresidual, GradientSum sum, const Workspace& w,
                      Stream& s) const;

  // Attention, or the gated short convolution that some layers have in its place.
  // x, middle (T, d)
  void attention(int64_t layer, int64_t b, const void* weights, const void* x, Documents documents,
                 void* middle, const Workspace& w, Stream& s) const;
  // dresidual (T, d): gradient of `middle` in, of x out.
  void attention_backward(int64_t layer, int64_t b, const void* weights, const void* x,
                          Documents documents, void* dresidual, GradientSum sum, const Workspace& w,
                          Stream& s) const;

  // Attention in a pass of generation: tokens of b, the only microbatch that is attended to with
  // this workspace, attend to the cache and join it.
  void cached_attention(int64_t layer, int64_t b, const void* weights, const void* x, void* middle,
                        const Workspace& w, Stream& s) const;

  // Norms the rows of b and chooses their experts. Writes the choices to `choices` (T, k), or with
  // `replay` reads them from there.
  void route(int64_t layer, int64_t b, const void* weights, const void* middle, int32_t* choices,
             bool replay, const LayerBuffers& in, const Workspace& w, Stream& s) const;
  // Sets the sum that experts will add to: to the shared expert's output, or to zero.
  void begin_sum(int64_t layer, int64_t b, const void* weights, const LayerBuffers& in,
                 const Workspace& w, Stream& s) const;
  // begin_sum for the gradient with respect to the normed rows. `sum`: of the shared expert's
  // gradients, which lie behind the record's others.
  void begin_sum_backward(int64_t layer, int64_t b, const void* weights, const LayerBuffers& in,
                          GradientSum sum, const Workspace& w, Stream& s) const;
  // in.dresidual: gradient of the layer's output in, of `middle` out.
  // `sum`: of the record's gradients but for the shared expert's; attention_backward adds to them.
  // z_slope: of Ops::route_backward, with WorkspaceSize::z_loss.
  void route_backward(int64_t layer, int64_t b, const void* weights, const void* middle,
                      const LayerBuffers& in, GradientSum sum, float z_slope, const Workspace& w,
                      Stream& s) const;
  // next = middle + sum over experts
  void residual(const void* middle, const float* sum, void* next, Stream& s) const;

  void dense_mlp(int64_t layer, int64_t b, const void* weights, const void* middle, void* next,
                 const Workspace& w, Stream& s) const;
  // dresidual (T, d): gradient of the layer's output in, of `middle` out.
  void dense_mlp_backward(int64_t layer, int64_t b, const void* weights, const void* middle,
                          void* dresidual, GradientSum sum, const Workspace& w, Stream& s) const;

  // Copies microbatch b's rows of a group; each run holds one expert's rows, experts in order. Rows
  // of padding are zeroed; b is -1 if the group is nothing but padding. plan/step/pages.h has the
  // layout of inbound and outbound.
  struct Padding {
    int64_t at = 0, count = 0;  // rows of the group
  };
  // What a page of rows on their way to experts has, one array behind the other: in the forward
  // inputs; in the backward also gradients and weights, or, where the inputs have stayed, these
  // alone.
  enum class RowArrays : uint8_t { kInputs, kAll, kGradients };
  // group_rows: all of the group, its padding too.
  void dispatch(std::span<const RowRun> runs, int64_t group_rows, Padding padding, int64_t b,
                const LayerBuffers& in, void* inbound, RowArrays arrays, const Workspace& w,
                Stream& s) const;
  // Notes where microbatch b's rows of a group are, in `in`, for experts that read them there; if
  // `in` has a sum, also where they add what they give.
  void locate(std::span<const RowRun> runs, int64_t b, const LayerBuffers& in, bool backward,
              const Workspace& w, const ExpertSpace& e, Stream& s) const;
  // Takes the gradients of microbatch b's routing weights from experts_backward without outbound.
  void take_weight_gradients(std::span<const RowRun> runs, int64_t b, const Workspace& w,
                             const ExpertSpace& e, Stream& s) const;
  // Rows that came from other devices.
  struct Inbound {
    const void* rows = nullptr;  // none: all are read in place
    const void* kept = nullptr;  // backward: the inputs, which have stayed, so that `rows` has none
  };
  // The same of rows of inbound.
  void locate_inbound(std::span<const RowRun> runs, int64_t group_rows, const Inbound& inbound,
                      bool backward, const ExpertSpace& e, Stream& s) const;
  // Copies a parcel (plan/step/expert_blocks.h), which is laid out like inbound, to its rows of
  // inbound.
  void place_rows(std::span<const RowRun> runs, int64_t parcel_rows, int64_t group_rows,
                  Padding padding, const void* parcel, void* inbound, RowArrays arrays,
                  Stream& s) const;
  // Copies the parcel's rows of outbound to the parcel, which is laid out like it.
  void pack_rows(std::span<const RowRun> runs, int64_t group_rows, int64_t parcel_rows,
                 const void* outbound, void* parcel, bool backward, Stream& s) const;
  // The experts of a group, whose rows follow one another in inbound, or without it are where
  // locate() found them. Neighbours of equal columns are multiplied together. An expert's output,
  // and the gradient of its input, are rounded to the compute dtype, as a row that leaves the
  // expert's device. Without outbound they are added to the sums that locate() found, with the bits
  // of combine().
  void experts(int64_t layer, std::span<const GroupExpert> group, const Inbound& inbound,
               void* outbound, const ExpertSpace& w, Stream& s) const;
  void experts_backward(int64_t layer, std::span<const GroupExpert> group, const Inbound& inbound,
                        void* outbound, const ExpertSpace& w, Stream& s) const;
  void combine(std::span<const RowRun> runs, int64_t group_rows, int64_t b, const void* outbound,
               bool backward, float* sum, const Workspace& w, Stream& s) const;

  // Writes the loss of b, summed over targets, to w.loss_sums[b]. With a total_weight > 0 it also
  // computes the gradient of the step's sum divided by total_weight: that of x into dresidual (T,
  // d), those of norm and table into `sum`. tied_embedding: the embedding's weights, or
  // nullptr.
  void head(int64_t b, const void* weights, const void* tied_embedding, const void* x,
            double total_weight, void* dresidual, GradientSum sum, const Workspace& w,
            Stream& s) const;

  // Writes the logits of the first n wanted rows of x (w.cache.wanted) to w.head.logits (n, V).
  void logits(int64_t n, const void* weights, const void* tied_embedding, const void* x,
              const Workspace& w, Stream& s) const;

  const LayerOffsets& offsets(int64_t layer) const { return offsets_[layer]; }

 private:
  const void* at(const void* base, int64_t elements) const {
    return static_cast<const std::byte*>(base) + elements * dtype_bytes(dt_);
  }
  void* at(void* base, int64_t elements) const {
    return static_cast<std::byte*>(base) + elements * dtype_bytes(dt_);
  }
  void scale(DType dt, double factor, int64_t n, void* x, Stream& s) const;
  // A matrix (out, in) of a record, `offset` elements from its start.
  struct Matrix {
    int64_t record, offset, in, out;
  };
  bool trains(const Matrix& m) const;
  // Adds the gradient of the matrix by which rows x (n, in) became those whose gradient is dout (n,
  // out) to its record's, grad, if it trains.
  void matrix_gradient(const Matrix& m, const void* dout, const void* x, int64_t n, float* grad,
                       Stream& s) const;
  AttentionShape attention_shape(int64_t layer, const void* weights) const;
  int64_t qkv_dim() const;  // of queries, keys and values together
  RouterShape router_shape() const;
  // Bytes of a row of each array.
  std::vector<int64_t> row_bytes(RowArrays arrays) const;
  void gather_padded(DType dt, const void* from, const int32_t* index, std::span<const RowRun> runs,
                     Padding padding, int64_t dim, void* group, Stream& s) const;
  // The gates of the shared expert's rows (T), to w.mlp.gate.
  void shared_gates(const LayerOffsets& o, const void* weights, const void* rows,
                    const Workspace& w, Stream& s) const;
  void shared_gates_backward(int64_t layer, const void* weights, const void* rows, float* grad,
                             float* sum, const Workspace& w, Stream& s) const;
  // The MLP's first half: rows (T, d) -> m.gate_up (T, 2f), m.act (T, f)
  void mlp_inner(const LayerOffsets& o, const void* weights, const void* rows, int64_t f,
                 const MlpSpace& m, Stream& s) const;
  // Neighbours in a group that have equal columns, f; n rows, of which the first is the group's
  // row `at`. `experts`: with rows from there on.
  struct EqualExperts {
    std::vector<GroupExpert> experts;
    int64_t at = 0, n = 0, f = 0;
  };
  static std::vector<EqualExperts> equal_experts(std::span<const GroupExpert> group);
  // (n, 2f) for such rows: the layer's own memory if it is saved, else the common one.
  void* gate_up_of(int64_t layer, std::span<const GroupExpert> group, const ExpertSpace& w) const;
  // What the experts of a group read.
  struct ExpertInput {
    InputRows rows;
    InputRows gradients;  // of their outputs; training
    const float* scale;   // routing weights; training
    ExpertInput from(int64_t row, int64_t row_bytes) const {
      return {rows.from(row, row_bytes), gradients.from(row, row_bytes), scale + row};
    }
  };
  void experts_backward(int64_t layer, const EqualExperts& group, const ExpertInput& input,
                        const OutputRows& dx, float* dscale, const ExpertSpace& w, Stream& s) const;
  // Where experts of a group give the row `row` and those behind it. scale: of what is added.
  OutputRows expert_output(void* outbound, int64_t row, const float* scale,
                           const ExpertSpace& w) const;
  ExpertInput expert_input(int64_t group_rows, const Inbound& inbound, const ExpertSpace& w) const;
  SwigluShape swiglu_shape() const;  // of experts
  // The experts' weights, or gradients, from an element of their records on. bias: likewise, -1:
  // there is none.
  std::vector<RowsOfWeight> weights_of(std::span<const GroupExpert> group, int64_t element,
                                       int64_t bias = -1) const;
  std::vector<RowsOfGradient> gradients_of(std::span<const GroupExpert> group,
                                           int64_t element) const;
  void norm_queries_and_keys(const LayerOffsets& o, const void* weights, const AttentionSpace& a,
                             Stream& s) const;
  void norm_queries_and_keys_backward(const LayerOffsets& o, const void* weights,
                                      const AttentionSpace& a, float* grad, Stream& s) const;
  void project_attention(int64_t layer, const int32_t* positions, const void* weights,
                         const void* x, const AttentionSpace& a, Stream& s) const;
  void attention_inner(int64_t layer, const int32_t* positions, const void* weights, const void* x,
                       Documents documents, const AttentionSpace& a, Stream& s) const;
  // The same for a layer that convolves: b, c and x into a.qkv, the result into a.out.
  void convolution_inner(int64_t layer, const int32_t* positions, const void* weights,
                         const void* x, const AttentionSpace& a, Stream& s) const;
  void project_convolution(int64_t layer, const void* weights, const void* x,
                           const AttentionSpace& a, Stream& s) const;
  void cached_convolution(int64_t layer, const int32_t* positions, const void* weights,
                          const void* x, const Workspace& w, Stream& s) const;
  // From a.dout to a.dqkv.
  void convolution_gradient(int64_t layer, const int32_t* positions, const void* weights,
                            const AttentionSpace& a, float* grad, Stream& s) const;
  void attention_gradient(int64_t layer, const int32_t* positions, const void* weights,
                          Documents documents, const AttentionSpace& a, float* grad,
                          Stream& s) const;
  // Latent attention's way to a.qkv, which is a.rotated, and back from a.dqkv to a.dlatents.
  LatentShape latent_shape() const;
  void project_latents(int64_t layer, const int32_t* positions, const void* weights,
                       const void* x, const AttentionSpace& a, Stream& s) const;
  void latents_gradient(int64_t layer, const int32_t* positions, const void* weights,
                        const AttentionSpace& a, float* grad, Stream& s) const;
  // The gradient of a latent, (T, rank), from that of the heads that came of it, (T, heads).
  struct Latent {
    int64_t layer, rank, heads, norm, weight;  // norm, weight: offsets
    const void *values, *normed;
    const float* rstd;
  };
  void latent_gradient(const Latent& latent, const void* weights, const void* dheads, void* to,
                       float* grad, Stream& s) const;
  int64_t query_columns() const;  // of a.latents
  // What attention gives, without the zeros that fill values up: a.cut or a.out.
  const void* values_of(const AttentionSpace& a, Stream& s) const;
  // Elements of a token that is projected (to a.qkv, or to latents), and of what comes of it.
  int64_t projected_dim(int64_t layer) const;
  int64_t mixed_dim(int64_t layer) const;
  // Adds what biases give to the gradients of routing weights, (n) at dscale, and theirs to the
  // experts'. dgate_up (n, 2f), dout (n, d), scale (n), n the group's rows; overwrites w.dact.
  void expert_biases_backward(const EqualExperts& group, const void* dgate_up,
                              const ExpertInput& input, float* dscale, const ExpertSpace& w,
                              Stream& s) const;
  void add_attention(int64_t layer, const void* weights, const void* x, void* middle,
                     const AttentionSpace& a, Stream& s) const;

  ModelConfig c_;
  const TensorTable& table_;
  const FrozenTensors& frozen_;
  WorkspaceSize size_;
  DType dt_;
  Ops& ops_;
  std::vector<LayerOffsets> offsets_;
  std::vector<int64_t> cache_at_;  // (layers) elements before the layer's part of the cache
  // (layers) elements of the dense record, and those of its shared expert
  std::vector<int64_t> record_elements_, shared_elements_;
};

}  // namespace pagoda
