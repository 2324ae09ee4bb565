#include "model/unimplemented.h"

#include "base/log.h"

namespace pagoda {
namespace {

struct Unknown {
  const char* model_type;
  const char* needs;
};

constexpr const char* kDeltaNet = "gated DeltaNet layers, which come next";
constexpr const char* kMamba = "Mamba layers";
constexpr const char* kIndexer = "sparse attention with an indexer";
constexpr const char* kVision = "a vision tower";

constexpr Unknown kUnknown[] = {
    {"qwen3_next", kDeltaNet},
    {"qwen3_5_moe", kDeltaNet},
    {"qwen3_5_moe_text", kDeltaNet},
    {"kimi_linear", "Kimi's delta attention"},
    {"nemotron_h", "Mamba layers and experts with squared ReLU"},
    {"jamba", kMamba},
    {"bamba", kMamba},
    {"granitemoehybrid", kMamba},
    {"deepseek_v32", kIndexer},
    {"deepseek_v4", "hyper-connections and sparse attention with an indexer"},
    {"glm_moe_dsa", kIndexer},
    {"minimax", "lightning attention"},
    {"gemma4", "a dense MLP beside the experts, soft caps and keys that are values"},
    {"gemma4_text", "a dense MLP beside the experts, soft caps and keys that are values"},
    {"llama4", "attention in chunks and layers without rotation"},
    {"llama4_text", "attention in chunks and layers without rotation"},
    {"afmoe", "gated attention"},
    {"phimoe", "routing by sparse mixers and norms with biases"},
    {"dbrx", "one matrix of queries, keys and values, and norms with biases"},
    {"granitemoeshared", "a shared expert beside Granite's multipliers"},
    {"hunyuan_v1_moe", "norms of queries and keys behind their rotation"},
    {"ernie4_5_moe", "a correction that is stored beside the router"},
    {"flex_olmo", "norms behind attention and MLP"},
    {"arctic", "a dense MLP, and experts that read what attention reads"},
    {"qwen3_vl_moe", kVision},
    {"glm4v_moe", kVision},
};

// A key, the value of it that changes nothing, and what it stands for.
struct Foreign {
  const char* key;
  double neutral;
  const char* means;
};

constexpr Foreign kForeign[] = {
    {"final_logit_softcapping", 0, "soft caps of logits"},
    {"attn_logit_softcapping", 0, "soft caps of attention's scores"},
    {"logit_scale", 1, "scaled logits"},
    {"query_pre_attn_scalar", 0, "another scale of attention's scores"},
    {"index_topk", 0, kIndexer},
    {"index_n_heads", 0, kIndexer},
    {"linear_num_value_heads", 0, "linear attention layers"},
    {"full_attention_interval", 1, "layers of another kind between those that attend"},
    {"mamba_d_state", 0, kMamba},
    {"mamba_num_heads", 0, kMamba},
    {"ssm_state_size", 0, kMamba},
    {"hc_mult", 1, "hyper-connections"},
    {"attn_output_gate", 0, "gated attention"},
    {"attention_chunk_size", 0, "attention in chunks"},
    {"kv_lora_rank", 0, "latent attention"},
    {"shared_intermediate_size", 0, "a shared expert"},
};

// Granite's, whose family reads them.
constexpr Foreign kMultipliers[] = {
    {"embedding_multiplier", 1, "multiplied embeddings"},
    {"residual_multiplier", 1, "multiplied residuals"},
    {"attention_multiplier", 1, "another scale of attention's scores"},
    {"logits_scaling", 1, "divided logits"},
};

void refuse_key(ConfigFields& f, const FamilySpec& family, const Foreign& foreign) {
  const Json* value = f.find(foreign.key);
  if (value == nullptr || *value == false) return;
  if (value->is_number() && value->get<double>() == foreign.neutral) return;
  f.refuse(strf("\"%s\" is %s, and a %s has no %s", foreign.key,
                ConfigFields::shown(*value).c_str(), family.model_type, foreign.means));
}

}  // namespace

std::string missing_for(const std::string& model_type) {
  for (const Unknown& unknown : kUnknown) {
    if (model_type == unknown.model_type) return unknown.needs;
  }
  return "";
}

void refuse_foreign_keys(ConfigFields& f, const FamilySpec& family) {
  const Json* scores = f.find("scoring_func");
  if (scores != nullptr && *scores == (family.sigmoid_router ? "softmax" : "sigmoid")) {
    f.refuse(strf("\"scoring_func\" is %s, and the router of a %s has the other",
                  ConfigFields::shown(*scores).c_str(), family.model_type));
  }
  for (const Foreign& foreign : kForeign) {
    const bool latent = std::string(foreign.key) == "kv_lora_rank";
    if (!latent || !family.latent) refuse_key(f, family, foreign);
  }
  if (family.multipliers) return;
  for (const Foreign& foreign : kMultipliers) refuse_key(f, family, foreign);
}

}  // namespace pagoda
