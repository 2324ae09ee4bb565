#include "preview/model_sizes.h"

#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "model/hidden_parts.h"
#include "model/json.h"

namespace pagoda {
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
  ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::parse(json, where));
  ASSIGN_OR_RETURN(model.shape, checked(model_shape(config), where));
  model.config = std::move(config);
  return model;
}

Status ModelSizes::cut_experts(std::span<const int64_t> shares) {
  ASSIGN_OR_RETURN(config, with_hidden_parts(std::move(config), shares));
  shape.parts = config.parts;
  return Status();
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
