#include "model/model_config.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/log.h"
#include "kernels/ops.h"
#include "model/config_fields.h"
#include "model/layer_config.h"
#include "model/rope_config.h"
#include "model/tensors.h"
#include "model/unimplemented.h"

namespace pagoda {

bool ModelConfig::is_moe_layer(int64_t layer) const {
  const bool listed =
      std::find(mlp_only_layers.begin(), mlp_only_layers.end(), layer) != mlp_only_layers.end();
  return !listed && layer >= first_dense_layers && num_experts > 0 &&
         (layer + 1) % decoder_sparse_step == 0;
}

int64_t ModelConfig::num_moe_layers() const {
  int64_t count = 0;
  for (int64_t layer = 0; layer < num_layers; ++layer) count += is_moe_layer(layer);
  return count;
}

bool ModelConfig::is_conv_layer(int64_t layer) const {
  return !conv_layers.empty() && conv_layers[static_cast<size_t>(layer)] != 0;
}

int64_t ModelConfig::window_of(int64_t layer) const {
  const bool slides = sliding_layers.empty() || sliding_layers[static_cast<size_t>(layer)] != 0;
  return slides ? sliding_window : 0;
}

namespace {

constexpr int64_t kMaxTensors = 1000000;
using Fields = ConfigFields;

void parse_latent(Fields& f, ModelConfig& c) {
  c.kv_rank = f.integer("kv_lora_rank", 1, kMaxSize);
  c.query_rank = f.integer_or("q_lora_rank", 0, 1, kMaxSize);
  c.plain_head_dim = f.integer("qk_nope_head_dim", 1, kMaxSize);
  c.rope_head_dim = f.integer("qk_rope_head_dim", 1, kMaxSize);
  c.value_head_dim = f.integer("v_head_dim", 1, kMaxSize);
  c.rope_neighbours = !c.family->rope_interleave || f.flag_or("rope_interleave", true);
  c.head_dim = std::max(c.key_dim(), c.value_head_dim);
  if (!f.status().ok()) return;
  c.query_scale = std::sqrt(static_cast<double>(c.head_dim) / static_cast<double>(c.key_dim()));
  if (c.rope_head_dim % 2 != 0) f.refuse("\"qk_rope_head_dim\" is odd");
  if (c.head_dim % 2 != 0) f.refuse("the longer of a head's key and its value has an odd length");
  if (c.num_kv_heads == c.num_heads) return;
  f.refuse("\"num_key_value_heads\" is not \"num_attention_heads\", as latent attention has it");
}

void parse_sizes(Fields& f, ModelConfig& c) {
  c.vocab_size = f.integer("vocab_size", 1, int64_t{1} << 22);
  c.hidden_size = f.integer("hidden_size", 1, kMaxSize);
  c.num_layers = f.integer("num_hidden_layers", 1, 1024);
  c.num_heads = f.integer("num_attention_heads", 1, 65536);
  const bool as_queries = c.family->num_kv_heads == 0 || !f.is_absent("num_key_value_heads");
  c.num_kv_heads = f.integer_or("num_key_value_heads",
                                as_queries ? c.num_heads : c.family->num_kv_heads, 1, 65536);
  if (c.num_heads % c.num_kv_heads != 0) {
    f.refuse(strf("\"num_attention_heads\" %lld is not a multiple of \"num_key_value_heads\" %lld",
                  (long long)c.num_heads, (long long)c.num_kv_heads));
  }
  const bool own_dim = c.family->head_dim > 0 && f.is_absent("head_dim");
  const int64_t usual_dim = own_dim ? c.family->head_dim : c.hidden_size / c.num_heads;
  if (c.family->latent) {
    parse_latent(f, c);
  } else {
    c.head_dim = f.integer_or("head_dim", usual_dim, 1, kMaxSize);
  }
  if (f.status().ok() && (c.head_dim < 2 || c.head_dim % 2 != 0)) {
    f.refuse(strf("\"head_dim\" is %lld; rotary embedding needs an even number of at least 2",
                  (long long)c.head_dim));
  }
  c.intermediate_size = f.integer("intermediate_size", 1, kMaxSize);
  c.max_position_embeddings = f.integer_or("max_position_embeddings",
                                           c.family->max_position_embeddings, 1, int64_t{1} << 31);
}

// Negative ids count from the end of the vocabulary. null: none, whatever the family's default is.
void parse_pad_token(Fields& f, ModelConfig& c) {
  if (f.is_absent("pad_token_id")) {
    c.pad_token_id = c.family->pad_token_id;
  } else if (f.find("pad_token_id") != nullptr) {
    const int64_t id = f.integer("pad_token_id", -c.vocab_size, c.vocab_size - 1);
    c.pad_token_id = id < 0 ? id + c.vocab_size : id;
  }
}

// Refuses a family of the other kind, and says which kind the caller wants.
void parse_family(Fields& f, ModelConfig& c, ModelKind kind) {
  const Json* type = f.find("model_type");
  if (type == nullptr) return f.refuse("\"model_type\" is missing");
  c.family = type->is_string() ? find_family(type->get<std::string>()) : nullptr;
  const bool dense = kind == ModelKind::kDense;
  if (c.family != nullptr && c.family->dense == dense) return;
  const std::string shown = "\"model_type\" is " + Fields::shown(*type);
  if (c.family == nullptr) {
    const std::string missing = type->is_string() ? missing_for(type->get<std::string>()) : "";
    const std::string why = missing.empty() ? "" : ", which needs " + missing;
    return f.refuse(shown + why + "; the families implemented are " + family_names(dense));
  }
  f.refuse(dense ? shown + ", which has experts already; give a dense model: " + family_names(true)
                 : shown + ", a dense model; make one with experts of it: pagoda upcycle");
}

// What DeepSeek-V3's router has beyond others.
void parse_sigmoid_router(Fields& f, ModelConfig& c) {
  const char* correction = c.family->correction_switch;
  c.router_correction = *correction == 0 || f.flag_or(correction, true);
}

void parse_groups(Fields& f, ModelConfig& c) {
  if (c.family->groups_by_best) {
    const Json* method = f.find("topk_method");
    if (method == nullptr || *method == "greedy") return;
    if (*method != "group_limited_greedy") {
      return f.refuse("\"topk_method\" is neither \"greedy\" nor \"group_limited_greedy\"");
    }
  }
  c.expert_groups = f.integer_or("n_group", c.family->groups_default, 1, kMaxExperts);
  c.expert_groups_chosen =
      f.integer_or("topk_group", c.family->chosen_groups_default, 1, kMaxExperts);
  const int64_t size = c.num_experts / c.expert_groups;
  if (c.num_experts % c.expert_groups != 0 || c.expert_groups_chosen > c.expert_groups) {
    return f.refuse(strf("\"n_group\" %lld does not divide the %lld experts, or is less than "
                         "\"topk_group\" %lld",
                         (long long)c.expert_groups, (long long)c.num_experts,
                         (long long)c.expert_groups_chosen));
  }
  if (size < 2 && !c.family->groups_by_best) {
    return f.refuse("\"n_group\" leaves one expert in a group; a group is chosen by its two best");
  }
  if (c.experts_per_token <= size * c.expert_groups_chosen) return;
  f.refuse(strf("\"num_experts_per_tok\" %lld is more than the %lld experts of \"topk_group\" "
                "groups",
                (long long)c.experts_per_token, (long long)(size * c.expert_groups_chosen)));
}

void parse_shared_expert(Fields& f, ModelConfig& c) {
  if (c.family->shared_expert == SharedExpert::kGated) {
    c.shared_intermediate_size = f.integer("shared_expert_intermediate_size", 1, kMaxSize);
    c.shared_gate = true;
  } else if (c.family->shared_expert == SharedExpert::kPlain) {
    constexpr const char* kKey = "n_shared_experts";
    const int64_t usual = c.family->shared_experts_default;
    const int64_t count =
        usual > 0 ? f.integer_or(kKey, usual, 1, kMaxExperts) : f.integer(kKey, 1, kMaxExperts);
    c.shared_intermediate_size = count * c.moe_intermediate_size;
    if (c.shared_intermediate_size <= kMaxSize) return;
    f.refuse("\"n_shared_experts\" makes the shared expert too wide");
  }
}

void parse_limited_experts(Fields& f, ModelConfig& c) {
  constexpr double kSlope = 1.702, kLimit = 7.0;  // Transformers' defaults
  c.swiglu_slope = f.real_or("swiglu_alpha", kSlope, 1e-3, 1e3);
  c.swiglu_limit = f.real_or("swiglu_limit", kLimit, 1e-3, 1e9);
  c.swiglu_offset = 1.0;
  if (c.moe_intermediate_size < 2) f.refuse("experts with biases need a width of at least 2");
}

void parse_mxfp4(Fields& f, const Json& quantised, ModelConfig& c) {
  if (!quantised.is_object() || quantised.value("quant_method", Json()) != "mxfp4") {
    return f.refuse("\"quantization_config\" is not of \"quant_method\" \"mxfp4\", the only one "
                    "that is read");
  }
  c.mxfp4 = true;
  if (c.hidden_size % kMxfp4Block == 0 && c.moe_intermediate_size % kMxfp4Block == 0) return;
  f.refuse(strf("\"hidden_size\" %lld or the experts' width %lld is no multiple of MXFP4's %lld",
                (long long)c.hidden_size, (long long)c.moe_intermediate_size,
                (long long)kMxfp4Block));
}

void parse_fp8(Fields& f, const Json& quantised, ModelConfig& c) {
  const bool fp8 = quantised.is_object() && quantised.value("quant_method", Json()) == "fp8";
  const Json block = fp8 ? quantised.value("weight_block_size", Json()) : Json();
  const auto is_size = [](const Json& n) {
    return n.is_number_integer() && n.get<int64_t>() >= 1 && n.get<int64_t>() <= kMaxSize;
  };
  if (!block.is_array() || block.size() != 2 || !is_size(block[0]) || !is_size(block[1])) {
    return f.refuse("\"quantization_config\" is not of \"quant_method\" \"fp8\" with a "
                    "\"weight_block_size\" of two sizes; only that and fp32, bf16 and fp16 weights "
                    "are read");
  }
  c.fp8_rows = block[0].get<int64_t>();
  c.fp8_columns = block[1].get<int64_t>();
}

void parse_quantised(Fields& f, ModelConfig& c) {
  const Json* quantised = f.find("quantization_config");
  if (quantised == nullptr) return;
  c.family->limited_experts ? parse_mxfp4(f, *quantised, c) : parse_fp8(f, *quantised, c);
}

void parse_experts(Fields& f, ModelConfig& c) {
  // Transformers has either name for the number, but for families that ignore the second.
  const char* key = c.family->num_experts;
  const Json* local = f.find("num_local_experts");
  const bool only_local = f.find(key) == nullptr && local != nullptr;
  c.num_experts = f.integer(only_local ? "num_local_experts" : key, 1, kMaxExperts);
  if (c.family->local_experts && local != nullptr && *local != c.num_experts) {
    f.refuse(strf("\"%s\" and \"num_local_experts\" differ", key));
  }
  c.experts_per_token = f.integer("num_experts_per_tok", 1, c.num_experts);
  c.moe_intermediate_size = f.integer(c.family->expert_ffn, 1, kMaxSize);
  parse_shared_expert(f, c);
  c.norm_topk_prob = c.family->always_renormalises ||
                     (f.flag_or("norm_topk_prob", c.family->norm_topk_prob) &&
                      !c.family->never_renormalises);
  if (c.family->sigmoid_router) parse_sigmoid_router(f, c);
  if (c.family->scaled_router) {
    c.routed_scaling_factor =
        f.real_or("routed_scaling_factor", c.family->scale_default, 1e-6, 1e6);
  }
  if (c.family->expert_groups && f.status().ok()) parse_groups(f, c);
  if (c.family->limited_experts) parse_limited_experts(f, c);
  c.router_aux_loss_coef = c.family->router_aux_loss_coef;
  if (!c.family->balance_loss) {
    if (c.family->balance_loss_switched) f.only("output_router_logits", false);
    return;
  }
  if (c.family->balance_loss_switched && !f.flag_or("output_router_logits", false)) {
    c.router_aux_loss_coef = 0.0;
    return;
  }
  c.router_aux_loss_coef = f.real_or("router_aux_loss_coef", c.router_aux_loss_coef, 0.0, 1e6);
}

void parse_attention(Fields& f, ModelConfig& c) {
  const char* bias = c.family->qkv_bias;
  c.qkv_bias = *bias != 0 && f.flag_or(bias, c.family->qkv_bias_default);
  const bool normed = !c.family->qk_norm_switched || f.flag_or("use_qk_norm", false);
  c.qk_norm = normed ? c.family->qk_norm : QkNorm::kNone;
  if (c.family->hidden_qk_norm && c.num_heads * c.head_dim != c.hidden_size) {
    f.refuse("\"head_dim\" is not \"hidden_size\" / \"num_attention_heads\"");
  }
  parse_window(f, c);
}

// The residual is kept divided by "residual_multiplier": then layers add to it what they give, and
// norms divide it alike if their epsilon is divided by the square. Queries and keys, which are
// rotated whole, share what scores are multiplied by beyond the usual 1 / sqrt(head_dim).
void parse_multipliers(Fields& f, ModelConfig& c) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  const double residual = f.real_or("residual_multiplier", 1.0, kLeast, kMost);
  const double scores = f.real_or("attention_multiplier", 1.0, kLeast, kMost);
  c.embedding_scale = f.real_or("embedding_multiplier", 1.0, kLeast, kMost) / residual;
  c.logits_scale = 1.0 / f.real_or("logits_scaling", 1.0, kLeast, kMost);
  c.rms_norm_eps /= residual * residual;
  c.rotation.size *= std::sqrt(scores * std::sqrt(static_cast<double>(c.head_dim)));
}

void refuse_unimplemented(Fields& f, const FamilySpec& family) {
  const Json* activation = f.find("hidden_act");
  const bool swish = activation != nullptr && *activation == "swish";  // its other name
  if (!swish) f.only("hidden_act", "silu");
  if (family.attention_bias) f.only("attention_bias", false);
  if (family.mlp_bias) f.only("mlp_bias", false);
  if (family.clip_qkv) f.only("clip_qkv", nullptr);
  // Transformers would disturb the experts' input in training.
  if (family.router_jitter_noise) f.only("router_jitter_noise", 0.0);
  f.only("attention_dropout", 0.0);
  if (!f.is_absent("is_causal") && !f.flag_or("is_causal", false)) {
    f.refuse("\"is_causal\" is not true; only attention to earlier tokens is implemented");
  }
  f.only("per_layer_config", Json::object());
  refuse_foreign_keys(f, family);
}

// Parameters must be countable in bytes of weights, master and moments, and their tensors in a
// table. Every size is at most 2^24, so the sums below cannot wrap in 128 bits.
void check_totals(Fields& f, const ModelConfig& c) {
  if (!f.status().ok()) return;
  const __int128 d = c.hidden_size;
  const __int128 attention = (d + 1) * c.head_dim * (2 * c.num_heads + 2 * c.num_kv_heads) +
                             d * (4 * d * (c.conv_width > 0) + c.conv_width) + d + c.num_heads;
  const __int128 latents = (__int128{c.query_rank} + c.kv_rank) *
                           (d + 1 + 2 * __int128{c.num_heads} * c.head_dim);
  const __int128 dense = 3 * d * c.intermediate_size;
  const __int128 experts = (d + 2) * c.num_experts * (2 + 3 * __int128{c.moe_intermediate_size}) +
                           kCorrectionParts * c.num_experts +
                           d * (1 + 3 * __int128{c.shared_intermediate_size});
  const __int128 norms = 4 * d + 2 * c.head_dim;
  const int64_t moe = c.num_moe_layers();
  const __int128 total = 2 * d * c.vocab_size + c.num_layers * (attention + latents + norms) +
                         (c.num_layers - moe) * dense + moe * experts;
  constexpr int64_t kMaxParameters = std::numeric_limits<int64_t>::max() / 64;
  if (total > kMaxParameters)
    f.refuse("the model has more parameters than can be counted in bytes");
  const int64_t of_expert = c.family->limited_experts ? 6 : 3;
  if (moe * c.num_experts * of_expert + c.num_layers * 16 > kMaxTensors) {
    f.refuse(strf("the model has more than %lld tensors", (long long)kMaxTensors));
  }
}

void parse_fields(Fields& f, ModelConfig& c) {
  parse_sizes(f, c);
  parse_pad_token(f, c);
  if (!c.family->dense) parse_experts(f, c);
  parse_quantised(f, c);
  parse_layers(f, c);
  parse_attention(f, c);
  parse_rope(f, c);
  c.rms_norm_eps = f.real_or(c.family->norm_eps, c.family->rms_norm_eps, 1e-30, 1.0);
  if (c.family->multipliers) parse_multipliers(f, c);
  c.tie_word_embeddings = f.flag_or("tie_word_embeddings", c.family->tie_word_embeddings);
  c.tie_word_embeddings = f.flag_or(c.family->tied, c.tie_word_embeddings);
  c.initializer_range = f.real_or("initializer_range", 0.02, 0.0, 1e3);
  check_totals(f, c);
}

}  // namespace

