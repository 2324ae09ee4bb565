#include "model/tensors.h"

#include <bit>
#include <cmath>
#include <utility>

namespace pagoda {

int64_t TensorSpec::num_elements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

std::vector<int64_t> TensorSpec::stored_shape() const {
  return is_correction() ? std::vector<int64_t>{shape.back()} : shape;
}

int64_t TensorSpec::stored_elements() const {
  return is_correction() ? shape.back() : num_elements();
}

void split_correction(const float* correction, int64_t n, float* parts) {
  for (int64_t i = 0; i < n; ++i) {
    float rest = correction[i];
    for (int64_t p = 0; p < kCorrectionParts; ++p) {
      // Its upper half: the first 8 bits of its magnitude.
      const float part = std::bit_cast<float>(std::bit_cast<uint32_t>(rest) & 0xffff0000u);
      parts[p * n + i] = part;
      rest = std::copysign(rest - part, correction[i]);
    }
  }
}

void join_correction(const float* parts, int64_t n, float* correction) {
  for (int64_t i = 0; i < n; ++i) correction[i] = parts[i] + parts[n + i] + parts[2 * n + i];
}

std::string RecordSpec::name() const {
  switch (kind) {
    case RecordKind::kEmbedding: return "embedding";
    case RecordKind::kHead: return "head";
    case RecordKind::kLayer: return strf("layer %lld", (long long)layer);
    case RecordKind::kExpert: {
      const std::string whole =
          strf("layer %lld, expert %lld", (long long)layer, (long long)(expert / parts));
      return parts == 1 ? whole : whole + strf(", part %lld", (long long)(expert % parts));
    }
  }
  return "";
}

namespace {

// Appends records and their tensors in order.
class TableBuilder {
 public:
  explicit TableBuilder(TensorTable& table) : table_(table) {}

  // The record and its tensors.
  void add_record(const ModelConfig& c, const ModelRecord& record);

