// The architecture of a config.json as planning takes it: families that are trained, and some that
// are only planned for: DeepSeek-V2 and -V3, gpt-oss, GLM-4.5.
#pragma once

#include <optional>
#include <string>

#include "model/model_config.h"

namespace pagoda {

struct ModelSizes {
  std::string name;    // of the file or its folder
  std::string family;  // model_type
  ModelShape shape;
  std::optional<ModelConfig> trained;  // where `train` supports the family
};

// What training has no use for is ignored: windows, and layers that predict a second token, of
// which a fine-tuned model has none. kBadData naming `where`, the field and what it may be.
Result<ModelSizes> parse_model_sizes(const std::string& json, const std::string& where);

// `path`: a folder with a config.json, or such a file by itself. kNoInput, kBadData.
Result<ModelSizes> read_model_sizes(const std::string& path);

}  // namespace pagoda
