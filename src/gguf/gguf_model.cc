#include "gguf/gguf_model.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"

namespace pagoda {
namespace {

// What llama.cpp calls a family, and what it computes whatever the file says.
struct Architecture {
  const char* model_type;
  const char* name;
  bool renormalises;  // the chosen experts' weights
  bool permutes;      // rows of queries and keys
  bool expert_ffn;    // the width of an expert has an entry of its own
};

constexpr Architecture kArchitectures[] = {
    {"mixtral", "llama", true, true, false},
    {"olmoe", "olmoe", false, false, false},
    {"qwen2_moe", "qwen2moe", false, false, true},
    {"qwen3_moe", "qwen3moe", true, false, true},
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
    if (c.norm_topk_prob != a.renormalises) {
      return cannot(c, strf("llama.cpp %s the weights of a token's experts, and the model does not "
                            "(\"norm_topk_prob\")",
                            a.renormalises ? "norms" : "does not norm"));
    }
    return a;
  }
  return cannot(c, "its family is none of " + known);
}

Status check_computed_alike(const ModelConfig& c) {
  if (c.num_moe_layers() != c.num_layers) {
    return cannot(c, "it has layers without experts, of which llama.cpp knows nothing here");
  }
  if (c.rotation.factor > 0.0) return cannot(c, "its rotary embedding is scaled");
  if (c.sliding_window > 0 && c.sliding_window < c.max_position_embeddings) {
    return cannot(c, "its layers slide, and llama.cpp's see everything");
  }
  return Status();
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
  e.add(arch + ".attention.layer_norm_rms_epsilon", static_cast<float>(c.rms_norm_eps));
  e.add(arch + ".rope.freq_base", static_cast<float>(c.rotation.theta));
  number(".rope.dimension_count", c.rotary_dim);
  number(".expert_count", c.num_experts);
  number(".expert_used_count", c.experts_per_token);
  if (a.expert_ffn) number(".expert_feed_forward_length", c.moe_intermediate_size);
  if (c.shared_intermediate_size > 0) {
    number(".expert_shared_feed_forward_length", c.shared_intermediate_size);
  }
  number(".vocab_size", c.vocab_size);
}

// What a tensor is called behind "blk.N." or by itself, without ".weight".
const char* name_of(TensorRole role, RecordKind kind) {
  const bool expert = kind == RecordKind::kExpert;
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
      return "ffn_norm";
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
      return "attn_output";
    case TensorRole::kRouter:
      return "ffn_gate_inp";
    case TensorRole::kSharedGate:
      return "ffn_gate_inp_shexp";
    case TensorRole::kGate:
      return expert ? "ffn_gate_exps" : "ffn_gate_shexp";
    case TensorRole::kUp:
      return expert ? "ffn_up_exps" : "ffn_up_shexp";
    case TensorRole::kDown:
      return expert ? "ffn_down_exps" : "ffn_down_shexp";
    default:
      return "";
  }
}

bool is_bias(TensorRole role) {
  return role == TensorRole::kQueryBias || role == TensorRole::kKeyBias ||
         role == TensorRole::kValueBias;
}

GgufType type_of(TensorRole role, const std::vector<int64_t>& shape, GgufType wanted) {
  if (shape.size() == 1 || role == TensorRole::kRouter) return GgufType::kF32;
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
    std::string name = name_of(tensor.role, record.kind);
    CHECK(!name.empty(), "%s has no name in llama.cpp", tensor.name.c_str());
    name = (record.layer >= 0 ? strf("blk.%lld.", (long long)record.layer) : "") + name +
           (is_bias(tensor.role) ? ".bias" : ".weight");
    std::vector<int64_t> shape = tensor.shape;
    if (tensor.role == TensorRole::kSharedGate) shape = {shape.back()};
    if (record.expert >= 0) shape.insert(shape.begin(), config_.num_experts);
    const auto same = [&](const GgufTensor& other) { return other.name == name; };
    auto found =
        std::find_if(model_.tensors.end() - std::min<ptrdiff_t>(3, std::ssize(model_.tensors)),
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
  RETURN_IF_ERROR(check_computed_alike(c));
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