Result<ModelConfig> ModelConfig::parse(const std::string& json, const std::string& where,
                                       ModelKind kind) {
  ASSIGN_OR_RETURN(const Json root, parse_json(json, where));
  if (!root.is_object()) {
    return Status(Exit::kBadData, printable(where) + ": must be a JSON object");
  }
  Fields f(root, where);
  ModelConfig c;
  parse_family(f, c, kind);
  RETURN_IF_ERROR(f.status());
  refuse_unimplemented(f, *c.family);
  parse_fields(f, c);
  RETURN_IF_ERROR(f.status());
  c.json = json;
  return c;
}

namespace {

AttentionSizes attention_shape(const ModelConfig& config) {
  AttentionSizes attention;
  attention.heads = config.num_heads;
  attention.kv_heads = config.num_kv_heads;
  attention.head_dim = attention.value_head_dim = config.head_dim;
  if (config.latent()) {
    attention.head_dim = config.key_dim();
    attention.value_head_dim = config.value_head_dim;
    attention.kv_rank = config.kv_rank;
    attention.query_rank = config.query_rank;
    attention.rope_head_dim = config.rope_head_dim;
  }
  attention.qkv_bias = config.qkv_bias;
  attention.output_bias = config.output_bias();
  attention.sinks = config.family->sinks;
  attention.rotated_apart = config.qk_norm != QkNorm::kNone;
  if (attention.rotated_apart) {
    const bool full = config.qk_norm == QkNorm::kFullWidth;
    attention.query_norm = config.head_dim * (full ? config.num_heads : 1);
    attention.key_norm = config.head_dim * (full ? config.num_kv_heads : 1);
  }
  return attention;
}

}  // namespace

ModelShape model_shape(const ModelConfig& config) {
  ModelShape shape;
  shape.vocab_size = config.vocab_size;
  shape.hidden_size = config.hidden_size;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    shape.is_moe.push_back(config.is_moe_layer(layer));
  }
  shape.attention = attention_shape(config);
  shape.is_conv = config.conv_layers;
  shape.conv_width = config.conv_width;
  shape.dense_ffn = config.intermediate_size;
  shape.tied_embeddings = config.tie_word_embeddings;
  if (config.num_moe_layers() == 0) return shape;
  shape.num_experts = config.num_experts;
  shape.experts_per_token = config.experts_per_token;
  shape.expert_ffn = config.moe_intermediate_size;
  shape.shared_ffn = config.shared_intermediate_size;
  shape.shared_gate = config.shared_gate;
  shape.router_correction = config.router_correction;
  shape.router_bias = config.family->router_bias;
  shape.expert_bias = config.family->limited_experts;
  shape.parts = config.parts;
  return shape;
}

}  // namespace pagoda
