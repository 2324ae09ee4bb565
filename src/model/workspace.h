// The fixed working memory of a step on its devices. Everything here is sized before the run from
// the architecture and the tokens per step; nothing is allocated during a step. What a layer needs
// of all tokens is in pages (plan/step/pages.h), except for the chosen experts: a few (N, k)
// numbers.
//
// A layer that is kept (WorkspaceSize::saved_layers) has spaces of its own for what its backward
// reads, which stay from the step's forward; other layers share one space and compute it again. The
// bits are the same.
//
// Letters: N tokens of a step, M microbatches, T = N / M, d hidden size, k experts per token, E
// experts, f ffn, R = group_rows(), V vocabulary. "mat" elements are of the compute dtype.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"
#include "kernels/gpu_scratch.h"
#include "kernels/ops.h"
#include "plan/machine/model_shape.h"
#include "plan/sums/sum_shape.h"

namespace pagoda {

// Hands out pieces of one block of memory. With base nullptr it only counts.
struct WorkspaceArena {
  std::byte* base = nullptr;
  int64_t used = 0;

  template <typename T>
  T* take(int64_t count) {
    return static_cast<T*>(take_bytes(count * static_cast<int64_t>(sizeof(T))));
  }
  void* take_bytes(int64_t bytes) {
    void* at = base ? base + used : nullptr;
    used += align_up(bytes, 64);
    return at;
  }
};

// The size of the cache of keys and values in generation, of one microbatch of a pass.
struct CacheSize {
  int64_t sequences = 0;  // sequences generated together; 0: no generation
  int64_t positions = 0;  // cached positions of each sequence

