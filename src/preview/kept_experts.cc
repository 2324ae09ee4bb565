#include "preview/kept_experts.h"

#include <algorithm>
#include <vector>

#include "base/dtype.h"
#include "optim/state_format.h"
#include "plan/zebra/zebra_search.h"
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

template <typename Number>
std::string spaced(const std::vector<Number>& numbers) {
  std::string text;
  for (const Number n : numbers) text += " " + std::to_string(n);
  return text;
}

// What a step of the run is, beside its devices.
std::string step_key(const RunSetup& setup) {
  const WorkspaceSize& size = setup.size;
  const PlanOptions& plan = setup.plan;
  return strf(
      "%lld microbatches in %lld chunks, %lld shards and %lld shards of experts, %s, states %s, "
      "z-loss %d, eager updates %d, pinned %g, options %d%d%d%d%d%d, groups of %lld",
      (long long)size.microbatches, (long long)size.sums.chunks, (long long)size.sums.shards,
      (long long)size.sums.expert_shards, dtype_name(size.dtype),
      state_format_name(setup.adam.state), size.z_loss, setup.eager_adam, setup.pinned_share,
      plan.prefetch, plan.optimizer_at_end, plan.whole_layers, plan.microbatch_major,
      plan.padded_experts, plan.in_place, (long long)plan.group_blocks);
}

}  // namespace

std::string kept_experts_key(const ModelShape& model, const RunSetup& setup,
                             const DeviceBudget& budget) {
  const auto moe_layers = std::count_if(model.is_moe.begin(), model.is_moe.end(),
                                        [](uint8_t is_moe) { return is_moe != 0; });
  std::string key =
      strf("%lld layers, %lld of them of %lld experts, %lld parameters, %lld of them frozen; ",
           (long long)model.num_layers(), (long long)moe_layers, (long long)model.num_experts,
           (long long)count_parameters(model).total, (long long)setup.frozen.elements);
  key += step_key(setup);
  key += strf(
      "; %d stages with layers%s, order %d, %d copies, exchange %d, shares %d, lags %d %d %d, ",
      setup.stages, spaced(setup.stage_layers).c_str(), static_cast<int>(setup.pipeline_order),
      setup.copies, static_cast<int>(setup.exchange), static_cast<int>(setup.shares),
      setup.lags.head, setup.lags.attention, setup.lags.expert);
  key += strf("%lld kept rows, attention on%s; ", (long long)setup.kept_rows,
              spaced(setup.size.shard_device).c_str());
  for (int d = 0; d < setup.num_devices(); ++d) {
    const DeviceSetup& device = setup.devices[static_cast<size_t>(d)];
    key += strf("%s%s of %d threads with %lld bytes", d == 0 ? "" : ", ", device.name.c_str(),
                device.threads, (long long)budget.of(d));
  }
  return key;
}

Result<KeptExperts> kept_experts(const ModelConfig& model, const RunConfig& config,
                                 const DeviceBudget& budget) {
  if (!config.zebra()) return KeptExperts();
  SessionOptions options = session_options(config);
  RETURN_IF_ERROR(set_frozen(config, model, options));
  KeptExperts kept;
  kept.run = kept_experts_key(model_shape(model), options, budget);
  // Larger groups take what memory has to spare.
  if (options.plan.group_blocks == 0) options.plan.group_blocks = 1;
  const RunShape shape = make_run_shape(model_shape(model), options);
  options.device_bytes = options.host_bytes = kRoomForAll;
  const auto fits = [&](int64_t experts, bool attending) -> Result<bool> {
    options.offloaded = spread_experts(experts, shape.is_moe);
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
  ASSIGN_OR_RETURN(kept.least, search(false));
  ASSIGN_OR_RETURN(const int64_t most, search(true));
  kept.most = most / std::ssize(shape.attending_devices());
  return kept;
}

}  // namespace pagoda
