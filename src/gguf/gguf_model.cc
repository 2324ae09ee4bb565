#include "gguf/gguf_model.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "model/json.h"

namespace pagoda {
namespace {

enum class Norms : uint8_t { kNever, kAlways, kAsTold };

// What llama.cpp calls a family, and what it computes whatever the file says.
struct Architecture {
  const char* model_type;
  const char* name;
  Norms norms = Norms::kAlways;  // the weights of a token's experts
  bool permutes = false;         // rows of queries and keys
  bool expert_ffn = true;        // the width of an expert has an entry of its own
  const char* norm2 = "ffn_norm";
  bool dense_first = false;  // layers without experts come first, and their number is told
  bool granite = false;      // multipliers have entries
  bool windows = false;      // in every other layer from the first on
  bool shares_keys = true;   // there may be fewer heads of keys than of queries
};

constexpr Architecture kArchitectures[] = {
    {.model_type = "mixtral", .name = "llama", .permutes = true, .expert_ffn = false},
    {.model_type = "olmoe",
     .name = "olmoe",
     .norms = Norms::kNever,
     .expert_ffn = false,
     .shares_keys = false},
    {.model_type = "qwen2_moe", .name = "qwen2moe", .norms = Norms::kNever},
    {.model_type = "qwen3_moe", .name = "qwen3moe"},
    {.model_type = "glm4_moe",
     .name = "glm4moe",
     .norms = Norms::kAsTold,
     .norm2 = "post_attention_norm",
     .dense_first = true},
    {.model_type = "gpt_oss", .name = "gpt-oss", .norm2 = "post_attention_norm", .windows = true},
    {.model_type = "granitemoe",
     .name = "granitemoe",
     .permutes = true,
     .expert_ffn = false,
     .granite = true},
    {.model_type = "dots1",
     .name = "dots1",
     .norms = Norms::kAsTold,
     .dense_first = true,
     .shares_keys = false},
    {.model_type = "minimax_m2", .name = "minimax-m2"},
};

Status cannot(const ModelConfig& c, const std::string& why) {
  return Status(Exit::kBadData,
                strf("this %s cannot be written as GGUF: %s; export it as a Hugging "
                     "Face folder, which llama.cpp's converter reads",
                     c.family->model_type, why.c_str()));
}

Result<Architecture> architecture_of(const ModelConfig& c) {
  std::string known;
  for (const Architecture& a : kArchitectures) {
    known += (known.empty() ? "" : ", ") + std::string(a.model_type);
    if (a.model_type != std::string(c.family->model_type)) continue;
    const bool norms = a.norms == Norms::kAlways;
    if (a.norms != Norms::kAsTold && c.norm_topk_prob != norms) {
      return cannot(c, strf("llama.cpp %s the weights of a token's experts, and the model does not "
                            "(\"norm_topk_prob\")",
                            norms ? "norms" : "does not norm"));
    }
    return a;
  }
  return cannot(c, "its family is none of " + known);
}

bool slides_in_turn(const ModelConfig& c) {
  for (int64_t l = 0; l < c.num_layers; ++l) {
    if ((c.window_of(l) > 0) != (l % 2 == 0)) return false;
  }
  return true;
}

Status check_gpt_oss(const ModelConfig& c) {
  constexpr double kSlope = 1.702, kLimit = 7.0;
  if (c.swiglu_slope != kSlope || c.swiglu_limit != kLimit || !c.qkv_bias) {
    return cannot(c, "llama.cpp has gpt-oss with biases, and its own limit and slope of SwiGLU");
  }
  if (c.rotation.factor > 0.0 && (c.rotation.fast_turns != 32.0 || c.rotation.slow_turns != 1.0)) {
    return cannot(c, "its YaRN has a \"beta_fast\" or \"beta_slow\" of its own");
  }
  return slides_in_turn(c) ? Status()
                           : cannot(c, "in llama.cpp every other layer of gpt-oss has a window");
}

Status check_computed_alike(const ModelConfig& c, const Architecture& a) {
  const int64_t dense = c.num_layers - c.num_moe_layers();
  for (int64_t l = 0; l < dense; ++l) {
    if (!a.dense_first || c.is_moe_layer(l)) {
      return cannot(c, "it has layers without experts where llama.cpp knows nothing of them");
    }
  }
  if (!a.shares_keys && c.num_kv_heads != c.num_heads) {
    return cannot(c, "it has fewer heads of keys than of queries");
  }
  if (c.expert_groups > 1) return cannot(c, "experts are chosen by groups");
  if (c.family->sigmoid_router && !c.router_correction) {
    return cannot(c, "the choice of experts has no correction");
  }
  if (a.windows) return check_gpt_oss(c);
  if (c.rotation.factor > 0.0) return cannot(c, "its rotary embedding is scaled");
  for (int64_t l = 0; l < c.num_layers; ++l) {
    if (c.window_of(l) > 0 && c.window_of(l) < c.max_position_embeddings) {
      return cannot(c, "its layers slide, and llama.cpp's see everything");
    }
  }
  return Status();
}

// Entries that only some architectures read.
class OwnEntries {
 public:
  OwnEntries(const ModelConfig& c, std::string arch, GgufEntries& entries)
      : c_(c), entries_(entries), arch_(std::move(arch)) {}

