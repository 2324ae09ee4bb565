#include "preview/planned_family.h"

#include "model/config_fields.h"
#include "model/model_config.h"

namespace pagoda {
namespace {

void parse_common(ConfigFields& f, ModelShape& m) {
  m.vocab_size = f.integer("vocab_size", 1, int64_t{1} << 22);
  m.hidden_size = f.integer("hidden_size", 1, kMaxSize);
  m.is_moe.assign(static_cast<size_t>(f.integer("num_hidden_layers", 1, 1024)), 1);
  m.attention.heads = f.integer("num_attention_heads", 1, 65536);
  m.tied_embeddings = f.flag_or("tie_word_embeddings", false);
}

// DeepSeek: dense layers first, then some with experts, shared ones among them.
void parse_experts(ConfigFields& f, ModelShape& m) {
  const int64_t layers = m.num_layers();
  const int64_t dense = f.integer_or("first_k_dense_replace", 0, 0, layers);
  const int64_t every = f.integer_or("moe_layer_freq", 1, 1, 1024);
  for (int64_t l = 0; l < layers; ++l) {
    m.is_moe[static_cast<size_t>(l)] = l >= dense && l % every == 0;
  }
  m.dense_ffn = f.integer("intermediate_size", 1, kMaxSize);
  m.num_experts = f.integer("n_routed_experts", 1, kMaxExperts);
  m.experts_per_token = f.integer("num_experts_per_tok", 1, m.num_experts);
  m.expert_ffn = f.integer("moe_intermediate_size", 1, kMaxSize);
  m.shared_ffn = m.expert_ffn * f.integer_or("n_shared_experts", 0, 0, kMaxExperts);
}

// V3 corrects the router's scores of each expert. V2 chooses by the scores as they are.
void parse_deepseek(ConfigFields& f, bool corrected, ModelShape& m) {
  f.only("attention_bias", false);
  AttentionSizes& a = m.attention;
  a.kv_heads = a.heads;
  a.rope_head_dim = f.integer("qk_rope_head_dim", 1, kMaxSize);
  a.head_dim = f.integer("qk_nope_head_dim", 1, kMaxSize) + a.rope_head_dim;
  a.value_head_dim = f.integer("v_head_dim", 1, kMaxSize);
  a.kv_rank = f.integer("kv_lora_rank", 1, kMaxSize);
  a.query_rank = f.integer_or("q_lora_rank", 0, 1, kMaxSize);
  parse_experts(f, m);
  m.router_bias = corrected;
}

}  // namespace

bool is_planned_family(const std::string& model_type) {
  return model_type == "deepseek_v2" || model_type == "deepseek_v3";
}

Result<ModelShape> planned_family_shape(const Json& config, const std::string& where) {
  ConfigFields f(config, where);
  const std::string family = config["model_type"].get<std::string>();
  ModelShape model;
  parse_common(f, model);
  if (!f.status().ok()) return f.status();
  parse_deepseek(f, family != "deepseek_v2", model);
  if (!f.status().ok()) return f.status();
  model.attention.rotated_apart = true;  // more than enough for what has no operators yet
  return model;
}

}  // namespace pagoda
