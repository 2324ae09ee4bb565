// The pieces of the transformer, each as the work of one kind of task: forward beside backward.
//
// Every function enqueues ops on `s` and returns. Weights are the bytes of a record's weight page;
// gradients are fp32 arrays in the record's layout, added to. Working memory is a StepSpace (or an
// ExpertSpace): what is in it between tasks is said there. A layer saves its input, the residual
// after attention, and the chosen experts; backward functions compute the rest again, unless the
// working memory kept it (model/workspace.h).
#pragma once

#include <cstdint>
#include <span>

#include "kernels/ops.h"
#include "model/tensors.h"
#include "model/workspace.h"

namespace pagoda {

// Where each tensor of a dense layer record lies, in elements; -1: it has none.
struct LayerOffsets {
  int64_t norm1 = 0, qkv = 0, qkv_bias = 0, q_norm = 0, k_norm = 0, o = 0, norm2 = 0;
  int64_t router = -1, shared_gate = -1;
  int64_t gate_up = -1, down = -1;  // of a dense MLP or a shared expert
};

// Rows of an expert in a group (plan/step/expert_blocks.h): `count` of the re-index vector from
// `first` on, which lie in the group from `at` on. What pads them is zero, is computed with them
// and is not combined. at + count + padding <= group_rows().
struct GroupRows {
  int64_t first = 0, at = 0, count = 0, padding = 0;
  int64_t computed() const { return count + padding; }
};
// An expert of a group.
struct GroupExpert {
  const void* weights = nullptr;
  GroupRows rows;
  bool first = false;    // its first rows: the gradient begins with them
  int64_t gradient = 0;  // which of ExpertSpace::grad
};

class Blocks {
 public:
  Blocks(const ModelConfig& config, const TensorTable& table, const StepSize& size, Ops& ops);

  // Rows of a microbatch from here on, at most those the spaces were made for.
  void set_microbatch_tokens(int64_t tokens) { size_.microbatch_tokens = tokens; }

  // Rows [first, first + T) of the step are microbatch b: first = b * T.
  // document_start is relative to the microbatch, in host memory.
  struct Documents {
    std::span<const int32_t> start;  // documents + 1 entries
  };

  void embed(int64_t b, const void* embedding, void* x, const StepSpace& w, Stream& s) const;
  void embed_backward(int64_t b, const void* dresidual, const StepSpace& w, Stream& s) const;

  // x, middle (T, d)
  void attention(int64_t layer, int64_t b, const void* weights, const void* x, Documents documents,
                 void* middle, const StepSpace& w, Stream& s) const;
  // dresidual (T, d): gradient of `middle` in, of x out.
  void attention_backward(int64_t layer, int64_t b, const void* weights, const void* x,
                          Documents documents, void* dresidual, const StepSpace& w,
                          Stream& s) const;

  // Likewise for a pass of generation, microbatch 0, whose tokens attend to the cache and join it.
  void cached_attention(int64_t layer, const void* weights, const void* x, void* middle,
                        const StepSpace& w, Stream& s) const;

  // Norms the rows of b and chooses their experts; `choices` (T, k) is where they are kept, or with
  // `replay` where they come from.
  void route(int64_t layer, int64_t b, const void* weights, const void* middle, int32_t* choices,
             bool replay, const LayerBuffers& in, const StepSpace& w, Stream& s) const;
  // What experts will add to: the shared expert's output, or zero.
  void begin_sum(int64_t layer, int64_t b, const void* weights, const LayerBuffers& in,
                 const StepSpace& w, Stream& s) const;
  // Likewise of the gradient with respect to the normed rows, and clears the other gradients.
  void begin_sum_backward(int64_t layer, int64_t b, const void* weights, const LayerBuffers& in,
                          const StepSpace& w, Stream& s) const;
  // in.dresidual: gradient of the layer's output in, of `middle` out.
  void route_backward(int64_t layer, int64_t b, const void* weights, const void* middle,
                      const LayerBuffers& in, const StepSpace& w, Stream& s) const;
  // next = middle + sum over experts
  void residual(const void* middle, const float* sum, void* next, Stream& s) const;

