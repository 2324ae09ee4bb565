#include <algorithm>

#include "base/check.h"
#include "model/json.h"
#include "model/model_config.h"
#include "model/tensors.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/testing/files.h"
#include "tests/testing/tiny_config.h"

namespace pagoda {

void fuzz_config(std::string_view input) {
  for (const ModelKind kind : {ModelKind::kMoe, ModelKind::kDense}) {
    auto config = ModelConfig::parse(std::string(input), "config.json", kind);
    if (!config.ok()) continue;
    CHECK(config->num_moe_layers() <= config->num_layers);
    // A table may have a million tensors, and then takes a second.
    if (config->num_layers * std::max<int64_t>(config->num_experts, 1) > 1000) continue;
    const TensorTable table = TensorTable::make(config.value());
    for (const TensorSpec& tensor : table.tensors) CHECK(tensor.num_elements() > 0);
  }
}

std::vector<std::string> config_seeds() {
  std::vector<std::string> seeds = {tiny_config().dump()};
  for (const char* name : {"llama", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe_tied", "glm4_moe",
                           "lfm2_moe", "gpt_oss", "gpt_oss_mxfp4", "deepseek_v2", "deepseek_v3",
                           "glm4_moe_lite", "granitemoe", "dots1", "minimax_m2"}) {
    seeds.push_back(get_file(std::string(PAGODA_GOLDEN_DIR) + "/" + name + "/config.json"));
  }
  return seeds;
}

}  // namespace pagoda
