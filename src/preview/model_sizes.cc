#include "preview/model_sizes.h"

#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "model/json.h"
#include "preview/planned_family.h"

namespace pagoda {
namespace {

AttentionSizes attention_shape(const ModelConfig& config) {
  AttentionSizes attention;
  attention.heads = config.num_heads;
  attention.kv_heads = config.num_kv_heads;
  attention.head_dim = attention.value_head_dim = config.head_dim;
  attention.qkv_bias = config.qkv_bias;
  if (config.family->qk_norm != QkNorm::kNone) {
    const bool full = config.family->qk_norm == QkNorm::kFullWidth;
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
  shape.dense_ffn = config.intermediate_size;
  shape.tied_embeddings = config.tie_word_embeddings;
  if (config.num_moe_layers() == 0) return shape;
  shape.num_experts = config.num_experts;
  shape.experts_per_token = config.experts_per_token;
  shape.expert_ffn = config.moe_intermediate_size;
  shape.shared_ffn = config.shared_intermediate_size;
  shape.shared_gate = config.shared_intermediate_size > 0;
  return shape;
}

namespace {

constexpr int64_t kMostConfigBytes = int64_t{1} << 24;

Result<ModelShape> checked(const ModelShape& shape, const std::string& where) {
  const Status status = check_model(shape);
  if (status.ok()) return shape;
  return Status(Exit::kBadData, printable(where) + ": " + status.message());
}

}  // namespace

Result<ModelSizes> parse_model_sizes(const std::string& json, const std::string& where) {
  ASSIGN_OR_RETURN(const Json root, parse_json(json, where));
  ModelSizes model;
  if (root.is_object() && root.contains("model_type") && root["model_type"].is_string()) {
    model.family = root["model_type"].get<std::string>();
  }
  if (is_planned_family(model.family)) {
    ASSIGN_OR_RETURN(const ModelShape shape, planned_family_shape(root, where));
    ASSIGN_OR_RETURN(model.shape, checked(shape, where));
    return model;
  }
  ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::parse(json, where));
  ASSIGN_OR_RETURN(model.shape, checked(model_shape(config), where));
  model.trained = std::move(config);
  return model;
}

Result<ModelSizes> read_model_sizes(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  const std::string file = folder ? path + "/config.json" : path;
  ASSIGN_OR_RETURN(const std::string text, read_text_file(file, Links::kFollow, kMostConfigBytes));
  ASSIGN_OR_RETURN(ModelSizes model, parse_model_sizes(text, file));
  const fs::path named = fs::path(absolute_path(path)).lexically_normal();
  model.name =
      folder ? (named.filename().empty() ? named.parent_path() : named).filename() : named.stem();
  return model;
}

}  // namespace pagoda
