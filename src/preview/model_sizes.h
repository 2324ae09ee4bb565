// Reads from a config.json the sizes that planning needs.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "model/model_config.h"

namespace pagoda {

struct ModelSizes {
  std::string name;    // name of the file or its folder
  std::string family;  // model_type
  ModelShape shape;
  ModelConfig config;

  // Cuts the experts as parallel.hidden_shares says. Returns the errors of with_hidden_parts().
  Status cut_experts(std::span<const int64_t> shares);
};

// kBadData naming `where`, the field and what it may be.
Result<ModelSizes> parse_model_sizes(const std::string& json, const std::string& where);

// `path`: a folder with a config.json, or such a file. kNoInput, kBadData.
Result<ModelSizes> read_model_sizes(const std::string& path);

}  // namespace pagoda
