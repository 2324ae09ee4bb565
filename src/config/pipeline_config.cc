#include "config/pipeline_config.h"

#include <string>

#include "config/option_value.h"

namespace pagoda {
namespace {

Status check_stage_layers(const RunConfig& c) {
  constexpr int64_t kMostLayers = 1 << 20;
  if (c.auto_stage_layers()) return Status();
  for (const std::string& text : c.parallel.stage_layers) {
    if (count_of(text) >= 1 && count_of(text) <= kMostLayers) continue;
    return refuse("parallel.stage_layers", text,
                  strf("must be auto, or a count of layers from 1 to %lld for each stage",
                       (long long)kMostLayers));
  }
  const size_t stages = static_cast<size_t>(c.stages());
  if (stages == 1 || c.parallel.stage_layers.size() == stages) return Status();
  return Status(Exit::kUsage, strf("parallel.stage_layers has %zu numbers, and the run %zu "
                                   "parallel.stages; give one number for each",
                                   c.parallel.stage_layers.size(), stages));
}

}  // namespace

Status check_pipeline_run(const RunConfig& c) {
  const int64_t stages = c.parallel.stages;
  if (stages < 0 || stages > kMostDevices) {
    return refuse("parallel.stages", std::to_string(stages),
                  strf("must be auto or from 1 to %d", kMostDevices));
  }
  RETURN_IF_ERROR(check_stage_layers(c));
  if (c.parallel.layout != LayoutKind::kPipeline) return Status();
  if (c.stages() > c.num_devices()) {
    return refuse("parallel.stages", std::to_string(c.stages()),
                  strf("each needs a device, and there are %lld; set train.devices, or fewer "
                       "stages",
                       (long long)c.num_devices()));
  }
  if (c.plan.microbatch_major || c.plan.padded_experts) {
    return refuse("parallel.layout", "pipeline",
                  "has an order of its own; unset plan.microbatch_major and plan.padded_experts");
  }
  return Status();
}

int RunConfig::stages() const {
  const bool pipeline = parallel.layout == LayoutKind::kPipeline;
  if (!pipeline && !zebra()) return 1;
  return parallel.stages > 0 ? static_cast<int>(parallel.stages) : pipeline ? 2 : 1;
}

bool RunConfig::auto_stage_layers() const {
  return parallel.stage_layers.size() == 1 && parallel.stage_layers.front() == "auto";
}

std::vector<int64_t> RunConfig::stage_layers() const {
  std::vector<int64_t> layers;
  if (auto_stage_layers()) return layers;
  for (const std::string& text : parallel.stage_layers) layers.push_back(count_of(text));
  return layers;
}

}  // namespace pagoda