  void dense_mlp(int64_t layer, int64_t b, const void* weights, const void* middle, void* next,
                 const StepSpace& w, Stream& s) const;
  // dresidual (T, d): as of route_backward.
  void dense_mlp_backward(int64_t layer, int64_t b, const void* weights, const void* middle,
                          void* dresidual, const StepSpace& w, Stream& s) const;

  // Microbatch b's rows of a group (-1: it has none but padding, which is zeroed behind them): an
  // expert's in each run, experts in order. Layout of inbound and outbound as in plan/step/pages.h.
  void dispatch(std::span<const RowRun> runs, GroupRows rows, int64_t b, const LayerBuffers& in,
                void* inbound, bool backward, const StepSpace& w, Stream& s) const;
  // The experts of a group, whose rows follow one another.
  void experts(int64_t layer, std::span<const GroupExpert> group, const void* inbound,
               void* outbound, const ExpertSpace& w, Stream& s) const;
  void experts_backward(int64_t layer, std::span<const GroupExpert> group, const void* inbound,
                        void* outbound, const ExpertSpace& w, Stream& s) const;
  void combine(std::span<const RowRun> runs, int64_t b, const void* outbound, bool backward,
               float* sum, const StepSpace& w, Stream& s) const;

  // Loss of b into w.loss_sums[b], summed over targets. With a total_weight > 0 also the gradient
  // of the sum over the step divided by total_weight: with respect to x, into dresidual (T, d), and
  // of norm and table, into table_grad. tied_embedding: the embedding's weights, or nullptr.
  void head(int64_t b, const void* weights, const void* tied_embedding, const void* x,
            double total_weight, void* dresidual, const StepSpace& w, Stream& s) const;

  // Logits of the first n wanted rows of x (w.cache.wanted) into w.head.logits (n, V).
  void logits(int64_t n, const void* weights, const void* tied_embedding, const void* x,
              const StepSpace& w, Stream& s) const;

  const LayerOffsets& offsets(int64_t layer) const { return offsets_[layer]; }

 private:
  const void* at(const void* base, int64_t elements) const {
    return static_cast<const std::byte*>(base) + elements * dtype_bytes(dt_);
  }
  void* at(void* base, int64_t elements) const {
    return static_cast<std::byte*>(base) + elements * dtype_bytes(dt_);
  }
  AttentionShape attention_shape() const;
  void gather_padded(DType dt, const void* from, const int32_t* index,
                     std::span<const RowRun> runs, GroupRows rows, int64_t dim, void* group,
                     Stream& s) const;
  // The MLP's first half: rows (T, d) -> m.gate_up (T, 2f), m.act (T, f)
  void mlp_inner(const LayerOffsets& o, const void* weights, const void* rows, int64_t f,
                 const MlpSpace& m, Stream& s) const;
  // (n, 2f) of a group's rows: where the layer keeps them, or in common.
  void* gate_up_of(int64_t layer, std::span<const GroupExpert> group, const ExpertSpace& w) const;
  // Their weights, or gradients, from an element of the expert's record on.
  std::vector<RowsOfWeight> weights_of(std::span<const GroupExpert> group, int64_t element) const;
  std::vector<RowsOfGradient> gradients_of(std::span<const GroupExpert> group, int64_t element,
                                           const ExpertSpace& w) const;
  void norm_queries_and_keys(const LayerOffsets& o, const void* weights, const AttentionSpace& a,
                             Stream& s) const;
  void norm_queries_and_keys_backward(const LayerOffsets& o, const void* weights,
                                      const AttentionSpace& a, float* grad, Stream& s) const;
  void project_attention(int64_t layer, const int32_t* positions, const void* weights,
                         const void* x, const AttentionSpace& a, Stream& s) const;
  void attention_inner(int64_t layer, const int32_t* positions, const void* weights, const void* x,
                       Documents documents, const AttentionSpace& a, Stream& s) const;
  void add_attention(int64_t layer, const void* weights, const void* x, void* middle,
                     const AttentionSpace& a, Stream& s) const;

  ModelConfig c_;
  StepSize size_;
  DType dt_;
  Ops& ops_;
  std::vector<LayerOffsets> offsets_;
  std::vector<int64_t> record_elements_;  // (layers) of the dense record
};

}  // namespace pagoda
