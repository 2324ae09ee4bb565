#include "model/workspace.h"

#include "model/tensors.h"

namespace pagoda {
namespace {

// Widths of one token's attention, in elements.
int64_t head_dim(const AttentionSizes& a) { return std::max(a.head_dim, a.value_head_dim); }
int64_t q_dim(const AttentionSizes& a) { return a.heads * head_dim(a); }
int64_t qkv_dim(const AttentionSizes& a) { return (a.heads + 2 * a.kv_heads) * head_dim(a); }

// What some layers of a model do: attend, convolve, or some this and some that.
struct Mixing {
  bool attends = false, convolves = false;

  static Mixing of(const ModelShape& model) {
    const int64_t conv = model.conv_layers();
    return {conv < model.num_layers(), conv > 0};
  }
  static Mixing of(const ModelShape& model, int64_t layer) {
    return {!model.convolves(layer), model.convolves(layer)};
  }
  // Elements of a token that is projected, and of what comes of it.
  int64_t projected(const ModelShape& model) const {
    return std::max(attends ? qkv_dim(model.attention) : 0, convolves ? 3 * model.hidden_size : 0);
  }
  int64_t mixed(const ModelShape& model) const {
    return std::max(attends ? q_dim(model.attention) : 0, convolves ? model.hidden_size : 0);
  }
};

// Lays out the members that the backward reads.
void lay_out_attention_results(WorkspaceArena& arena, const ModelShape& model,
                               const WorkspaceSize& size, const Mixing& mixing,
                               AttentionSpace& a) {
  const int64_t t = size.microbatch_tokens, mat = dtype_bytes(size.dtype);
  const AttentionSizes& sizes = model.attention;
  const int64_t qkv = t * mixing.projected(model) * mat;
  a.normed = arena.take_bytes(t * model.hidden_size * mat);
  a.rstd = arena.take<float>(t);
  a.qkv = arena.take_bytes(qkv);
  if (mixing.attends) {
    a.rotated = sizes.rotated_apart ? arena.take_bytes(t * qkv_dim(sizes) * mat) : a.qkv;
    a.q_rstd = arena.take<float>(t * sizes.heads);
    a.k_rstd = arena.take<float>(t * sizes.kv_heads);
  }
  a.out = arena.take_bytes(t * mixing.mixed(model) * mat);
  if (mixing.attends) a.lse = arena.take<float>(t * sizes.heads);
  if (!mixing.attends || !sizes.latent()) return;
  if (sizes.query_rank > 0) {
    a.q_latent = arena.take_bytes(t * sizes.query_rank * mat);
    a.q_normed = arena.take_bytes(t * sizes.query_rank * mat);
  }
  a.kv_latent = arena.take_bytes(t * sizes.kv_rank * mat);
  a.kv_normed = arena.take_bytes(t * sizes.kv_rank * mat);
}

// Lays out what only one task uses.
void lay_out_latents(WorkspaceArena& arena, const AttentionSizes& sizes, int64_t tokens,
                     DType dtype, bool training, AttentionSpace& a) {
  const int64_t element = tokens * dtype_bytes(dtype), queries = sizes.heads * sizes.head_dim;
  const int64_t plain = sizes.head_dim - sizes.rope_head_dim;
  const bool ranked = sizes.query_rank > 0;
  const int64_t projected =
      (ranked ? sizes.query_rank : queries) + sizes.kv_rank + sizes.rope_head_dim;
  a.latents = arena.take_bytes(projected * element);
  if (ranked) a.queries = arena.take_bytes(queries * element);
  a.keys_values = arena.take_bytes(sizes.heads * (plain + sizes.value_head_dim) * element);
  if (sizes.value_head_dim < sizes.head_dim) {
    a.cut = arena.take_bytes(sizes.heads * sizes.value_head_dim * element);
  }
  if (training) a.dlatents = arena.take_bytes(projected * element);
}

AttentionSpace lay_out_attention(WorkspaceArena& arena, const ModelShape& model,
                                 const WorkspaceSize& size) {
  const int64_t t = size.microbatch_tokens, mat = dtype_bytes(size.dtype);
  const Mixing mixing = Mixing::of(model);
  AttentionSpace a;
  lay_out_attention_results(arena, model, size, mixing, a);
  a.projected = arena.take_bytes(t * model.hidden_size * mat);
  if (model.attention.latent()) {
    lay_out_latents(arena, model.attention, t, size.dtype, size.training, a);
  }
  if (!size.training) return a;
  a.dout = arena.take_bytes(t * mixing.mixed(model) * mat);
  a.dqkv = arena.take_bytes(t * mixing.projected(model) * mat);
  return a;
}

bool has_dense_layer(const ModelShape& model) {
  return std::find(model.is_moe.begin(), model.is_moe.end(), 0) != model.is_moe.end();
}

MlpSpace lay_out_mlp(WorkspaceArena& arena, const ModelShape& model, const WorkspaceSize& size) {
  MlpSpace m;
  const int64_t dense = has_dense_layer(model) ? model.dense_ffn : 0;
  const int64_t mat = dtype_bytes(size.dtype), t = size.microbatch_tokens;
  const int64_t bytes = t * std::max(dense, model.shared_ffn) * mat;
  if (bytes == 0) return m;
  m.gate_up = arena.take_bytes(2 * bytes);
  m.act = arena.take_bytes(bytes);
  if (size.training) m.dact = arena.take_bytes(bytes);
  if (model.shared_ffn == 0) return m;
  m.gate = arena.take<float>(t);
  if (!size.training) return m;
  m.dgate = arena.take<float>(t);
  m.dlogits = arena.take_bytes(t * mat);
  return m;
}

HeadSpace lay_out_head(WorkspaceArena& arena, const ModelShape& model, const WorkspaceSize& size) {
  const int64_t rows = size.logits_rows();
  const int64_t matrix = size.microbatch_tokens * model.hidden_size * dtype_bytes(size.dtype);
  HeadSpace h;
  h.normed = arena.take_bytes(matrix);
  h.rstd = arena.take<float>(size.microbatch_tokens);
  h.logits = arena.take<float>(rows * model.vocab_size);
  if (!size.training) return h;
  h.dlogits = h.logits;
  if (size.dtype != DType::kF32) {
    h.dlogits = arena.take_bytes(rows * model.vocab_size * dtype_bytes(size.dtype));
  }
  h.dnormed = arena.take_bytes(matrix);
  return h;
}

CacheSpace lay_out_cache(WorkspaceArena& arena, const ModelShape& model,
                         const WorkspaceSize& size) {
  CacheSpace k;
  if (size.cache.sequences == 0) return k;
  k.sequence = arena.take<int32_t>(size.pass_tokens());
  k.wanted = arena.take<int32_t>(size.wanted_tokens());
  k.layers = arena.take_bytes(size.cache.elements(model) * dtype_bytes(size.dtype));
  return k;
}

// The largest calls of any task on a device.
OpSizes op_sizes(const ModelShape& model, const WorkspaceSize& size) {
  OpSizes sizes{.tokens = size.microbatch_tokens,
                .heads = model.attention.heads,
                .head_dim = head_dim(model.attention),
                .num_experts = model.num_experts,
                .experts_per_token = model.experts_per_token,
                .spans = kTensorRoles};
  for (const ModelRecord& record : model_records(model)) {
    sizes.gradient_elements = std::max(sizes.gradient_elements, record.num_elements);
  }
  return sizes;
}

}  // namespace

int64_t CacheSize::layer_elements(const ModelShape& model, int64_t layer) const {
  if (model.convolves(layer)) return sequences * (model.conv_width - 1) * model.hidden_size;
  const AttentionSizes& a = model.attention;
  return sequences * positions * 2 * a.kv_heads * head_dim(a);
}

int64_t CacheSize::elements(const ModelShape& model) const {
  int64_t all = 0;
  for (int64_t l = 0; l < model.num_layers(); ++l) all += layer_elements(model, l);
  return all;
}

void Workspace::lay_out(WorkspaceArena& arena, const ModelShape& model, const WorkspaceSize& size,
                        int device) {
  const int64_t n = size.tokens(), m = size.microbatches;
  const int64_t k = model.experts_per_token, e = model.num_experts;
  tokens = arena.take<int32_t>(n);
  targets = arena.take<int32_t>(n);
  positions = arena.take<int32_t>(n);
  loss_weights = arena.take<float>(n);
  padding = arena.take<uint8_t>(n);
  loss_sums = arena.take<double>(m);
  experts = arena.take<int32_t>(n * k);
  weights = arena.take<float>(n * k);
  rows = arena.take<int32_t>(n * k * model.parts.count());
  choices = arena.take<int32_t>(n * k * model.parts.count());
  scale = arena.take<float>(size.group_rows());
  const bool sorts_beside = size.on_gpu && !size.shard_device.empty();
  index_scratch_bytes = sorts_beside ? pagoda::index_scratch_bytes(op_sizes(model, size)) : 0;
  index_scratch = arena.take<std::byte>(index_scratch_bytes);
  counts = arena.take<int32_t>(m * e);
  prob_sums = arena.take<double>(m * e);
  if (size.z_loss) {
    log_sums = arena.take<float>(n);
    log_squares = arena.take<double>(m);
  }
  attention = lay_out_attention(arena, model, size);
  mlp = lay_out_mlp(arena, model, size);
  head = lay_out_head(arena, model, size);
  first_kept = size.first_kept(model.num_layers());
  count_own(arena, size, device);
  WorkspaceArena during_training = arena;
  // What trains generates by the first shard, in each stage; else all that attend do.
  bool generates = !size.training;
  for (size_t s = 0; s < std::max<size_t>(1, size.shard_device.size());
       s += static_cast<size_t>(size.sums.shards)) {
    generates = generates || device_of_shard(size.shard_device, static_cast<int64_t>(s)) == device;
  }
  if (generates) cache = lay_out_cache(arena, model, size);
  if (!size.training) return;
  lay_out_training(during_training, model, size);
  arena.used = std::max(arena.used, during_training.used);
  lay_out_saved(arena, model, size);  // a pass of generation uses it too
}

// What only counts bytes may be asked about billions of microbatches.
void Workspace::count_own(const WorkspaceArena& arena, const WorkspaceSize& size, int device) {
  const int64_t m = size.microbatches, shards = size.sums.shards;
  // A device attends to shards of one stage.
  int64_t own_shards = 0, stage = 0;
  for (int64_t s = 0; s < std::max(shards, std::ssize(size.shard_device)); ++s) {
    if (device_of_shard(size.shard_device, s) != device) continue;
    ++own_shards;
    stage = s / shards;
  }
  num_own = m / shards * own_shards;
  own.clear();
  for (int64_t b = 0, count = 0; b < m && arena.base != nullptr; ++b) {
    const int attends = device_of_shard(size.shard_device, stage * shards + size.sums.shard(b, m));
    own.push_back(attends == device ? count++ : -1);
  }
}

void Workspace::lay_out_saved(WorkspaceArena& arena, const ModelShape& model,
                              const WorkspaceSize& size) {
  kept_attention.clear();
  kept_mlp.clear();
  for (int64_t l = first_kept; l < model.num_layers(); ++l) {
    const int64_t f = model.is_moe[static_cast<size_t>(l)] ? model.shared_ffn : model.dense_ffn;
    const auto of_microbatch = [&](AttentionSpace& a, MlpSpace& m) {
      lay_out_attention_results(arena, model, size, Mixing::of(model, l), a);
      if (f > 0)
        m.gate_up = arena.take_bytes(size.microbatch_tokens * 2 * f * dtype_bytes(size.dtype));
    };
    if (arena.base == nullptr) {
      const int64_t before = arena.used;
      AttentionSpace a;
      MlpSpace m;
      of_microbatch(a, m);
      arena.used = before + num_own * (arena.used - before);
    }
    for (int64_t b = 0; b < num_own && arena.base != nullptr; ++b) {
      of_microbatch(kept_attention.emplace_back(attention), kept_mlp.emplace_back(mlp));
    }
  }
}

void Workspace::lay_out_training(WorkspaceArena& arena, const ModelShape& model,
                                 const WorkspaceSize& size) {
  const int64_t n = size.tokens(), t = size.microbatch_tokens, m = size.microbatches;
  const int64_t mat = dtype_bytes(size.dtype), d = model.hidden_size;
  const int64_t k = model.experts_per_token, e = model.num_experts;
  dweights = arena.take<float>(n * k);
  dnormed = arena.take_bytes(t * d * mat);
  dlogits = arena.take_bytes(t * e * mat);
  aux_grad = arena.take<float>(m * e);
}

void ExpertSpace::lay_out(WorkspaceArena& arena, const ModelShape& model,
                          const WorkspaceSize& size) {
  const int64_t columns = model.parts.most_columns(model.expert_ffn), parts = model.parts.count();
  const int64_t block = size.group_rows() * columns * dtype_bytes(size.dtype);
  gate_up = arena.take_bytes(2 * block);
  act = arena.take_bytes(block);
  input_rows = arena.take<const void*>(size.group_rows());
  sum_rows = arena.take<const void*>(size.group_rows());
  scale = arena.take<float>(size.group_rows());
  scratch_bytes = size.on_gpu ? gpu_scratch_bytes(op_sizes(model, size)) : 0;
  scratch = arena.take<std::byte>(scratch_bytes);
  if (!size.training) return;
  if (size.on_gpu && size.pages_expert_sums) {
    sums_scratch_bytes = gradient_scratch_bytes(op_sizes(model, size).gradient_elements);
    sums_scratch = arena.take<std::byte>(sums_scratch_bytes);
  }
  dact = arena.take_bytes(block);
  gradient_rows = arena.take<const void*>(size.group_rows());
  dscale = arena.take<float>(size.group_rows());
  if (!size.pages_expert_sums) {
    int64_t elements = 0;  // of an expert
    for (int64_t l = 0; l < model.num_layers(); ++l) {
      elements = std::max(elements, layer_parameters(model, l).expert);
    }
    if (parts > 1 && elements > 0) elements = 3 * model.hidden_size * columns;
    grad = arena.take<float>(std::min(size.group_blocks, model.num_experts * parts) * elements);
  }
  const int64_t records = size.records > 0 ? size.records : std::ssize(model_records(model));
  square_sums = arena.take<double>(records);
  finite = arena.take<int32_t>(records);
  if (size.on_gpu && model.router_correction) load = arena.take<int32_t>(model.num_experts);
  kept_gate_up.assign(static_cast<size_t>(model.num_layers()), nullptr);
  for (int64_t l = size.first_kept(model.num_layers()); l < model.num_layers(); ++l) {
    if (!model.is_moe[static_cast<size_t>(l)]) continue;
    kept_gate_up[static_cast<size_t>(l)] = arena.take_bytes(
        size.tokens() * model.experts_per_token * parts * 2 * columns * dtype_bytes(size.dtype));
  }
}

void lay_out_workspace(WorkspaceArena& arena, const ModelShape& model, const WorkspaceSize& size,
                       int device, Workspace& step, ExpertSpace& expert) {
  if (attends(size.shard_device, device)) step.lay_out(arena, model, size, device);
  expert.lay_out(arena, model, size);
}

int64_t workspace_bytes(const ModelShape& model, const WorkspaceSize& size, int device) {
  WorkspaceArena arena;
  Workspace step;
  ExpertSpace expert;
  lay_out_workspace(arena, model, size, device, step, expert);
  return align_up(arena.used, kIoAlign);
}

}  // namespace pagoda