  // Keys and values of all positions, or the newest products of a convolution.
  int64_t layer_elements(const ModelShape& model, int64_t layer) const;
  int64_t elements(const ModelShape& model) const;  // of all layers
};

struct WorkspaceSize {
  int64_t microbatches = 0;
  int64_t microbatch_tokens = 0;
  DType dtype = DType::kF32;
  bool training = true;
  CacheSize cache;
  bool on_gpu = false;  // a GPU's ops need scratch memory
  int64_t group_blocks = 1;  // row blocks of experts that are computed together
  int64_t saved_layers = 0;  // the last layers; only in training
  SumShape sums = {};
  bool pages_expert_sums = false;      // RunShape's
  std::vector<int> shard_device = {};  // RunShape's
  bool z_loss = false;                 // routers have one
  int64_t records = 0;  // records whose gradients a device finishes; 0: every record of the model
  int64_t first_kept(int64_t num_layers) const { return num_layers - saved_layers; }
  int64_t tokens() const { return microbatches * microbatch_tokens; }
  int64_t group_rows() const { return group_blocks * kRowBlock; }
  // Microbatches of a pass of generation, each of a device of its own. What trains has one.
  int64_t pass_microbatches() const { return training ? 1 : microbatches; }
  // The most new tokens of each, and the most of them whose logits are wanted.
  int64_t pass_tokens() const { return microbatch_tokens; }
  int64_t wanted_tokens() const {
    return std::min({kRowBlock, microbatch_tokens, cache.sequences});
  }
  // Rows of logits that are computed at a time.
  int64_t logits_rows() const {
    const bool only_generates = !training && cache.sequences > 0;
    return only_generates ? wanted_tokens() : std::min(kRowBlock, microbatch_tokens);
  }
};

// Space for one microbatch at a time. The backward reads the members down to lse. A convolution's
// b, c and x lie where queries, keys and values do; qkv and out have the wider of both widths.
struct AttentionSpace {
  void* normed = nullptr;     // (T, d) mat, input norm
  float* rstd = nullptr;      // (T)
  void* qkv = nullptr;        // (T, (heads + 2 kv_heads) head_dim) mat, as projected
  void* rotated = nullptr;    // q and k normed and rotated, in qkv's shape; without norms, qkv
  float* q_rstd = nullptr;    // (T, heads)
  float* k_rstd = nullptr;    // (T, kv_heads)
  void* out = nullptr;        // (T, heads head_dim) mat
  float* lse = nullptr;       // (heads, T)
  void* projected = nullptr;  // (T, d) mat
  void* dout = nullptr;       // (T, heads head_dim) mat, training
  void* dqkv = nullptr;       // like qkv, training
  // Latent attention (model/latent_block.cc). P: all that a token is projected to; q, c: ranks of
  // queries and of keys and values; a value has v numbers. The backward reads the first four.
  void* q_latent = nullptr;   // (T, q) mat, if queries have a latent; q_rstd is its norm's
  void* q_normed = nullptr;   // (T, q) mat
  void* kv_latent = nullptr;  // (T, c) mat; k_rstd is its norm's
  void* kv_normed = nullptr;  // (T, c) mat
  void* latents = nullptr;    // (T, P) mat
  void* queries = nullptr;    // (T, heads, plain + rotated) mat, from q_normed
  void* keys_values = nullptr;  // (T, heads, plain + v) mat
  void* cut = nullptr;        // (T, heads v) mat: out without zeros; nullptr: it has none
  void* dlatents = nullptr;   // like latents, training
};

// The MLP of a dense layer or of a shared expert; f is the larger of their widths.
struct MlpSpace {
  void* gate_up = nullptr;  // (T, 2 f) mat
  void* act = nullptr;      // (T, f) mat
  void* dact = nullptr;     // (T, f) mat, training
  // The gate of a shared expert.
  float* gate = nullptr;    // (T)
  float* dgate = nullptr;   // (T), training
  void* dlogits = nullptr;  // (T) mat, training
};

struct HeadSpace {
  void* normed = nullptr;    // (T, d) mat
  float* rstd = nullptr;     // (T)
  float* logits = nullptr;   // (logits_rows, V)
  void* dlogits = nullptr;   // (logits_rows, V) mat, training; the logits themselves in fp32
  void* dnormed = nullptr;   // (T, d) mat, training
};

// P new tokens of a microbatch of a pass of generation, W of them wanted. In a training session it
// shares its bytes with what only a training step uses; the session generates between steps.
struct CacheSpace {
  int32_t* sequence = nullptr;     // (P) each new token's sequence
  int32_t* wanted = nullptr;       // (W) the tokens whose logits are wanted
  // Layers follow one another: (sequences, positions, 2 kv_heads head_dim) mat, or the state of a
  // convolution, (sequences, conv_width - 1, d) mat.
  void* layers = nullptr;
};

// A microbatch's in-layer buffers (plan/step/pages.h); nullptr for those that a piece of work does
// not use.
struct LayerBuffers {
  void* normed = nullptr;     // (T, d) mat, input of router and experts
  float* rstd = nullptr;      // (T)
  float* probs = nullptr;     // (T, E)
  float* sum = nullptr;       // (T, d) sum over experts, or its gradient with respect to normed
  void* dresidual = nullptr;  // (T, d) mat, gradient of the residual stream
};

// Working memory on a device that attends to microbatches. What is counted for all N tokens has the
// values of those that it attends to.
struct Workspace {
  // The step's input, of all tokens.
  int32_t* tokens = nullptr;     // (N)
  int32_t* targets = nullptr;    // (N), -1: none
  int32_t* positions = nullptr;  // (N)
  float* loss_weights = nullptr;  // (N)
  uint8_t* padding = nullptr;     // (N), 1: padding, which no expert sees

  // Inside one layer, for all tokens of the step.
  int32_t* experts = nullptr;    // (N, k)
  float* weights = nullptr;      // (N, k)
  float* dweights = nullptr;     // (N, k), training
  int32_t* rows = nullptr;       // (N k) re-index vector, tokens counted from their microbatch's
  int32_t* choices = nullptr;    // (N k) the choice of each row, counted like rows
  float* scale = nullptr;        // (R)
  // (index_scratch_bytes) the scratch of the stream in which rows are sorted beside the
  // computation, on one of several GPUs
  std::byte* index_scratch = nullptr;
  int64_t index_scratch_bytes = 0;
  int32_t* counts = nullptr;     // (M, E)
  double* prob_sums = nullptr;   // (M, E)
  float* log_sums = nullptr;     // (N) Ops::log_sums, with z_loss
  double* log_squares = nullptr;  // (M)

