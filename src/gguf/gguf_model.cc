#include "gguf/gguf_model.h"

#include <algorithm>

#include "base/log.h"
#include "gguf/gguf_architecture.h"
#include "model/json.h"

namespace pagoda {
namespace {

// YaRN's "mscale_all_dim", by which llama.cpp scales scores; 0: there is none.
double mscale_all_dim(const ModelConfig& c) {
  const Json config = Json::parse(c.json);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json rope = config.value(key, Json());
    if (!rope.is_object() || rope.empty()) continue;
    const Json factor = rope.value("mscale_all_dim", Json());
    return factor.is_number() ? factor.get<double>() : 0.0;
  }
  return 0.0;
}

// Entries that only some architectures read.
class OwnEntries {
 public:
  OwnEntries(const ModelConfig& c, std::string arch, GgufEntries& entries)
      : c_(c), entries_(entries), arch_(std::move(arch)) {}

  void router() {
    constexpr uint32_t kSoftmax = 1, kSigmoid = 2;
    entries_.add(arch_ + ".expert_gating_func", c_.family->sigmoid_router ? kSigmoid : kSoftmax);
    entries_.add(arch_ + ".expert_weights_norm", c_.norm_topk_prob);
    entries_.add(arch_ + ".expert_weights_scale", static_cast<float>(c_.routed_scaling_factor));
    if (c_.shared_intermediate_size > 0) {
      number(".expert_shared_count", c_.shared_intermediate_size / c_.moe_intermediate_size);
    }
  }

  void yarn() {
    if (c_.rotation.factor <= 0.0) return;
    entries_.add(arch_ + ".rope.scaling.type", "yarn");
    entries_.add(arch_ + ".rope.scaling.factor", static_cast<float>(c_.rotation.factor));
    number(".rope.scaling.original_context_length",
           static_cast<int64_t>(c_.rotation.original_positions));
  }

  // Attention is that of one head of keys, as long as the latent and the rotated part together,
  // whose first part is its value.
  void latent_attention() {
    number(".attention.head_count_kv", 1);
    number(".attention.key_length", c_.kv_rank + c_.rope_head_dim);
    number(".attention.value_length", c_.kv_rank);
    number(".attention.key_length_mla", c_.key_dim());
    number(".attention.value_length_mla", c_.value_head_dim);
    number(".attention.kv_lora_rank", c_.kv_rank);
    if (c_.query_rank > 0) number(".attention.q_lora_rank", c_.query_rank);
    yarn();
    const double mscale = mscale_all_dim(c_);
    if (c_.rotation.factor <= 0.0 || mscale <= 0.0) return;
    entries_.add(arch_ + ".rope.scaling.yarn_log_multiplier", static_cast<float>(0.1 * mscale));
  }

  void convolutions() {
    std::vector<int32_t> heads;
    for (int64_t l = 0; l < c_.num_layers; ++l) {
      heads.push_back(c_.is_conv_layer(l) ? 0 : static_cast<int32_t>(c_.num_kv_heads));
    }
    entries_.add(arch_ + ".attention.head_count_kv", heads);
    number(".shortconv.l_cache", c_.conv_width);
  }

