#include "preview/few_layers.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "config/option_value.h"
#include "plan/machine/model_cost.h"
#include "plan/step/stages.h"

namespace pagoda {
namespace {

// Bytes of a record's weights, and where it is at home with its gradient and state.
int64_t record_bytes(const RunShape& shape, int64_t record, bool with_state) {
  const RecordShape& of = shape.records[static_cast<size_t>(record)];
  const int64_t weights = shape.dtype_bytes * of.num_elements;
  const int64_t gradient = shape.dtype_bytes * of.trained_elements();
  return with_state ? weights + gradient + of.state_bytes : weights;
}

// What a device has of a record if all stays on the devices, or of weights alone.
int64_t on_device(const RunShape& shape, int device, int64_t record, bool all_stays) {
  const RecordShape& of = shape.records[static_cast<size_t>(record)];
  const bool home = of.device == device;
  const bool copied = shape.is_copied(record) && shape.computes_with(device, record);
  const bool weights = copied || (home && (all_stays || of.expert >= 0));
  return weights ? record_bytes(shape, record, home && all_stays) : 0;
}

bool all_stays(const PlannedRun& run, int64_t least_bytes) {
  const RunShape& shape = run.shape;
  const DeviceRange own = shape.own_devices();
  for (int d = own.first; d < own.end(); ++d) {
    int64_t bytes = least_bytes;
    for (int64_t r = 0; r <= shape.head(); ++r) bytes += on_device(shape, d, r, true);
    if (bytes > run.budget.device_bytes.of(d - own.first)) return false;
  }
  return true;
}

// What a device, or a rank's host, has of embedding and head, which are there once.
int64_t once_on_device(const RunShape& shape, int device, bool all_stays) {
  return on_device(shape, device, shape.embedding(), all_stays) +
         on_device(shape, device, shape.head(), all_stays);
}
int64_t once_in_host(const RunShape& shape) {
  int64_t bytes = 0;
  for (const int64_t record : {shape.embedding(), shape.head()}) {
    const bool home = shape.is_home(record);
    const bool used = home || shape.rank_computes_with(shape.rank, record);
    bytes += used ? record_bytes(shape, record, home) : 0;
  }
  return bytes;
}

// What a run needs at a time, and what there is once; of a device or a host.
struct Fixed {
  int64_t least = 0, once = 0;
};

// A budget that has room for `share` of the layers that `bytes` has room for.
MemorySize room_for(double share, int64_t bytes, const Fixed& whole, const Fixed& fewer) {
  const int64_t beyond = bytes - whole.least;
  if (beyond <= whole.once) return MemorySize::of_bytes(fewer.least + std::max<int64_t>(0, beyond));
  const auto of_layers = static_cast<double>(beyond - whole.once);
  return MemorySize::of_bytes(fewer.least + fewer.once + static_cast<int64_t>(share * of_layers));
}

// How much longer than a step of the line the busiest resource may be busy, which the step then is.
constexpr double kMostLonger = 1.1;

// A rank of a run, and what it needs at least.
struct RankNeed {
  const PlannedRun& run;
  LeastMemory least = {};
  bool all_stays = false;  // on the devices

  Fixed on_device(int device) const {
    const auto own = static_cast<size_t>(device - run.shape.own_devices().first);
    return {least.on_device[own] + run.group_bytes[own],
            once_on_device(run.shape, device, all_stays)};
  }
  Fixed in_host() const { return {least.host_bytes, once_in_host(run.shape)}; }
};

// Continues a line through two points.
struct Line {
  double further = 0;  // the wanted's distance from the first, in the first's to the second
  double operator()(double first, double second) const {
    return std::max(0.0, first + further * (second - first));
  }
  int64_t operator()(int64_t first, int64_t second) const {
    return static_cast<int64_t>((*this)(static_cast<double>(first), static_cast<double>(second)));
  }
};

// Layers in one of the runs with few, and in the whole.
struct LayerCounts {
  int64_t few = 0, whole = 0;
  double share() const { return static_cast<double>(few) / static_cast<double>(whole); }
  // Continues what grows with them, through the run of these few and that of twice as many.
  Line line() const { return {static_cast<double>(whole - few) / static_cast<double>(few)}; }
};

// The same of each stage.
struct StageLayers {
  std::vector<int64_t> few, whole;  // [stage]