 private:
  void embedding(const ModelConfig& c);
  void layer(const ModelConfig& c, int64_t layer);
  void expert(const ModelConfig& c, int64_t layer, int64_t expert);
  void head(const ModelConfig& c);
  // `layer`: the names' first part.
  void attention(const ModelConfig& c, const std::string& layer);
  void latent_attention(const ModelConfig& c, const std::string& layer);
  void convolution(const ModelConfig& c, const std::string& layer);
  void matrix(TensorRole role, const std::string& name, int64_t rows, int64_t columns) {
    add(role, name, {rows, columns}, true, TensorInit::kNormal);
  }
  void norm(TensorRole role, const std::string& name, int64_t dim) {
    add(role, name, {dim}, false, TensorInit::kOnes);
  }
  void bias(TensorRole role, const std::string& name, int64_t dim) {
    add(role, name, {dim}, false, TensorInit::kZeros);
  }
  void mlp(const std::string& gate, const std::string& up, const std::string& down, int64_t dim,
           int64_t ffn) {
    matrix(TensorRole::kGate, gate, ffn, dim);
    matrix(TensorRole::kUp, up, ffn, dim);
    matrix(TensorRole::kDown, down, dim, ffn);
  }
  void mlp_biases(const std::string& prefix, int64_t dim, int64_t ffn) {
    bias(TensorRole::kGateBias, prefix + "gate_proj.bias", ffn);
    bias(TensorRole::kUpBias, prefix + "up_proj.bias", ffn);
    bias(TensorRole::kDownBias, prefix + "down_proj.bias", dim);
  }
  void plain_mlp(const FamilySpec& family, const std::string& prefix, int64_t dim, int64_t ffn) {
    mlp(prefix + family.gate, prefix + family.up, prefix + family.down, dim, ffn);
  }
  void add(TensorRole role, const std::string& name, std::vector<int64_t> shape, bool decay,
           TensorInit init) {
    RecordSpec& record = table_.records.back();
    TensorSpec tensor{name,
                      role,
                      std::move(shape),
                      static_cast<int64_t>(table_.records.size()) - 1,
                      record.num_elements,
                      decay,
                      init};
    record.num_elements += tensor.num_elements();
    ++record.num_tensors;
    table_.tensors.push_back(std::move(tensor));
  }
  TensorTable& table_;
};

void TableBuilder::attention(const ModelConfig& c, const std::string& layer) {
  const std::string prefix = layer + "self_attn.";
  const int64_t q_dim = c.num_heads * c.head_dim, kv_dim = c.num_kv_heads * c.head_dim;
  matrix(TensorRole::kQuery, prefix + "q_proj.weight", q_dim, c.hidden_size);
  matrix(TensorRole::kKey, prefix + "k_proj.weight", kv_dim, c.hidden_size);
  matrix(TensorRole::kValue, prefix + "v_proj.weight", kv_dim, c.hidden_size);
  if (c.qkv_bias) {
    bias(TensorRole::kQueryBias, prefix + "q_proj.bias", q_dim);
    bias(TensorRole::kKeyBias, prefix + "k_proj.bias", kv_dim);
    bias(TensorRole::kValueBias, prefix + "v_proj.bias", kv_dim);
  }
  if (c.qk_norm != QkNorm::kNone) {
    const bool full = c.qk_norm == QkNorm::kFullWidth;
    norm(TensorRole::kQueryNorm, layer + c.family->q_norm, full ? q_dim : c.head_dim);
    norm(TensorRole::kKeyNorm, layer + c.family->k_norm, full ? kv_dim : c.head_dim);
  }
  if (c.family->sinks) {
    add(TensorRole::kSinks, prefix + "sinks", {c.num_heads}, false, TensorInit::kNormal);
  }
  matrix(TensorRole::kOutput, layer + c.family->output, c.hidden_size, q_dim);
  if (c.output_bias()) bias(TensorRole::kOutputBias, prefix + "o_proj.bias", c.hidden_size);
}

// Norms of the two latents have the roles of norms on queries and keys.
void TableBuilder::latent_attention(const ModelConfig& c, const std::string& layer) {
  const std::string prefix = layer + "self_attn.";
  const int64_t d = c.hidden_size, queries = c.num_heads * c.key_dim();
  const int64_t from_latent = c.num_heads * (c.plain_head_dim + c.value_head_dim);
  const bool ranked = c.query_rank > 0;
  matrix(TensorRole::kQuery, prefix + (ranked ? "q_a_proj.weight" : "q_proj.weight"),
         ranked ? c.query_rank : queries, d);
  matrix(TensorRole::kLatent, prefix + "kv_a_proj_with_mqa.weight", c.kv_rank + c.rope_head_dim, d);
  if (ranked) {
    norm(TensorRole::kQueryNorm, prefix + "q_a_layernorm.weight", c.query_rank);
    matrix(TensorRole::kQueryHeads, prefix + "q_b_proj.weight", queries, c.query_rank);
  }
  norm(TensorRole::kKeyNorm, prefix + "kv_a_layernorm.weight", c.kv_rank);
  matrix(TensorRole::kLatentHeads, prefix + "kv_b_proj.weight", from_latent, c.kv_rank);
  matrix(TensorRole::kOutput, layer + c.family->output, d, c.num_heads * c.value_head_dim);
}

void TableBuilder::convolution(const ModelConfig& c, const std::string& layer) {
  const int64_t d = c.hidden_size;
  matrix(TensorRole::kConvInput, layer + "conv.in_proj.weight", 3 * d, d);
  add(TensorRole::kConvTaps, layer + "conv.conv.weight", {d, 1, c.conv_width}, true,
      TensorInit::kNormal);
  matrix(TensorRole::kOutput, layer + "conv.out_proj.weight", d, d);
}

std::string layer_prefix(int64_t layer) { return strf("model.layers.%lld.", (long long)layer); }

void TableBuilder::embedding(const ModelConfig& c) {
  matrix(TensorRole::kEmbedding, "model.embed_tokens.weight", c.vocab_size, c.hidden_size);
}

void TableBuilder::layer(const ModelConfig& c, int64_t layer) {
  const std::string prefix = layer_prefix(layer);
  norm(TensorRole::kInputNorm, prefix + c.family->norm1, c.hidden_size);
  if (c.is_conv_layer(layer)) {
    convolution(c, prefix);
  } else if (c.latent()) {
    latent_attention(c, prefix);
  } else {
    attention(c, prefix);
  }
  norm(TensorRole::kPostAttentionNorm, prefix + c.family->norm2, c.hidden_size);
  if (!c.is_moe_layer(layer)) {
    plain_mlp(*c.family, prefix + c.family->mlp, c.hidden_size, c.intermediate_size);
    return;
  }
  matrix(TensorRole::kRouter, prefix + c.family->router, c.num_experts, c.hidden_size);
  if (c.family->router_bias) {
    bias(TensorRole::kRouterBias, prefix + c.family->mlp + "router.bias", c.num_experts);
  }
  if (c.router_correction) {
    add(TensorRole::kCorrection, prefix + c.family->correction, {kCorrectionParts, c.num_experts},
        false, TensorInit::kZeros);
  }
  if (c.shared_intermediate_size == 0) return;
  if (c.shared_gate) {
    matrix(TensorRole::kSharedGate, prefix + "mlp.shared_expert_gate.weight", 1, c.hidden_size);
  }
  plain_mlp(*c.family, prefix + c.family->shared, c.hidden_size, c.shared_intermediate_size);
}

void TableBuilder::expert(const ModelConfig& c, int64_t layer, int64_t expert) {
  const FamilySpec& family = *c.family;
  const std::string prefix =
      layer_prefix(layer) + strf("%s.%lld.", family.experts, (long long)(expert / c.parts.count()));
  plain_mlp(family, prefix, c.hidden_size, c.parts.columns_at(expert, c.moe_intermediate_size));
  if (family.limited_experts) mlp_biases(prefix, c.hidden_size, c.moe_intermediate_size);
}

void TableBuilder::head(const ModelConfig& c) {
  norm(TensorRole::kFinalNorm, c.family->final_norm, c.hidden_size);
  if (c.tie_word_embeddings) return;
  matrix(TensorRole::kHead, "lm_head.weight", c.vocab_size, c.hidden_size);
}

void TableBuilder::add_record(const ModelConfig& c, const ModelRecord& record) {
  table_.records.push_back({record.kind, record.layer, record.expert,
                            static_cast<int64_t>(table_.tensors.size())});
  table_.records.back().parts = c.parts.count();
  switch (record.kind) {
    case RecordKind::kEmbedding: embedding(c); break;
    case RecordKind::kLayer: layer(c, record.layer); break;
    case RecordKind::kExpert: expert(c, record.layer, record.expert); break;
    case RecordKind::kHead: head(c); break;
  }
  // Slots are cut for the one number, tensors laid out by the other.
  CHECK(table_.records.back().num_elements == record.num_elements);
}

}  // namespace

TensorTable TensorTable::make(const ModelConfig& c) {
  TensorTable table;
  table.family = c.family;
  TableBuilder build(table);
  for (const ModelRecord& record : model_records(model_shape(c))) {
    if (record.kind == RecordKind::kLayer) {
      table.layer_record_.push_back(static_cast<int64_t>(table.records.size()));
    }
    build.add_record(c, record);
  }
  return table;
}

int64_t TensorTable::find(int64_t record, TensorRole role) const {
  const RecordSpec& r = records[record];
  for (int64_t t = r.first_tensor; t < r.first_tensor + r.num_tensors; ++t) {
    if (tensors[t].role == role) return t;
  }
  return -1;
}

int64_t TensorTable::offset(int64_t record, TensorRole role) const {
  const int64_t t = find(record, role);
  return t < 0 ? -1 : tensors[t].offset;
}

int64_t TensorTable::total_parameters() const {
  int64_t total = 0;
  for (const TensorSpec& tensor : tensors) total += tensor.stored_elements();
  return total;
}

int64_t TensorTable::active_parameters(const ModelConfig& config) const {
  int64_t total = total_parameters();
  for (int64_t l = 0; l < config.num_layers; ++l) {
    if (!config.is_moe_layer(l)) continue;
    const int64_t idle = config.num_experts - config.experts_per_token;
    for (int64_t p = 0; p < config.parts.count(); ++p) {
      total -= idle * records[expert(l, p)].num_elements;
    }
  }
  return total;
}

namespace {

// The tensors in which a MoE layer's experts are stacked.
class Stacked {
 public:
  // first_record: the layer's first expert.
  Stacked(const TensorTable& table, int64_t first_record) : table_(table) {
    const int64_t layer = table.records[first_record].layer;
    prefix_ = layer_prefix(layer) + table.family->mlp;
    for (auto r = first_record; r < std::ssize(table.records); ++r) {
      const RecordSpec& record = table.records[static_cast<size_t>(r)];
      if (record.kind != RecordKind::kExpert || record.layer != layer) break;
      experts_.push_back(r);
    }
    const TensorSpec& gate = table.tensors[table.find(first_record, TensorRole::kGate)];
    ffn_ = gate.shape[0];
    dim_ = gate.shape[1];
  }

