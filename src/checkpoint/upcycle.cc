#include "checkpoint/upcycle.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "base/random.h"
#include "checkpoint/hf_writer.h"
#include "model/json.h"

namespace pagoda {
namespace {

constexpr int64_t kCopiedElements = int64_t{1} << 16;
constexpr double kAuxLossCoef = 0.02;  // Mixtral-8x7B's value

// What Mixtral's config.json says of the dense model, and of its experts. Everything is spelt out:
// the two families differ in what they assume of absent keys.
Result<std::string> mixtral_config(const HfFolder& dense, const UpcycleOptions& options) {
  const ModelConfig& c = dense.config();
  const auto from = nlohmann::ordered_json::parse(c.json, nullptr, /*allow_exceptions=*/false);
  if (!from.is_object()) return Status(Exit::kInternal, "a config that was parsed is no object");
  nlohmann::ordered_json to = {{"architectures", {"MixtralForCausalLM"}},
                               {"model_type", "mixtral"},
                               {"attention_dropout", 0.0},
                               {"head_dim", c.head_dim},
                               {"hidden_act", "silu"},
                               {"hidden_size", c.hidden_size},
                               {"initializer_range", c.initializer_range},
                               {"intermediate_size", c.intermediate_size},
                               {"max_position_embeddings", c.max_position_embeddings},
                               {"num_attention_heads", c.num_heads},
                               {"num_experts_per_tok", options.experts_per_token},
                               {"num_hidden_layers", c.num_layers},
                               {"num_key_value_heads", c.num_kv_heads},
                               {"num_local_experts", options.num_experts},
                               {"output_router_logits", false},
                               {"rms_norm_eps", c.rms_norm_eps},
                               {"rope_theta", c.rotation.theta},
                               {"router_aux_loss_coef", kAuxLossCoef},
                               {"router_jitter_noise", 0.0},
                               {"sliding_window", nullptr},
                               {"tie_word_embeddings", c.tie_word_embeddings},
                               {"use_cache", true},
                               {"vocab_size", c.vocab_size}};
  if (c.sliding_window > 0) to["sliding_window"] = c.sliding_window;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (c.rotation.factor > 0.0 && from.contains(key)) to[key] = from[key];
  }
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype"}) {
    to[key] = from.contains(key) ? from[key] : nullptr;
    if (!from.contains(key) && std::string(key).ends_with("dtype")) to.erase(key);
  }
  return to.dump(2) + "\n";
}

// Standard deviation of a tensor's values.
Result<double> deviation(const HfFolder& folder, int64_t tensor) {
  const int64_t total = folder.table().tensors[tensor].num_elements();
  std::vector<float> values(static_cast<size_t>(std::min(total, kCopiedElements)));
  double sum = 0, squares = 0;
  for (int64_t first = 0; first < total; first += kCopiedElements) {
    const int64_t count = std::min(kCopiedElements, total - first);
    RETURN_IF_ERROR(folder.read_values(tensor, first, count, values.data()));
    for (int64_t i = 0; i < count; ++i) {
      sum += values[i];
      squares += double{values[i]} * values[i];
    }
  }
  const double mean = sum / static_cast<double>(total);
  return std::sqrt(std::max(0.0, squares / static_cast<double>(total) - mean * mean));
}

class Upcycle {
 public:
  Upcycle(const HfFolder& dense, const ModelConfig& config, const UpcycleOptions& options)
      : dense_(dense), config_(config), options_(options), table_(TensorTable::make(config)) {}

  Status write(std::string config_json) {
    HfWriter::Options out;
    out.directory = options_.out_directory;
    out.config_json = std::move(config_json);
    out.companions_directory = dense_.directory();
    for (size_t t = 0; t < table_.tensors.size(); ++t) {
      const int64_t from = source(static_cast<int64_t>(t));
      out.dtypes.push_back(dense_.dtypes()[from >= 0 ? from : mlp_gate(table_.tensors[t])]);
    }
    ASSIGN_OR_RETURN(HfWriter writer, HfWriter::create(std::move(out), table_));
    for (const int64_t t : writer.order()) RETURN_IF_ERROR(write_tensor(t, writer));
    return writer.finish();
  }

 private:
  bool of_expert(int64_t tensor) const {
    return table_.records[table_.tensors[tensor].record].kind == RecordKind::kExpert;
  }
  int64_t dense_layer(const TensorSpec& tensor) const {
    return dense_.table().layer(table_.records[tensor.record].layer);
  }
  int64_t mlp_gate(const TensorSpec& tensor) const {
    return dense_.table().find(dense_layer(tensor), TensorRole::kGate);
  }
  // The dense tensor that a new one begins as; -1: none, it is a router.
  int64_t source(int64_t tensor) const {
    const TensorSpec& spec = table_.tensors[tensor];
    switch (table_.records[spec.record].kind) {
      case RecordKind::kEmbedding:
        return dense_.table().find(dense_.table().embedding(), spec.role);
      case RecordKind::kHead: return dense_.table().find(dense_.table().head(), spec.role);
      case RecordKind::kLayer:
      case RecordKind::kExpert: return dense_.table().find(dense_layer(spec), spec.role);
    }
    return -1;
  }

  // Standard deviation of the random part of a tensor.
  Result<double> randomness(int64_t tensor) {
    const int64_t from = source(tensor);
    if (from < 0) return config_.initializer_range;
    if (!of_expert(tensor) || options_.noise == 0) return 0.0;
    const auto known = deviations_.find(from);
    if (known != deviations_.end()) return options_.noise * known->second;
    ASSIGN_OR_RETURN(const double value, deviation(dense_, from));
    deviations_.emplace(from, value);
    return options_.noise * value;
  }

  Status write_tensor(int64_t tensor, HfWriter& writer) {
    const int64_t total = table_.tensors[tensor].num_elements(), from = source(tensor);
    ASSIGN_OR_RETURN(const double random, randomness(tensor));
    for (int64_t first = 0; first < total; first += kCopiedElements) {
      const int64_t count = std::min(kCopiedElements, total - first);
      values_.assign(static_cast<size_t>(count), 0.0f);
      if (from >= 0) RETURN_IF_ERROR(dense_.read_values(from, first, count, values_.data()));
      for (int64_t i = 0; random > 0 && i < count; ++i) {
        values_[i] += static_cast<float>(random) *
                      random_normal(options_.seed, RandomPurpose::kUpcycle,
                                    static_cast<uint64_t>(tensor),
                                    static_cast<uint64_t>(first + i));
      }
      RETURN_IF_ERROR(writer.append(tensor, values_.data(), count));
    }
    return Status();
  }

  const HfFolder& dense_;
  const ModelConfig& config_;
  const UpcycleOptions& options_;
  const TensorTable table_;
  std::map<int64_t, double> deviations_;  // standard deviations of dense tensors
  std::vector<float> values_;
};

}  // namespace

Status upcycle_folder(const UpcycleOptions& options) {
  CHECK(options.experts_per_token >= 1 && options.experts_per_token <= options.num_experts);
  CHECK(options.noise >= 0 && std::isfinite(options.noise));
  ASSIGN_OR_RETURN(const HfFolder dense,
                   HfFolder::open(options.dense_directory, ModelKind::kDense));
  ASSIGN_OR_RETURN(std::string text, mixtral_config(dense, options));
  ASSIGN_OR_RETURN(const ModelConfig config,
                   ModelConfig::parse(text, options.out_directory + "/config.json"));
  return Upcycle(dense, config, options).write(std::move(text));
}

}  // namespace pagoda
