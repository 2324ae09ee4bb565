#include "model/workspace.h"

namespace pagoda {
namespace {

// What the backward reads.
void carve_attention_results(Carver& carver, const ModelConfig& c, const StepSize& size,
                             AttentionSpace& a) {
  const int64_t t = size.microbatch_tokens, mat = dtype_bytes(size.dtype);
  const int64_t q_dim = c.num_heads * c.head_dim;
  const int64_t qkv_dim = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
  a.normed = carver.take_bytes(t * c.hidden_size * mat);
  a.rstd = carver.take<float>(t);
  a.qkv = carver.take_bytes(t * qkv_dim * mat);
  // Only a norm's backward needs what was there before it.
  a.rotated = c.family->qk_norm == QkNorm::kNone ? a.qkv : carver.take_bytes(t * qkv_dim * mat);
  a.q_rstd = carver.take<float>(t * c.num_heads);
  a.k_rstd = carver.take<float>(t * c.num_kv_heads);
  a.out = carver.take_bytes(t * q_dim * mat);
  a.lse = carver.take<float>(t * c.num_heads);
}

AttentionSpace carve_attention(Carver& carver, const ModelConfig& c, const StepSize& size) {
  const int64_t t = size.microbatch_tokens, mat = dtype_bytes(size.dtype);
  const int64_t q_dim = c.num_heads * c.head_dim;
  const int64_t qkv_dim = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim;
  AttentionSpace a;
  carve_attention_results(carver, c, size, a);
  a.projected = carver.take_bytes(t * c.hidden_size * mat);
  if (!size.training) return a;
  a.dout = carver.take_bytes(t * q_dim * mat);
  a.dqkv = carver.take_bytes(t * qkv_dim * mat);
  return a;
}

MlpSpace carve_mlp(Carver& carver, const ModelConfig& c, const StepSize& size) {
  MlpSpace m;
  const int64_t dense = c.num_moe_layers() < c.num_layers ? c.intermediate_size : 0;
  const int64_t mat = dtype_bytes(size.dtype), t = size.microbatch_tokens;
  const int64_t bytes = t * std::max(dense, c.shared_intermediate_size) * mat;
  if (bytes == 0) return m;
  m.gate_up = carver.take_bytes(2 * bytes);
  m.act = carver.take_bytes(bytes);
  if (size.training) m.dact = carver.take_bytes(bytes);
  if (c.shared_intermediate_size == 0) return m;
  m.gate = carver.take<float>(t);
  if (!size.training) return m;
  m.dgate = carver.take<float>(t);
  m.dlogits = carver.take_bytes(t * mat);
  return m;
}

HeadSpace carve_head(Carver& carver, const ModelConfig& c, const StepSize& size) {
  const int64_t rows = size.logits_rows();
  const int64_t matrix = size.microbatch_tokens * c.hidden_size * dtype_bytes(size.dtype);
  HeadSpace h;
  h.normed = carver.take_bytes(matrix);
  h.rstd = carver.take<float>(size.microbatch_tokens);
  h.logits = carver.take<float>(rows * c.vocab_size);
  if (!size.training) return h;
  h.dlogits = h.logits;
  if (size.dtype != DType::kF32) {
    h.dlogits = carver.take_bytes(rows * c.vocab_size * dtype_bytes(size.dtype));
  }
  h.dnormed = carver.take_bytes(matrix);
  return h;
}

CacheSpace carve_cache(Carver& carver, const ModelConfig& c, const StepSize& size) {
  CacheSpace k;
  if (size.cache.sequences == 0) return k;
  k.sequence = carver.take<int32_t>(size.pass_tokens());
  k.wanted = carver.take<int32_t>(size.wanted_tokens());
  k.keys_and_values = carver.take_bytes(c.num_layers * size.cache.layer_elements(c) *
                                        dtype_bytes(size.dtype));
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

void StepSpace::carve(Carver& carver, const ModelConfig& c, const TensorTable& table,
                      const StepSize& size) {
  const int64_t n = size.tokens(), m = size.microbatches;
  const int64_t k = c.experts_per_token, e = c.num_experts;
  tokens = carver.take<int32_t>(n);
  targets = carver.take<int32_t>(n);
  positions = carver.take<int32_t>(n);
  loss_weights = carver.take<float>(n);
  padding = carver.take<uint8_t>(n);
  loss_sums = carver.take<double>(m);
  experts = carver.take<int32_t>(n * k);
  weights = carver.take<float>(n * k);
  rows = carver.take<int32_t>(n * k);
  choices = carver.take<int32_t>(n * k);
  scale = carver.take<float>(size.group_rows());
  counts = carver.take<int32_t>(m * e);
  prob_sums = carver.take<double>(m * e);
  attention = carve_attention(carver, c, size);
  mlp = carve_mlp(carver, c, size);
  head = carve_head(carver, c, size);
  first_kept = size.first_kept(c);
  microbatches = m;
  Carver during_training = carver;
  cache = carve_cache(carver, c, size);
  if (!size.training) return;
  carve_training(during_training, c, table, size);
  carver.used = std::max(carver.used, during_training.used);
  carve_kept(carver, c, size);
}

void StepSpace::carve_kept(Carver& carver, const ModelConfig& c, const StepSize& size) {
  kept_attention.clear();
  kept_mlp.clear();
  for (int64_t l = first_kept; l < c.num_layers; ++l) {
    const int64_t f = c.is_moe_layer(l) ? c.shared_intermediate_size : c.intermediate_size;
    for (int64_t b = 0; b < microbatches; ++b) {
      carve_attention_results(carver, c, size, kept_attention.emplace_back(attention));
      MlpSpace& m = kept_mlp.emplace_back(mlp);
      if (f > 0) m.gate_up = carver.take_bytes(size.microbatch_tokens * 2 * f *
                                               dtype_bytes(size.dtype));
    }
  }
}

void StepSpace::carve_training(Carver& carver, const ModelConfig& c, const TensorTable& table,
                               const StepSize& size) {
  const int64_t n = size.tokens(), t = size.microbatch_tokens, m = size.microbatches;
  const int64_t mat = dtype_bytes(size.dtype), d = c.hidden_size;
  const int64_t k = c.experts_per_token, e = c.num_experts;
  dweights = carver.take<float>(n * k);
  dnormed = carver.take_bytes(t * d * mat);
  dlogits = carver.take_bytes(t * e * mat);
  aux_grad = carver.take<float>(m * e);
  int64_t largest = 0;
  for (const RecordSpec& record : table.records) {
    if (record.kind == RecordKind::kLayer) largest = std::max(largest, record.num_elements);
  }
  layer_grad = carver.take<float>(largest);
  table_grad = carver.take<float>(d + c.vocab_size * d);
}

void ExpertSpace::carve(Carver& carver, const ModelConfig& c, const TensorTable& table,
                        const StepSize& size) {
  const int64_t block = size.group_rows() * c.moe_intermediate_size * dtype_bytes(size.dtype);
  gate_up = carver.take_bytes(2 * block);
  act = carver.take_bytes(block);
  scratch_bytes = size.on_gpu ? gpu_scratch_bytes(op_sizes(c, table, size)) : 0;
  scratch = carver.take<std::byte>(scratch_bytes);
  if (!size.training) return;
  dact = carver.take_bytes(block);
  grad = carver.take<float>(std::min(size.group_blocks, c.num_experts) * 3 * c.hidden_size *
                            c.moe_intermediate_size);
  square_sums = carver.take<double>(static_cast<int64_t>(table.records.size()));
  finite = carver.take<int32_t>(static_cast<int64_t>(table.records.size()));
  kept_gate_up.assign(static_cast<size_t>(c.num_layers), nullptr);
  for (int64_t l = size.first_kept(c); l < c.num_layers; ++l) {
    if (!c.is_moe_layer(l)) continue;
    kept_gate_up[static_cast<size_t>(l)] = carver.take_bytes(
        size.tokens() * c.experts_per_token * 2 * c.moe_intermediate_size *
        dtype_bytes(size.dtype));
  }
}

}  // namespace pagoda
