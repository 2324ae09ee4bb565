// Reads from a config.json the sizes that planning needs, for families that are trained and for
// some that are only planned: DeepSeek-V2 and -V3.
#pragma once

#include <optional>
#include <string>

#include "model/model_config.h"

namespace pagoda {

struct ModelSizes {
  std::string name;    // name of the file or its folder
  std::string family;  // model_type
  ModelShape shape;
  std::optional<ModelConfig> trained;  // if `train` supports the family
};

// Ignores fields that training has no use for: windows, and layers that predict a second token,
// which a fine-tuned model lacks. kBadData naming `where`, the field and what it may be.
Result<ModelSizes> parse_model_sizes(const std::string& json, const std::string& where);

// `path`: a folder with a config.json, or such a file. kNoInput, kBadData.
Result<ModelSizes> read_model_sizes(const std::string& path);

}  // namespace pagoda
