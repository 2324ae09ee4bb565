#include "preview/kept_experts.h"

#include <vector>

#include "plan/zebra/run_zebra.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

bool all_fit(const std::vector<int64_t>& whole, const DeviceBudget& budget, const RunShape& shape,
             bool attending) {
  for (int d = 0; d < shape.devices; ++d) {
    if (shape.attends(d) != attending) continue;
    if (whole[static_cast<size_t>(d)] > budget.of(d)) return false;
  }
  return true;
}

}  // namespace

Result<KeptExperts> kept_experts(const ModelConfig& model, const RunConfig& config) {
  if (!config.zebra()) return KeptExperts();
  SessionOptions options = session_options(config);
  RETURN_IF_ERROR(set_frozen(config, model, options));
  // Larger groups take what memory has to spare.
  if (options.plan.group_blocks == 0) options.plan.group_blocks = 1;
  const RunShape shape = make_run_shape(model_shape(model), options);
  const DeviceBudget budget = config.device_budget();
  options.device_bytes = options.host_bytes = kRoomForAll;
  const auto fits = [&](int64_t kept, bool attending) -> Result<bool> {
    options.offloaded = spread_experts(kept, shape.is_moe);
    ASSIGN_OR_RETURN(const MemoryPlan plan, Session::plan(model, options));
    return all_fit(plan.whole_on_device, budget, shape, attending);
  };
  const int64_t all = model.num_experts * model.num_moe_layers();
  // Those that attend hold fewer and the others more, the fewer are kept.
  const auto search = [&](bool attending) -> Result<int64_t> {
    int64_t least = 0, most = all;  // the answer is in between
    while (least < most) {
      const int64_t middle = attending ? (least + most + 1) / 2 : (least + most) / 2;
      ASSIGN_OR_RETURN(const bool fit, fits(middle, attending));
      if (attending) {
        (fit ? least : most) = fit ? middle : middle - 1;
      } else {
        (fit ? most : least) = fit ? middle : middle + 1;
      }
    }
    return least;
  };
  KeptExperts kept;
  ASSIGN_OR_RETURN(kept.least, search(false));
  ASSIGN_OR_RETURN(const int64_t most, search(true));
  kept.most = most / std::ssize(shape.attending_devices());
  return kept;
}

}  // namespace pagoda