  void* dnormed = nullptr;       // (T, d) mat, training
  void* dlogits = nullptr;       // (T, E) mat, router, training
  float* aux_grad = nullptr;     // (M, E), training
  double* loss_sums = nullptr;   // (M)

  AttentionSpace attention;
  MlpSpace mlp;
  HeadSpace head;
  CacheSpace cache;

  // The space of a layer: a saved layer has one for each microbatch of the device, the others share
  // one.
  const AttentionSpace& attention_of(int64_t layer, int64_t microbatch) const {
    return keeps(layer) ? kept_attention[kept(layer, microbatch)] : attention;
  }
  const MlpSpace& mlp_of(int64_t layer, int64_t microbatch) const {
    return keeps(layer) ? kept_mlp[kept(layer, microbatch)] : mlp;
  }
  bool keeps(int64_t layer) const { return layer >= first_kept; }

  void lay_out(WorkspaceArena& arena, const ModelShape& model, const WorkspaceSize& size,
               int device);

 private:
  void count_own(const WorkspaceArena& arena, const WorkspaceSize& size, int device);
  void lay_out_training(WorkspaceArena& arena, const ModelShape& model, const WorkspaceSize& size);
  void lay_out_saved(WorkspaceArena& arena, const ModelShape& model, const WorkspaceSize& size);
  size_t kept(int64_t layer, int64_t microbatch) const {
    return static_cast<size_t>((layer - first_kept) * num_own + own[microbatch]);
  }

  int64_t first_kept = 0, num_own = 0;
  std::vector<int64_t> own;  // [microbatch] its number among those of the device; -1: not its own
  std::vector<AttentionSpace> kept_attention;  // [kept layer][microbatch of the device]
  std::vector<MlpSpace> kept_mlp;  // [saved layer][microbatch of the device]; own gate_up
};

// Working memory on every device that computes experts.
struct ExpertSpace {
  void* gate_up = nullptr;     // (R, 2f) mat
  void* act = nullptr;         // (R, f) mat
  void* dact = nullptr;        // (R, f) mat, training
  // Where each row of a group is whose experts read in place (Blocks::locate); in training also
  // where the gradient of its output is. Where they add in place, its sum.
  const void **input_rows = nullptr, **gradient_rows = nullptr, **sum_rows = nullptr;  // (R)
  float* scale = nullptr;      // (R) its routing weight, in training or where it is added in place
  float* dscale = nullptr;     // (R) the gradient of that, where it is added in place, training
  float* grad = nullptr;       // elements of each expert of a group, at most E, training
  double* square_sums = nullptr;  // (records) sum of squares of each finished gradient, training
  int32_t* load = nullptr;        // (E) tokens of a layer's experts, on a GPU, training
  int32_t* finite = nullptr;  // (records) whether an update on a GPU left finite weights, training
  std::byte* scratch = nullptr;  // (scratch_bytes) the compute stream's scratch, on a GPU
  int64_t scratch_bytes = 0;
  // (sums_scratch_bytes) that of the stream in which sums of experts arrive, on a GPU
  std::byte* sums_scratch = nullptr;
  int64_t sums_scratch_bytes = 0;
  // [layer] (N k, 2f) mat, rows as in the layer's re-index vector; nullptr of those not kept
  std::vector<void*> kept_gate_up;

  void lay_out(WorkspaceArena& arena, const ModelShape& model, const WorkspaceSize& size);
};

// A device that attends holds a step's space, every device an expert's space.
void lay_out_workspace(WorkspaceArena& arena, const ModelShape& model, const WorkspaceSize& size,
                       int device, Workspace& step, ExpertSpace& expert);

// Bytes of the device's arena that the workspaces take, from its start.
int64_t workspace_bytes(const ModelShape& model, const WorkspaceSize& size, int device);

}  // namespace pagoda