  LayerCounts of_stage(int stage) const {
    return {few[static_cast<size_t>(stage)], whole[static_cast<size_t>(stage)]};
  }
  // Those of the stages of all devices of the shape's rank.
  LayerCounts of_rank(const RunShape& shape) const {
    LayerCounts all;
    const DeviceRange own = shape.own_devices();
    for (int d = own.first; d < own.end(); ++d) {
      const LayerCounts of_device = of_stage(shape.stages.of_device(d));
      all.few += of_device.few;
      all.whole += of_device.whole;
    }
    return all;
  }
  LayerCounts in_all() const {
    return {std::accumulate(few.begin(), few.end(), int64_t{0}),
            std::accumulate(whole.begin(), whole.end(), int64_t{0})};
  }
  StageLayers twice() const {
    StageLayers more = *this;
    for (int64_t& layers : more.few) layers *= 2;
    return more;
  }
};

// How long the stage takes that takes longest, if it has so many layers.
double longest(const std::vector<int64_t>& layers, const std::vector<double>& speeds) {
  double most = 0;
  for (size_t s = 0; s < layers.size(); ++s) {
    most = std::max(most, static_cast<double>(layers[s]) / (speeds.empty() ? 1 : speeds[s]));
  }
  return most;
}

// The memory of a run with few layers: as much of each stays in it as among all.
RunConfig::Memory memory_for(const StageLayers& layers, RunConfig::Memory memory,
                             const RankNeed& whole, const RankNeed& fewer) {
  const MemoryBudget& budget = whole.run.budget;
  const RunShape& shape = whole.run.shape;
  const DeviceRange own = shape.own_devices();
  std::vector<MemorySize> devices;
  for (int d = own.first; d < own.end(); ++d) {
    const double share = layers.of_stage(shape.stages.of_device(d)).share();
    devices.push_back(room_for(share, budget.device_bytes.of(d - own.first), whole.on_device(d),
                               fewer.on_device(d)));
  }
  memory.device = MemorySizes(std::move(devices));
  memory.host =
      room_for(layers.of_rank(shape).share(), budget.host_bytes, whole.in_host(), fewer.in_host());
  return memory;
}

// Forecasts one of the runs with few layers, with the memory that follows from the whole's needs.
Result<RanksForecast> forecast_with(const StageLayers& layers, const ModelSizes& model,
                                    std::span<const RunConfig> configs, const ClusterSheet& cluster,
                                    const std::vector<RankNeed>& whole,
                                    const CoarseLimits& limits) {
  const LayerCounts in_all = layers.in_all();
  const ModelSizes few_model = with_layers(model, in_all.few);
  std::vector<RunConfig> fewer(configs.begin(), configs.end());
  for (size_t r = 0; r < fewer.size(); ++r) {
    offload_alike(model.shape, fewer[r]);
    fewer[r].parallel.stage_layers = texts_of(layers.few);
    // Rows travel in as many waves as among all layers, whose groups the least has no room for.
    fewer[r].plan.group_blocks = whole[r].run.shape.group_blocks;
    fewer[r].plan.waves_in_flight = whole[r].run.shape.waves_in_flight;
  }
  ASSIGN_OR_RETURN(const std::vector<PlannedRun> planned, planned_ranks(few_model, fewer, cluster));
  for (size_t r = 0; r < fewer.size(); ++r) {
    const RankNeed need{planned[r], least_memory(planned[r]), whole[r].all_stays};
    fewer[r].memory = memory_for(layers, configs[r].memory, whole[r], need);
  }
  CoarseLimits coarse = limits;
  const auto of_layers = [&](int64_t limit) {
    return std::max<int64_t>(1, limit * in_all.few / in_all.whole);
  };
  coarse.expert_records = of_layers(limits.expert_records);
  coarse.blocks = of_layers(limits.blocks);
  return forecast_ranks(few_model, fewer, cluster, coarse);
}

PhaseForecast continued(const PhaseForecast& first, const PhaseForecast& second, const Line& line) {
  PhaseForecast phase;
  phase.seconds = line(first.seconds, second.seconds);
  for (size_t r = 0; r < phase.busy_s.size(); ++r) {
    phase.busy_s[r] = line(first.busy_s[r], second.busy_s[r]);
  }
  return phase;
}

StepForecast::Rank continued(const StepForecast::Rank& first, const StepForecast::Rank& second,
                             const Line& line) {
  StepForecast::Rank rank = second;
  rank.device_bytes = line(first.device_bytes, second.device_bytes);
  rank.host_bytes = line(first.host_bytes, second.host_bytes);
  rank.sent_bytes = line(first.sent_bytes, second.sent_bytes);
  for (PageTraffic::Link PageTraffic::*link : {&PageTraffic::fetch, &PageTraffic::upload,
                                               &PageTraffic::download, &PageTraffic::write_back}) {
    PageTraffic::Link& of = rank.traffic.*link;
    const PageTraffic::Link& from = first.traffic.*link;
    of = {line(from.moves, of.moves), line(from.bytes, of.bytes)};
  }
  return rank;
}

}  // namespace

bool tell_all(PipelineOrder order, std::span<const int64_t> stage_layers) {
  const auto [least, most] = std::ranges::minmax(stage_layers);
  return most - least <= 1 || order == PipelineOrder::kBreadthFirst;
}

bool has_alike_layers(const ModelShape& model) {
  const auto moe = std::count(model.is_moe.begin(), model.is_moe.end(), uint8_t{1});
  return model.conv_layers() == 0 && 8 * (model.num_layers() - moe) <= model.num_layers();
}

ModelSizes with_layers(ModelSizes model, int64_t layers) {
  model.shape.is_moe.assign(static_cast<size_t>(layers), 1);
  model.shape.is_conv.clear();
  model.shape.dense_ffn = 0;
  model.config.num_layers = layers;
  model.config.first_dense_layers = 0;
  model.config.mlp_only_layers.clear();
  return model;
}

std::vector<int64_t> few_layers(std::span<const int64_t> whole, bool copies) {
  const int64_t fewest = (whole.size() == 1 ? 2 : 1) + (copies ? 1 : 0);
  const int64_t least = *std::min_element(whole.begin(), whole.end());
  std::vector<int64_t> few;
  for (const int64_t layers : whole) few.push_back((2 * fewest * layers + least) / (2 * least));
  return few;
}

void offload_alike(const ModelShape& model, RunConfig& config) {
  const std::vector<int64_t> offloaded = config.offloaded();
  const auto moe = std::count(model.is_moe.begin(), model.is_moe.end(), uint8_t{1});
  if (!config.zebra() || offloaded.size() == 1 || moe == 0) return;
  const int64_t all = std::accumulate(offloaded.begin(), offloaded.end(), int64_t{0});
  config.parallel.offloaded = {std::to_string((all + moe / 2) / moe)};
}

Status continue_step(const StepForecast& first, double further, RanksForecast& second) {
  const Line line{further};
  StepForecast& step = second.step;
  step.forward = continued(first.forward, step.forward, line);
  step.backward = continued(first.backward, step.backward, line);
  double busiest_s = 0;
  for (int r = 0; r < kResources; ++r) {
    busiest_s = std::max(busiest_s, step.busy_s(static_cast<Resource>(r)));
  }
  const double longer = busiest_s / step.step_s();
  if (step.step_s() <= first.step_s() || longer > kMostLonger || second.mfu() > 1) {
    return Status(Exit::kUsage, "steps of a few layers do not tell how long one of all takes");
  }
  for (PhaseForecast* phase : {&step.forward, &step.backward}) {
    phase->seconds *= std::max(1.0, longer);
  }
  return Status();
}

void continue_devices(const StepForecast& first, std::span<const int64_t> few,
                      RanksForecast& second) {
  const int stages = static_cast<int>(std::ssize(few));
  std::vector<double>& busy_s = second.step.device_busy_s;
  for (int stage = 0; stage < stages; ++stage) {
    const auto s = static_cast<size_t>(stage);
    const Line line = LayerCounts{few[s], second.stage_layers[s]}.line();
    const DeviceRange own = devices_of_stage(stage, stages, static_cast<int>(std::ssize(busy_s)));
    for (int d = own.first; d < own.end(); ++d) {
      double& of_device = busy_s[static_cast<size_t>(d)];
      of_device = line(first.device_busy_s[static_cast<size_t>(d)], of_device);
    }
  }
}

Result<RanksForecast> forecast_few_layers(const ModelSizes& model,
                                          std::span<const RunConfig> configs,
                                          const ClusterSheet& cluster, const CoarseLimits& limits) {
  ASSIGN_OR_RETURN(std::vector<PlannedRun> whole, planned_ranks(model, configs, cluster));
  return forecast_few_layers(model, configs, cluster, std::move(whole), limits);
}

Result<RanksForecast> forecast_few_layers(const ModelSizes& model,
                                          std::span<const RunConfig> configs,
                                          const ClusterSheet& cluster,
                                          std::vector<PlannedRun> whole,
                                          const CoarseLimits& limits) {
  const Stages stages = whole.front().shape.stages;
  const std::vector<int64_t> counts = stages.layer_counts(model.shape.num_layers());
  const bool copies = configs.front().copies() > 1;
  const StageLayers fewest{few_layers(counts, copies), counts};
  std::vector<RankNeed> needs;
  bool fits = true, stays = true;
  for (const PlannedRun& run : whole) {
    const LeastMemory least = least_memory(run);
    needs.push_back({run, least});
    stays = stays && all_stays(run, least.device_bytes);
    fits = fits && run.budget.device_bytes.least() >= least.device_bytes &&
           run.budget.host_bytes >= least.host_bytes;
  }
  if (!fits) return forecast_ranks(model, configs, cluster, std::move(whole), limits);
  for (RankNeed& need : needs) need.all_stays = stays;
  ASSIGN_OR_RETURN(const RanksForecast first,
                   forecast_with(fewest, model, configs, cluster, needs, limits));
  ASSIGN_OR_RETURN(RanksForecast all,
                   forecast_with(fewest.twice(), model, configs, cluster, needs, limits));
  const double few_s = longest(fewest.few, stages.speeds);
  all.stage_layers = counts;
  const auto sequences = static_cast<double>(all.tokens / configs.front().data.sequence_len);
  all.flops =
      model_flops(model_cost(model.shape).take(), configs.front().data.sequence_len, sequences);
  const double further_s = longest(fewest.whole, stages.speeds) - few_s;
  RETURN_IF_ERROR(continue_step(first.step, further_s / few_s, all));
  continue_devices(first.step, fewest.few, all);
  for (size_t r = 0; r < whole.size(); ++r) {
    const MemoryBudget& budget = whole[r].budget;
    const Line further = fewest.of_rank(needs[r].run.shape).line();
    all.budgets[r] = {budget.device_bytes.least(), budget.host_bytes};
    all.store_bytes[r] = further(first.store_bytes[r], all.store_bytes[r]);
    StepForecast::Rank& rank = all.step.ranks[r];
    rank = continued(first.step.ranks[r], rank, further);
    rank.least = needs[r].least;
    // The line does not know where the budget ends.
    rank.device_bytes = std::min(rank.device_bytes, budget.device_bytes.most());
    rank.host_bytes = std::min(rank.host_bytes, budget.host_bytes);
    const int64_t disk = cluster.nodes[r].disk_bytes();
    if (disk == 0 || all.store_bytes[r] <= disk) continue;
    return Status(Exit::kDoesNotFit,
                  strf("the drives of rank %zu hold %s for a store of at least %s", r,
                       format_bytes(disk).c_str(), format_bytes_up(all.store_bytes[r]).c_str()));
  }
  return all;
}

}  // namespace pagoda
