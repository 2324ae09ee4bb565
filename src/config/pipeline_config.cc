#include "config/pipeline_config.h"

#include <string>

namespace pagoda {

Status check_pipeline_run(const RunConfig& c) {
  const int64_t stages = c.parallel.stages;
  const auto refuse = [](const char* key, const std::string& value, const std::string& why) {
    return Status(Exit::kUsage, key + (" = " + value) + ": " + why);
  };
  if (stages < 0 || stages > kMostDevices) {
    return refuse("parallel.stages", std::to_string(stages),
                  strf("must be auto or from 1 to %d", kMostDevices));
  }
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

}  // namespace pagoda
