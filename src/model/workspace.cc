#include "model/workspace.h"

namespace pagoda {
namespace {

// What the backward reads.
void lay_out_attention_results(WorkspaceArena& arena, const ModelConfig& c, const StepSize& size,
                               AttentionSpace& a) {
  const int64_t t = size.microbatch_tokens, mat = dtype_bytes(size.dtype);
  const int64_t q_dim = c.num_heads * c.head_dim;
  const int64_t qkv_dim = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
  a.normed = arena.take_bytes(t * c.hidden_size * mat);
  a.rstd = arena.take<float>(t);
  a.qkv = arena.take_bytes(t * qkv_dim * mat);
  // Only a norm's backward needs what was there before it.
  a.rotated = c.family->qk_norm == QkNorm::kNone ? a.qkv : arena.take_bytes(t * qkv_dim * mat);
  a.q_rstd = arena.take<float>(t * c.num_heads);
  a.k_rstd = arena.take<float>(t * c.num_kv_heads);
  a.out = arena.take_bytes(t * q_dim * mat);
  a.lse = arena.take<float>(t * c.num_heads);
}

AttentionSpace lay_out_attention(WorkspaceArena& arena, const ModelConfig& c,
                                 const StepSize& size) {
  const int64_t t = size.microbatch_tokens, mat = dtype_bytes(size.dtype);
  const int64_t q_dim = c.num_heads * c.head_dim;
  const int64_t qkv_dim = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
  AttentionSpace a;
  lay_out_attention_results(arena, c, size, a);
  a.projected = arena.take_bytes(t * c.hidden_size * mat);
  if (!size.training) return a;
  a.dout = arena.take_bytes(t * q_dim * mat);
  a.dqkv = arena.take_bytes(t * qkv_dim * mat);
  return a;
}

MlpSpace lay_out_mlp(WorkspaceArena& arena, const ModelConfig& c, const StepSize& size) {
  MlpSpace m;
  const int64_t dense = c.num_moe_layers() < c.num_layers ? c.intermediate_size : 0;
  const int64_t mat = dtype_bytes(size.dtype), t = size.microbatch_tokens;
  const int64_t bytes = t * std::max(dense, c.shared_intermediate_size) * mat;
  if (bytes == 0) return m;
  m.gate_up = arena.take_bytes(2 * bytes);
  m.act = arena.take_bytes(bytes);
  if (size.training) m.dact = arena.take_bytes(bytes);
  if (c.shared_intermediate_size == 0) return m;
  m.gate = arena.take<float>(t);
  if (!size.training) return m;
  m.dgate = arena.take<float>(t);
  m.dlogits = arena.take_bytes(t * mat);
  return m;
}

HeadSpace lay_out_head(WorkspaceArena& arena, const ModelConfig& c, const StepSize& size) {
  const int64_t rows = size.logits_rows();
  const int64_t matrix = size.microbatch_tokens * c.hidden_size * dtype_bytes(size.dtype);
  HeadSpace h;
  h.normed = arena.take_bytes(matrix);
  h.rstd = arena.take<float>(size.microbatch_tokens);
  h.logits = arena.take<float>(rows * c.vocab_size);
  if (!size.training) return h;
  h.dlogits = h.logits;
  if (size.dtype != DType::kF32) {
    h.dlogits = arena.take_bytes(rows * c.vocab_size * dtype_bytes(size.dtype));
  }
  h.dnormed = arena.take_bytes(matrix);
  return h;
}

CacheSpace lay_out_cache(WorkspaceArena& arena, const ModelConfig& c, const StepSize& size) {
  CacheSpace k;
  if (size.cache.sequences == 0) return k;
  k.sequence = arena.take<int32_t>(size.pass_tokens());
  k.wanted = arena.take<int32_t>(size.wanted_tokens());
  k.keys_and_values =
      arena.take_bytes(c.num_layers * size.cache.layer_elements(c) * dtype_bytes(size.dtype));
  return k;
}

// Of any task on a device.
OpSizes op_sizes(const ModelConfig& c, const TensorTable& table, const StepSize& size) {
  OpSizes sizes{.tokens = size.microbatch_tokens,
                .heads = c.num_heads,
                .head_dim = c.head_dim,
                .num_experts = c.num_experts,
                .experts_per_token = c.experts_per_token};
  for (const RecordSpec& record : table.records) {
    sizes.gradient_elements = std::max(sizes.gradient_elements, record.num_elements);
    sizes.spans = std::max(sizes.spans, record.num_tensors);
  }
  return sizes;
}

}  // namespace

void StepSpace::lay_out(WorkspaceArena& arena, const ModelConfig& c, const TensorTable& table,
                        const StepSize& size) {
  const int64_t n = size.tokens(), m = size.microbatches;
  const int64_t k = c.experts_per_token, e = c.num_experts;
  tokens = arena.take<int32_t>(n);
  targets = arena.take<int32_t>(n);
  positions = arena.take<int32_t>(n);
  loss_weights = arena.take<float>(n);
  padding = arena.take<uint8_t>(n);
  loss_sums = arena.take<double>(m);
  experts = arena.take<int32_t>(n * k);
  weights = arena.take<float>(n * k);
  rows = arena.take<int32_t>(n * k);
  choices = arena.take<int32_t>(n * k);
  scale = arena.take<float>(size.group_rows());
  counts = arena.take<int32_t>(m * e);
  prob_sums = arena.take<double>(m * e);
  attention = lay_out_attention(arena, c, size);
  mlp = lay_out_mlp(arena, c, size);
  head = lay_out_head(arena, c, size);
  first_kept = size.first_kept(c);
  microbatches = m;
  WorkspaceArena during_training = arena;
  cache = lay_out_cache(arena, c, size);
  if (!size.training) return;
  lay_out_training(during_training, c, table, size);
  arena.used = std::max(arena.used, during_training.used);
  lay_out_saved(arena, c, size);
}

void StepSpace::lay_out_saved(WorkspaceArena& arena, const ModelConfig& c, const StepSize& size) {
  kept_attention.clear();
  kept_mlp.clear();
  for (int64_t l = first_kept; l < c.num_layers; ++l) {
    const int64_t f = c.is_moe_layer(l) ? c.shared_intermediate_size : c.intermediate_size;
    for (int64_t b = 0; b < microbatches; ++b) {
      lay_out_attention_results(arena, c, size, kept_attention.emplace_back(attention));
      MlpSpace& m = kept_mlp.emplace_back(mlp);
      if (f > 0)
        m.gate_up = arena.take_bytes(size.microbatch_tokens * 2 * f * dtype_bytes(size.dtype));
    }
  }
}

void StepSpace::lay_out_training(WorkspaceArena& arena, const ModelConfig& c,
                                 const TensorTable& table, const StepSize& size) {
  const int64_t n = size.tokens(), t = size.microbatch_tokens, m = size.microbatches;
  const int64_t mat = dtype_bytes(size.dtype), d = c.hidden_size;
  const int64_t k = c.experts_per_token, e = c.num_experts;
  dweights = arena.take<float>(n * k);
  dnormed = arena.take_bytes(t * d * mat);
  dlogits = arena.take_bytes(t * e * mat);
  aux_grad = arena.take<float>(m * e);
  int64_t largest = 0;
  for (const RecordSpec& record : table.records) {
    if (record.kind == RecordKind::kLayer) largest = std::max(largest, record.num_elements);
  }
  layer_grad = arena.take<float>(largest);
  table_grad = arena.take<float>(d + c.vocab_size * d);
}

void ExpertSpace::lay_out(WorkspaceArena& arena, const ModelConfig& c, const TensorTable& table,
                          const StepSize& size) {
  const int64_t block = size.group_rows() * c.moe_intermediate_size * dtype_bytes(size.dtype);
  gate_up = arena.take_bytes(2 * block);
  act = arena.take_bytes(block);
  scratch_bytes = size.on_gpu ? gpu_scratch_bytes(op_sizes(c, table, size)) : 0;
  scratch = arena.take<std::byte>(scratch_bytes);
  if (!size.training) return;
  dact = arena.take_bytes(block);
  grad = arena.take<float>(std::min(size.group_blocks, c.num_experts) * 3 * c.hidden_size *
                           c.moe_intermediate_size);
  square_sums = arena.take<double>(static_cast<int64_t>(table.records.size()));
  finite = arena.take<int32_t>(static_cast<int64_t>(table.records.size()));
  kept_gate_up.assign(static_cast<size_t>(c.num_layers), nullptr);
  for (int64_t l = size.first_kept(c); l < c.num_layers; ++l) {
    if (!c.is_moe_layer(l)) continue;
    kept_gate_up[static_cast<size_t>(l)] =
        arena.take_bytes(size.tokens() * c.experts_per_token * 2 * c.moe_intermediate_size *
                         dtype_bytes(size.dtype));
  }
}

}  // namespace pagoda
