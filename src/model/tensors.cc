#include "model/tensors.h"

namespace pagoda {

int64_t TensorSpec::num_elements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

std::string RecordSpec::name() const {
  switch (kind) {
    case RecordKind::kEmbedding: return "embedding";
    case RecordKind::kHead: return "head";
    case RecordKind::kLayer: return strf("layer %lld", (long long)layer);
    case RecordKind::kExpert:
      return strf("layer %lld, expert %lld", (long long)layer, (long long)expert);
  }
  return "";
}

namespace {

// Appends records and their tensors in order.
class TableBuilder {
 public:
  explicit TableBuilder(TensorTable& table) : table_(table) {}

  int64_t begin_record(RecordKind kind, int64_t layer = -1, int64_t expert = -1) {
    RecordSpec record;
    record.kind = kind;
    record.layer = layer;
    record.expert = expert;
    record.first_tensor = static_cast<int64_t>(table_.tensors.size());
    table_.records.push_back(record);
    return static_cast<int64_t>(table_.records.size()) - 1;
  }
  void matrix(const std::string& name, int64_t rows, int64_t columns) {
    add(name, {rows, columns}, true, TensorInit::kNormal);
  }
  void norm(const std::string& name, int64_t dim) { add(name, {dim}, false, TensorInit::kOnes); }
  void mlp(const std::string& prefix, int64_t dim, int64_t ffn) {
    matrix(prefix + "gate_proj.weight", ffn, dim);
    matrix(prefix + "up_proj.weight", ffn, dim);
    matrix(prefix + "down_proj.weight", dim, ffn);
  }

 private:
  void add(const std::string& name, std::vector<int64_t> shape, bool decay, TensorInit init) {
    RecordSpec& record = table_.records.back();
    TensorSpec tensor{name, std::move(shape), static_cast<int64_t>(table_.records.size()) - 1,
                      record.num_elements, decay, init};
    record.num_elements += tensor.num_elements();
    ++record.num_tensors;
    table_.tensors.push_back(std::move(tensor));
  }
  TensorTable& table_;
};

}  // namespace

TensorTable TensorTable::make(const ModelConfig& c) {
  TensorTable table;
  TableBuilder build(table);
  build.begin_record(RecordKind::kEmbedding);
  build.matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
  for (int64_t l = 0; l < c.num_layers; ++l) {
    const std::string prefix = strf("model.layers.%lld.", (long long)l);
    table.layer_record_.push_back(build.begin_record(RecordKind::kLayer, l));
    build.norm(prefix + "input_layernorm.weight", c.hidden_size);
    build.matrix(prefix + "self_attn.q_proj.weight", c.num_heads * c.head_dim, c.hidden_size);
    build.matrix(prefix + "self_attn.k_proj.weight", c.num_kv_heads * c.head_dim, c.hidden_size);
    build.matrix(prefix + "self_attn.v_proj.weight", c.num_kv_heads * c.head_dim, c.hidden_size);
    build.norm(prefix + "self_attn.q_norm.weight", c.head_dim);
    build.norm(prefix + "self_attn.k_norm.weight", c.head_dim);
    build.matrix(prefix + "self_attn.o_proj.weight", c.hidden_size, c.num_heads * c.head_dim);
    build.norm(prefix + "post_attention_layernorm.weight", c.hidden_size);
    if (!c.is_moe_layer(l)) {
      build.mlp(prefix + "mlp.", c.hidden_size, c.intermediate_size);
      continue;
    }
    build.matrix(prefix + "mlp.gate.weight", c.num_experts, c.hidden_size);
    for (int64_t e = 0; e < c.num_experts; ++e) {
      build.begin_record(RecordKind::kExpert, l, e);
      build.mlp(prefix + strf("mlp.experts.%lld.", (long long)e), c.hidden_size,
                c.moe_intermediate_size);
    }
  }
  build.begin_record(RecordKind::kHead);
  build.norm("model.norm.weight", c.hidden_size);
  if (!c.tie_word_embeddings) build.matrix("lm_head.weight", c.vocab_size, c.hidden_size);
  return table;
}

int64_t TensorTable::offset(int64_t record, const std::string& suffix) const {
  const RecordSpec& r = records[record];
  for (int64_t t = r.first_tensor; t < r.first_tensor + r.num_tensors; ++t) {
    if (tensors[t].name.ends_with(suffix)) return tensors[t].offset;
  }
  CHECK(false, "no tensor %s in %s", suffix.c_str(), r.name().c_str());
  return -1;
}

int64_t TensorTable::total_parameters() const {
  int64_t total = 0;
  for (const RecordSpec& record : records) total += record.num_elements;
  return total;
}

int64_t TensorTable::active_parameters(const ModelConfig& config) const {
  int64_t total = total_parameters();
  for (int64_t l = 0; l < config.num_layers; ++l) {
    if (!config.is_moe_layer(l)) continue;
    total -= (config.num_experts - config.experts_per_token) * records[expert(l, 0)].num_elements;
  }
  return total;
}

}  // namespace pagoda