  void plain_attention() { number(".attention.head_count_kv", c_.num_kv_heads); }
  void key_and_value() {
    number(".attention.key_length", c_.head_dim);
    number(".attention.value_length", c_.head_dim);
  }
  void window() { number(".attention.sliding_window", c_.sliding_window); }

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

void add_own_entries(const ModelConfig& c, const GgufArchitecture& a, const Json& config,
                     GgufEntries& e) {
  OwnEntries own(c, a.name, e);
  if (c.family->sigmoid_router || a.latent) own.router();
  if (a.latent) {
    own.latent_attention();
  } else {
    a.convolutions ? own.convolutions() : own.plain_attention();
    own.key_and_value();
  }
  if (a.dense_first) {
    e.add(std::string(a.name) + ".leading_dense_block_count",
          static_cast<uint32_t>(c.num_layers - c.num_moe_layers()));
  }
  if (a.windows) {
    own.window();
    own.yarn();
  }
  if (a.granite) own.granite(config);
}

void add_entries(const ModelConfig& c, const GgufArchitecture& a, GgufType type,
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

// What is called otherwise in latent attention; "" if nothing.
std::string latent_name(TensorRole role, const ModelConfig& c) {
  switch (role) {
    case TensorRole::kQuery:
      return c.query_rank > 0 ? "attn_q_a" : "attn_q";
    case TensorRole::kQueryNorm:
      return "attn_q_a_norm";
    case TensorRole::kQueryHeads:
      return "attn_q_b";
    case TensorRole::kLatent:
      return "attn_kv_a_mqa";
    case TensorRole::kKeyNorm:
      return "attn_kv_a_norm";
    case TensorRole::kLatentHeads:
      return "attn_k_b";  // and "attn_v_b"
    default:
      return "";
  }
}

// What a tensor is called behind "blk.N." or by itself, without ".weight". `mlp`: what is behind
// "ffn_gate" and the like, "_exps" of experts, "_shexp" of a shared one.
std::string name_of(TensorRole role, const GgufArchitecture& a, const char* mlp) {
  switch (role) {
    case TensorRole::kEmbedding:
      return "token_embd";
    case TensorRole::kFinalNorm:
      return a.convolutions ? "token_embd_norm" : "output_norm";
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
    case TensorRole::kConvInput:
      return "shortconv.in_proj";
    case TensorRole::kConvTaps:
      return "shortconv.conv";
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
  const bool exact = role == TensorRole::kRouter || role == TensorRole::kConvTaps;
  if (shape.size() == 1 || is_bias(role) || exact) return GgufType::kF32;
  const bool blocks = shape.back() % kQ8Block == 0;
  return wanted == GgufType::kQ8_0 && !blocks ? GgufType::kF16 : wanted;
}

class TensorList {
 public:
  TensorList(const HfFolder& folder, const GgufArchitecture& a, GgufType type, GgufModel& model)
      : table_(folder.table()), config_(folder.config()), a_(a), type_(type), model_(model) {}

  void add(int64_t t) {
    const TensorSpec& tensor = table_.tensors[static_cast<size_t>(t)];
    if (tensor.role == TensorRole::kLatentHeads) return add_latent_heads(t);
    std::vector<int64_t> shape = tensor.stored_shape();
    if (tensor.role == TensorRole::kSharedGate) shape = {shape.back()};
    if (tensor.role == TensorRole::kConvTaps) shape = {shape.front(), shape.back()};
    GgufPlace place = {.tensor = t};
    if (a_.permutes && (tensor.role == TensorRole::kQuery || tensor.role == TensorRole::kKey)) {
      place.order = GgufOrder::kPermuted;
      place.heads = tensor.role == TensorRole::kQuery ? config_.num_heads : config_.num_kv_heads;
    }
    put(place, name_in(tensor), shape);
  }

 private:
  void add_latent_heads(int64_t t) {
    const int64_t heads = config_.num_heads, key = config_.plain_head_dim;
    GgufPlace place = {.tensor = t, .order = GgufOrder::kKeyHeads, .heads = heads, .key_rows = key};
    put(place, "attn_k_b", {heads, config_.kv_rank, key});
    place.order = GgufOrder::kValueHeads;
    put(place, "attn_v_b", {heads, config_.value_head_dim, config_.kv_rank});
  }

  // Its name without its layer and ".weight".
  std::string name_in(const TensorSpec& tensor) const {
    const RecordSpec& record = table_.records[static_cast<size_t>(tensor.record)];
    const bool expert = record.kind == RecordKind::kExpert;
    const bool shared = table_.find(tensor.record, TensorRole::kRouter) >= 0;
    const bool convolves = record.kind == RecordKind::kLayer && config_.is_conv_layer(record.layer);
    if (convolves && tensor.role == TensorRole::kOutput) return "shortconv.out_proj";
    std::string name = a_.latent ? latent_name(tensor.role, config_) : "";
    if (name.empty()) name = name_of(tensor.role, a_, expert ? "_exps" : shared ? "_shexp" : "");
    CHECK(!name.empty(), "%s has no name in llama.cpp", tensor.name.c_str());
    return name;
  }

  // Notes where the tensor stands; of experts of a layer all stand in one of the file's.
  void put(GgufPlace place, std::string name, std::vector<int64_t> shape) {
    const TensorSpec& tensor = table_.tensors[static_cast<size_t>(place.tensor)];
    const RecordSpec& record = table_.records[static_cast<size_t>(tensor.record)];
    name = (record.layer >= 0 ? strf("blk.%lld.", (long long)record.layer) : "") + name +
           (is_bias(tensor.role) ? ".bias" : ".weight");
    if (record.expert >= 0) shape.insert(shape.begin(), config_.num_experts);
    const auto same = [&](const GgufTensor& other) { return other.name == name; };
    auto found =
        std::find_if(model_.tensors.end() - std::min<ptrdiff_t>(6, std::ssize(model_.tensors)),
                     model_.tensors.end(), same);
    if (found == model_.tensors.end()) {
      model_.tensors.push_back({name, shape, type_of(tensor.role, shape, type_)});
      found = model_.tensors.end() - 1;
    }
    place.in_file = static_cast<size_t>(found - model_.tensors.begin());
    place.first = std::max<int64_t>(0, record.expert) * tensor.num_elements();
    model_.places.push_back(place);
  }

  const TensorTable& table_;
  const ModelConfig& config_;
  const GgufArchitecture& a_;
  GgufType type_;
  GgufModel& model_;
};

}  // namespace

Result<GgufModel> describe_for_gguf(const HfFolder& folder, GgufType type,
                                    const std::string& name) {
  const ModelConfig& c = folder.config();
  ASSIGN_OR_RETURN(const GgufArchitecture a, architecture_of(c));
  GgufModel model;
  add_entries(c, a, type, name, model.entries);
  TensorList list(folder, a, type, model);
  for (int64_t t = 0; t < std::ssize(folder.table().tensors); ++t) list.add(t);
  return model;
}

std::vector<float> in_order(const GgufPlace& place, const float* rows, int64_t all_rows,
                            int64_t in) {
  CHECK(place.order != GgufOrder::kAsItIs && all_rows % place.heads == 0);
  const int64_t dim = all_rows / place.heads, key = place.key_rows;
  std::vector<float> out;
  const auto add_row = [&](int64_t row) {
    out.insert(out.end(), rows + row * in, rows + (row + 1) * in);
  };
  for (int64_t first = 0; first < all_rows; first += dim) {
    switch (place.order) {
      case GgufOrder::kAsItIs:
        break;
      case GgufOrder::kPermuted:
        for (int64_t i = 0; i < dim; ++i) add_row(first + (i % 2) * (dim / 2) + i / 2);
        break;
      case GgufOrder::kKeyHeads:
        for (int64_t r = 0; r < in; ++r) {
          for (int64_t i = 0; i < key; ++i) out.push_back(rows[(first + i) * in + r]);
        }
        break;
      case GgufOrder::kValueHeads:
        for (int64_t i = key; i < dim; ++i) add_row(first + i);
        break;
    }
  }
  return out;
}

}  // namespace pagoda