  void add(ExpertLayout layout, std::vector<StoredTensor>& stored) const {
    const auto e = std::ssize(experts_);
    const FamilySpec& family = *table_.family;
    const bool own_names = layout == ExpertLayout::kStacked;
    StoredTensor gate_up =
        of({TensorRole::kGate, TensorRole::kUp}, own_names ? family.stacked_gate_up : kFusedGateUp);
    StoredTensor down = of({TensorRole::kDown}, own_names ? family.stacked_down : kFusedDown);
    gate_up.shape = {e, 2 * ffn_, dim_};
    down.shape = {e, dim_, ffn_};
    if (!family.limited_experts) {
      stored.push_back(std::move(gate_up));
      stored.push_back(std::move(down));
      return;
    }
    StoredTensor gate_up_bias = of({TensorRole::kGateBias, TensorRole::kUpBias}, kFusedGateUp);
    StoredTensor down_bias = of({TensorRole::kDownBias}, kFusedDown);
    gate_up_bias.name += kBiasEnding;
    down_bias.name += kBiasEnding;
    gate_up_bias.shape = {e, 2 * ffn_};
    down_bias.shape = {e, dim_};
    gate_up.turns = gate_up_bias.turns = 2;
    for (StoredTensor* matrix : {&gate_up, &down}) {
      if (layout == ExpertLayout::kMxfp4) {
        make_mxfp4(*matrix);
      } else {
        matrix->transposed = true;
        std::swap(matrix->shape[1], matrix->shape[2]);
      }
    }
    for (StoredTensor* one : {&gate_up, &gate_up_bias, &down, &down_bias}) {
      stored.push_back(std::move(*one));
    }
  }