  // DeepSeek-V3's router.
  void sigmoid_router() {
    constexpr uint32_t kSigmoid = 2;
    entries_.add(arch_ + ".expert_gating_func", kSigmoid);
    entries_.add(arch_ + ".expert_weights_norm", c_.norm_topk_prob);
    entries_.add(arch_ + ".expert_weights_scale", static_cast<float>(c_.routed_scaling_factor));
    if (c_.shared_intermediate_size > 0) {
      number(".expert_shared_count", c_.shared_intermediate_size / c_.moe_intermediate_size);
    }
  }

  void windows_and_yarn() {
    number(".attention.sliding_window", c_.sliding_window);
    if (c_.rotation.factor <= 0.0) return;
    entries_.add(arch_ + ".rope.scaling.type", "yarn");
    entries_.add(arch_ + ".rope.scaling.factor", static_cast<float>(c_.rotation.factor));
    number(".rope.scaling.original_context_length",
           static_cast<int64_t>(c_.rotation.original_positions));
  }

  // Multipliers as config.json has them: ModelConfig keeps others.
  void granite(const Json& config) {
    const auto real = [&](const char* key, const char* in_config) {
      entries_.add(arch_ + key, static_cast<float>(config.value(in_config, 1.0)));
    };
    real(".logit_scale", "logits_scaling");
    real(".residual_scale", "residual_multiplier");
    real(".embedding_scale", "embedding_multiplier");
    real(".attention.scale", "attention_multiplier");
  }

 private:
  void number(const char* key, int64_t value) {
    entries_.add(arch_ + key, static_cast<uint32_t>(value));
  }

  const ModelConfig& c_;
  GgufEntries& entries_;
  std::string arch_;
};

void add_own_entries(const ModelConfig& c, const Architecture& a, const Json& config,
                     GgufEntries& e) {
  OwnEntries own(c, a.name, e);
  if (c.family->sigmoid_router) own.sigmoid_router();
  if (a.dense_first) {
    e.add(std::string(a.name) + ".leading_dense_block_count",
          static_cast<uint32_t>(c.num_layers - c.num_moe_layers()));
  }
  if (a.windows) own.windows_and_yarn();
  if (a.granite) own.granite(config);
}

void add_entries(const ModelConfig& c, const Architecture& a, GgufType type,
                 const std::string& name, GgufEntries& e) {
  const std::string arch = a.name;
  const auto number = [&](const char* key, int64_t value) {
    e.add(arch + key, static_cast<uint32_t>(value));
  };
  const uint32_t file_type = type == GgufType::kF32 ? 0 : type == GgufType::kQ8_0 ? 7 : 32;
  e.add("general.architecture", arch);
  e.add("general.type", "model");
  e.add("general.name", name);
  e.add("general.file_type", file_type);
  e.add("general.quantization_version", uint32_t{2});
  const bool wide = a.expert_ffn && c.intermediate_size > 0;
  number(".block_count", c.num_layers);
  number(".context_length", c.max_position_embeddings);
  number(".embedding_length", c.hidden_size);
  number(".feed_forward_length", wide ? c.intermediate_size : c.moe_intermediate_size);
  number(".attention.head_count", c.num_heads);
  number(".attention.head_count_kv", c.num_kv_heads);
  number(".attention.key_length", c.head_dim);
  number(".attention.value_length", c.head_dim);
  const Json config = Json::parse(c.json);
  const double eps = a.granite ? config.value("rms_norm_eps", 1e-6) : c.rms_norm_eps;
  e.add(arch + ".attention.layer_norm_rms_epsilon", static_cast<float>(eps));
  e.add(arch + ".rope.freq_base", static_cast<float>(c.rotation.theta));
  number(".rope.dimension_count", c.rotary_dim);
  number(".expert_count", c.num_experts);
  number(".expert_used_count", c.experts_per_token);
  if (a.expert_ffn) number(".expert_feed_forward_length", c.moe_intermediate_size);
  if (c.shared_intermediate_size > 0) {
    number(".expert_shared_feed_forward_length", c.shared_intermediate_size);
  }
  number(".vocab_size", c.vocab_size);
  add_own_entries(c, a, config, e);
}

// What a tensor is called behind "blk.N." or by itself, without ".weight". `mlp`: what is behind
// "ffn_gate" and the like, "_exps" of experts, "_shexp" of a shared one.
std::string name_of(TensorRole role, const Architecture& a, const char* mlp) {
  switch (role) {
    case TensorRole::kEmbedding:
      return "token_embd";
    case TensorRole::kFinalNorm:
      return "output_norm";
    case TensorRole::kHead:
      return "output";
    case TensorRole::kInputNorm:
      return "attn_norm";
    case TensorRole::kPostAttentionNorm:
      return a.norm2;
    case TensorRole::kQuery:
    case TensorRole::kQueryBias:
      return "attn_q";
    case TensorRole::kKey:
    case TensorRole::kKeyBias:
      return "attn_k";
    case TensorRole::kValue:
    case TensorRole::kValueBias:
      return "attn_v";
    case TensorRole::kQueryNorm:
      return "attn_q_norm";
    case TensorRole::kKeyNorm:
      return "attn_k_norm";
    case TensorRole::kOutput:
    case TensorRole::kOutputBias:
      return "attn_output";
    case TensorRole::kSinks:
      return "attn_sinks";
    case TensorRole::kRouter:
    case TensorRole::kRouterBias:
      return "ffn_gate_inp";
    case TensorRole::kCorrection:
      return "exp_probs_b";
    case TensorRole::kSharedGate:
      return "ffn_gate_inp_shexp";
    case TensorRole::kGate:
    case TensorRole::kGateBias:
      return std::string("ffn_gate") + mlp;
    case TensorRole::kUp:
    case TensorRole::kUpBias:
      return std::string("ffn_up") + mlp;
    case TensorRole::kDown:
    case TensorRole::kDownBias:
      return std::string("ffn_down") + mlp;
    default:
      return "";
  }
}

bool is_bias(TensorRole role) {
  constexpr TensorRole kBiases[] = {
      TensorRole::kQueryBias,  TensorRole::kKeyBias,    TensorRole::kValueBias,
      TensorRole::kOutputBias, TensorRole::kRouterBias, TensorRole::kCorrection,
      TensorRole::kGateBias,   TensorRole::kUpBias,     TensorRole::kDownBias};
  return std::find(std::begin(kBiases), std::end(kBiases), role) != std::end(kBiases);
}

GgufType type_of(TensorRole role, const std::vector<int64_t>& shape, GgufType wanted) {
  if (shape.size() == 1 || is_bias(role) || role == TensorRole::kRouter) return GgufType::kF32;
  const bool blocks = shape.back() % kQ8Block == 0;
  return wanted == GgufType::kQ8_0 && !blocks ? GgufType::kF16 : wanted;
}

class TensorList {
 public:
  TensorList(const HfFolder& folder, const Architecture& a, GgufType type, GgufModel& model)
      : table_(folder.table()), config_(folder.config()), a_(a), type_(type), model_(model) {}

  void add(int64_t t) {
    const TensorSpec& tensor = table_.tensors[static_cast<size_t>(t)];
    const RecordSpec& record = table_.records[static_cast<size_t>(tensor.record)];
    const bool expert = record.kind == RecordKind::kExpert;
    const bool shared = table_.find(tensor.record, TensorRole::kRouter) >= 0;
    std::string name = name_of(tensor.role, a_, expert ? "_exps" : shared ? "_shexp" : "");
    CHECK(!name.empty(), "%s has no name in llama.cpp", tensor.name.c_str());
    name = (record.layer >= 0 ? strf("blk.%lld.", (long long)record.layer) : "") + name +
           (is_bias(tensor.role) ? ".bias" : ".weight");
    std::vector<int64_t> shape = tensor.stored_shape();
    if (tensor.role == TensorRole::kSharedGate) shape = {shape.back()};
    if (record.expert >= 0) shape.insert(shape.begin(), config_.num_experts);
    const auto same = [&](const GgufTensor& other) { return other.name == name; };
    auto found =
        std::find_if(model_.tensors.end() - std::min<ptrdiff_t>(6, std::ssize(model_.tensors)),
                     model_.tensors.end(), same);
    if (found == model_.tensors.end()) {
      model_.tensors.push_back({name, shape, type_of(tensor.role, shape, type_)});
      found = model_.tensors.end() - 1;
    }
    const int64_t first = std::max<int64_t>(0, record.expert) * tensor.num_elements();
    const bool permutes =
        a_.permutes && (tensor.role == TensorRole::kQuery || tensor.role == TensorRole::kKey);
    const int64_t heads =
        tensor.role == TensorRole::kQuery ? config_.num_heads : config_.num_kv_heads;
    model_.places.push_back(
        {t, static_cast<size_t>(found - model_.tensors.begin()), first, permutes ? heads : 0});
  }

 private:
  const TensorTable& table_;
  const ModelConfig& config_;
  const Architecture& a_;
  GgufType type_;
  GgufModel& model_;
};

}  // namespace

Result<GgufModel> describe_for_gguf(const HfFolder& folder, GgufType type,
                                    const std::string& name) {
  const ModelConfig& c = folder.config();
  ASSIGN_OR_RETURN(const Architecture a, architecture_of(c));
  RETURN_IF_ERROR(check_computed_alike(c, a));
  GgufModel model;
  add_entries(c, a, type, name, model.entries);
  TensorList list(folder, a, type, model);
  for (int64_t t = 0; t < std::ssize(folder.table().tensors); ++t) list.add(t);
  return model;
}

void permute_rows(const float* rows, int64_t heads, int64_t dim, int64_t in, float* permuted) {
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < dim; ++i) {
      const int64_t to = h * dim + (i < dim / 2 ? 2 * i : 2 * (i - dim / 2) + 1);
      std::memcpy(permuted + to * in, rows + (h * dim + i) * in,
                  static_cast<size_t>(in) * sizeof(float));
    }
  }
}

}  // namespace pagoda