 private:
  StoredTensor of(std::initializer_list<TensorRole> roles, const char* name) const {
    StoredTensor stored;
    stored.name = prefix_ + name;
    for (const int64_t record : experts_) {
      for (const TensorRole role : roles) stored.parts.push_back(table_.find(record, role));
    }
    return stored;
  }

  static void make_mxfp4(StoredTensor& matrix) {
    matrix.scales = matrix.name + kScalesEnding;
    matrix.name += kBlocksEnding;
    matrix.shape.back() /= kMxfp4Block;
    matrix.shape.push_back(kMxfp4Block / 2);
  }

  const TensorTable& table_;
  std::string prefix_;
  std::vector<int64_t> experts_;  // their records
  int64_t ffn_ = 0, dim_ = 0;
};

}  // namespace

BlockOrder block_order(const StoredTensor& stored, size_t part, const TensorSpec& tensor) {
  BlockOrder order;
  order.rows = tensor.shape[0];
  if (tensor.shape.size() == 2) order.columns = tensor.shape[1];
  order.turns = stored.turns;
  order.turn = static_cast<int64_t>(part) % stored.turns;
  order.transposed = stored.transposed;
  return order;
}

ExpertLayout usual_layout(const FamilySpec& family) {
  if (family.limited_experts) return ExpertLayout::kFused;
  return *family.stacked_down != 0 ? ExpertLayout::kStacked : ExpertLayout::kPerExpert;
}

std::vector<StoredTensor> stored_tensors(const TensorTable& table, ExpertLayout layout) {
  const FamilySpec& family = *table.family;
  const bool fused = layout != ExpertLayout::kPerExpert;
  const bool renamed = layout == ExpertLayout::kFused && !family.limited_experts;
  CHECK(layout == ExpertLayout::kFused || layout == usual_layout(family) ||
            (layout == ExpertLayout::kMxfp4 && family.limited_experts),
        "no file of the family holds experts so");
  std::vector<StoredTensor> stored;
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    const TensorSpec& tensor = table.tensors[t];
    const RecordSpec& record = table.records[tensor.record];
    if (!fused || record.kind != RecordKind::kExpert) {
      stored.push_back({tensor.name, tensor.stored_shape(), {static_cast<int64_t>(t)}});
      const char* fused_name = tensor.role == TensorRole::kRouter       ? family.fused_router
                               : tensor.role == TensorRole::kCorrection ? family.fused_correction
                                                                        : "";
      if (renamed && *fused_name != 0) {
        stored.back().name = layer_prefix(record.layer) + family.mlp + fused_name;
      }
    } else if (record.expert == 0 && tensor.role == TensorRole::kGate) {
      Stacked(table, tensor.record).add(layout, stored);
    }
  }
  return stored;
}

}  // namespace pagoda
