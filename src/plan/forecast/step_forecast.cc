#include "plan/forecast/step_forecast.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "plan/step/steady_run.h"

namespace pagoda {
namespace {

constexpr int64_t kNoLimit = int64_t{1} << 60;  // bytes
constexpr int kStepsUntilSettled = 3, kQuickSteps = 2;

Result<MemoryPlan> divide(const RunShape& shape, const PageTable& pages, const PlannedRun& run,
                          const MemoryBudget& budget, bool quick = false) {
  return plan_memory(shape, pages, budget, run.header_bytes,
                     quick ? DivisionEffort::kQuick : DivisionEffort::kFull);
}

// The least memory beside the workspace, so that the workspace's size does not matter.
LeastMemory least_of(const RunShape& shape, const PlannedRun& run) {
  MemoryBudget budget;
  budget.device_bytes = budget.host_bytes = kNoLimit;
  budget.fixed_bytes.assign(static_cast<size_t>(shape.devices), 0);
  const MemoryPlan plan = divide(shape, PageTable(shape), run, budget).take();
  return {plan.min_device_bytes, plan.min_host_bytes};
}

int64_t most_fixed(const PlannedRun& run) {
  return *std::max_element(run.budget.fixed_bytes.begin(), run.budget.fixed_bytes.end());
}

std::vector<KindBytes> kinds_of(const PageTable& pages, const MemoryPlan& memory) {
  constexpr std::pair<PageKind, const char*> kKinds[] = {
      {PageKind::kWeights, "weights"},      {PageKind::kState, "state"},
      {PageKind::kGradient, "gradients"},   {PageKind::kActivation, "activations"},
      {PageKind::kLayerBuffer, "in-layer"}, {PageKind::kGradientSum, "sums"},
      {PageKind::kExpertSum, "expert sums"}};
  std::vector<KindBytes> kinds;
  for (const auto& [kind, name] : kKinds) {
    KindBytes bytes{name};
    for (const PageTable::Class& c : pages.classes) {
      if (c.kind == kind) bytes.all += c.total_bytes();
    }
    if (kind == PageKind::kExpertSum && bytes.all == 0) continue;
    bytes.device = std::min(bytes.all, memory.on_devices(pages, kind));
    bytes.host = std::min(bytes.all, memory.in_host(pages, kind));
    kinds.push_back(bytes);
  }
  return kinds;
}

// Buffers without room on the device are uploaded for one expert after the other, in the order of
// blocks and microbatches. Then blocks and microbatches stay as they are, as far as their number
// allows.
Coarseness fitting_coarseness(const PlannedRun& run, const LeastMemory& least,
                              const CoarseLimits& limits) {
  int64_t layer_buffers = 0;
  for (const PageTable::Class& c : PageTable(run.shape).classes) {
    if (c.kind == PageKind::kLayerBuffer) layer_buffers += c.total_bytes();
  }
  const bool stays =
      run.budget.device_bytes.least() - least.device_bytes - run.group_bytes >= layer_buffers;
  if (stays) return coarseness(run.shape, limits);
  return coarseness(run.shape, limits, true);
}

// Each of the experts that are one here would have uploaded the pages that do not stay.
void move_for_each_expert(int64_t experts, const RunShape& shape,
                          const std::vector<SlotClass>& classes, PageTable& pages) {
  if (layer_buffers_stay(shape, pages, classes)) return;
  for (PageTable::Page& page : pages.pages) {
    if (pages.classes[page.slot_class].kind == PageKind::kLayerBuffer) page.bytes *= experts;
  }
}

// Whether an expert's rows may come from one microbatch instead of all: only in-layer pages differ,
// and these stay.
bool gathers(const RunShape& shape, const PageTable& pages, const std::vector<SlotClass>& classes) {
  return shape.devices == 1 && layer_buffers_stay(shape, pages, classes);
}

// Row blocks of an expert, where all have as many rows.
int64_t blocks_of_expert(const RunShape& shape) {
  const int64_t rows = shape.microbatches * shape.microbatch_tokens * shape.experts_per_token /
                       std::max<int64_t>(1, shape.num_experts);
  return std::max<int64_t>(1, div_ceil(rows, shape.row_block));
}

// The waves of a layer (plan/step/expert_blocks.h), in each of which devices exchange parcels.
int64_t waves(const RunShape& shape) {
  return std::max<int64_t>(
      1, div_ceil(blocks_of_expert(shape) * shape.num_experts, shape.devices * shape.group_blocks));
}

// How many tasks divide an expert's rows by microbatch in each block.
double dispatches(const RunShape& shape, bool gathered) {
  const int64_t blocks = blocks_of_expert(shape);
  const int64_t groups = div_ceil(blocks, shape.group_blocks);                // of an expert
  const int64_t experts = std::max<int64_t>(1, shape.group_blocks / blocks);  // of a group
  return static_cast<double>(groups + (gathered ? 1 : shape.microbatches) - 1) /
         static_cast<double>(experts);
}

// Runs steps until pages have found their places, and then times one step.
class TimedStep {
 public:
  TimedStep(const RunShape& shape, const PageTable& pages, const MemoryPlan& memory)
      : shape_(shape),
        pages_(pages),
        plan_(shape, pages,
              {.training = shape.training, .state_on_device = memory.state_on_device}),
        classes_(memory.classes),
        forecast_(shape, pages, classes_),
        run_(&plan_, tokens(), &forecast_) {}

  Simulated simulate(const MachineProfile& profile, int steps_before);

 private:
  SteadyRun::Tokens tokens() const {
    return gathers(shape_, pages_, classes_) ? SteadyRun::Tokens::kGathered
                                             : SteadyRun::Tokens::kEven;
  }

  const RunShape& shape_;
  const PageTable& pages_;
  StepPlan plan_;
  std::vector<SlotClass> classes_;
  ExpertForecast forecast_;
  SteadyRun run_;
};

Simulated TimedStep::simulate(const MachineProfile& profile, int steps_before) {
  Replay replay(&pages_, all_on_disk(shape_, pages_, classes_));
  for (int i = 0; i < steps_before; ++i) {
    run_.step([&](const StepPiece& piece) {
      foresee(piece, replay);
      for (const Task& task : piece.tasks) replay.place(task);
    });
    if (i == 0) run_.pin(classes_, shape_.pinned_share);
  }
  Simulator simulator(&shape_, &pages_, profile, replay.residency());
  run_.step([&](const StepPiece& piece) { simulator.run(piece); });
  simulator.end_step();
  return simulator.finish();
}

Resource resource_of(const Simulated& step, const SimulatedWork& work) {
  const std::string& stream = step.streams[static_cast<size_t>(work.stream)].name;
  if (stream.starts_with("upload")) return Resource::kUpload;
  if (stream.starts_with("download")) return Resource::kDownload;
  if (stream.starts_with("drive")) return Resource::kDrive;
  if (stream == "optimizer") return Resource::kOptimizer;
  if (work.kind == TaskKind::kReceive) return Resource::kLinks;
  const bool on_gpu = work.cores == 0 && (stream.starts_with("out") || stream.starts_with("in"));
  return stream.starts_with("compute") || on_gpu ? Resource::kCompute : Resource::kCores;
}

double forward_end_s(const Simulated& step) {
  double end_s = 0;
  for (const SimulatedWork& work : step.works) {
    const bool head = work.kind == TaskKind::kHead || work.kind == TaskKind::kLoss;
    if (head && !work.moves) end_s = std::max(end_s, work.end_s);
  }
  return end_s;
}

// How long each resource works in [from, to): the mean over the devices of what each of them has.
void add_busy(const Simulated& step, const MachineSheet& sheet, int devices, double from_s,
              double to_s, PhaseForecast& phase) {
  phase.seconds = to_s - from_s;
  const bool duplex = !sheet.disk.half_duplex;
  for (const SimulatedWork& work : step.works) {
    const double inside = std::min(work.end_s, to_s) - std::max(work.start_s, from_s);
    if (inside <= 0) continue;
    const double own = work.own_s * inside / (work.end_s - work.start_s);
    const Resource resource = resource_of(step, work);
    const bool of_device = resource == Resource::kCompute || resource == Resource::kLinks ||
                           resource == Resource::kUpload || resource == Resource::kDownload;
    const bool half = resource == Resource::kDrive && duplex;
    const double share = of_device ? 1.0 / devices : half ? 0.5 : 1.0;
    if (resource != Resource::kCores) {
      phase.busy_s[static_cast<size_t>(resource)] += own * share;
    }
    phase.busy_s[static_cast<size_t>(Resource::kCores)] += own * work.cores / sheet.host.cores;
  }
}

std::vector<double> device_busy_s(const Simulated& step) {
  std::vector<double> busy_s;
  for (const SimulatedStream& stream : step.streams) {
    if (stream.name.starts_with("compute")) busy_s.push_back(stream.busy_s);
  }
  return busy_s;
}

void add_peaks(StepForecast& forecast) {
  for (const SimulatedMemory& held : forecast.simulated.memory) {
    if (held.device_bytes > forecast.device_peak.device_bytes) forecast.device_peak = held;
    if (held.host_bytes > forecast.host_peak.host_bytes) forecast.host_peak = held;
  }
  // The run's own pieces do not take the memory that was lent to coarse ones.
  int64_t& device = forecast.device_peak.device_bytes;
  int64_t& host = forecast.host_peak.host_bytes;
  device = std::min(device, forecast.device_bytes);
  host = std::min(host, forecast.host_bytes);
}

Status check_least(const LeastMemory& least, const PlannedRun& run) {
  if (run.budget.device_bytes.least() < least.device_bytes) {
    return Status(Exit::kDeviceMemory,
                  strf("the device has %s for a step that needs at least %s (%s of it workspace)",
                       format_bytes(run.budget.device_bytes.least()).c_str(),
                       format_bytes_up(least.device_bytes).c_str(),
                       format_bytes(most_fixed(run)).c_str()));
  }
  if (run.budget.host_bytes < least.host_bytes) {
    return Status(Exit::kHostMemory, strf("the host has %s for a step that needs at least %s",
                                          format_bytes(run.budget.host_bytes).c_str(),
                                          format_bytes_up(least.host_bytes).c_str()));
  }
  return Status();
}

}  // namespace

const char* resource_name(Resource resource) {
  switch (resource) {
    case Resource::kCompute:
      return "compute";
    case Resource::kLinks:
      return "links";
    case Resource::kUpload:
      return "upload";
    case Resource::kDownload:
      return "download";
    case Resource::kDrive:
      return "drive";
    case Resource::kOptimizer:
      return "optimizer";
    case Resource::kCores:
      return "cores";
  }
  return "";
}

Resource StepForecast::bottleneck() const {
  constexpr double kAlmostAll = 0.9;  // of the cores' work: then it has a name
  Resource most = Resource::kCompute;
  for (int r = 0; r < kResources; ++r) {
    if (busy_s(static_cast<Resource>(r)) > busy_s(most)) most = static_cast<Resource>(r);
  }
  if (most != Resource::kCores) return most;
  for (const Resource part : {Resource::kOptimizer, Resource::kCompute}) {
    if (busy_s(part) >= kAlmostAll * busy_s(Resource::kCores)) return part;
  }
  return most;
}

LeastMemory least_memory(const PlannedRun& run) {
  LeastMemory least = least_of(brief_shape(run.shape), run);
  least.device_bytes += most_fixed(run) - run.group_bytes;
  return least;
}

Result<StepForecast> forecast_step(const PlannedRun& run, const ModelShape& model,
                                   const MachineSheet& sheet, const CoarseLimits& limits) {
  StepForecast forecast;
  forecast.least = least_memory(run);
  RETURN_IF_ERROR(check_least(forecast.least, run));
  forecast.coarseness = fitting_coarseness(run, forecast.least, limits);
  RunShape shape = coarse_shape(run.shape, forecast.coarseness);
  PageTable pages(shape);
  // Coarse pieces need more memory at a time; it is lent.
  const LeastMemory coarse = least_of(brief_shape(shape), run);
  const int64_t lent_device =
      coarse.device_bytes + most_fixed(run) - forecast.least.device_bytes - run.group_bytes;
  const int64_t lent_host = coarse.host_bytes - forecast.least.host_bytes;
  MemoryBudget budget = run.budget;
  budget.device_bytes += lent_device;
  budget.host_bytes += lent_host;
  ASSIGN_OR_RETURN(const MemoryPlan memory, divide(shape, pages, run, budget, limits.quick));
  forecast.state_on_device = memory.state_on_device;
  shape = seated(std::move(shape), memory);
  forecast.device_bytes =
      *std::max_element(memory.device_slot_bytes.begin(), memory.device_slot_bytes.end()) +
      most_fixed(run) - lent_device;
  forecast.host_bytes = std::max<int64_t>(0, memory.host_slot_bytes - lent_host);
  forecast.whole_device_bytes = memory.whole_device_bytes - lent_device;
  forecast.whole_host_bytes = std::max<int64_t>(0, memory.whole_host_bytes - lent_host);
  forecast.kinds = kinds_of(pages, memory);
  if (run.kept_layer_bytes > 0) {
    const int64_t left = run.budget.device_bytes.least() - forecast.device_bytes;
    forecast.saved_layers =
        std::clamp<int64_t>(left / run.kept_layer_bytes, 0, run.shape.num_layers);
  }
  CostSettings work{run.sequence_len, memory.state_on_device, forecast.coarseness};
  work.group_blocks = run.shape.group_blocks;
  work.devices = run.devices;
  work.dispatches = static_cast<double>(forecast.coarseness.experts) *
                    dispatches(run.shape, false) /
                    dispatches(shape, gathers(shape, pages, memory.classes));
  work.messages = static_cast<double>(waves(run.shape)) / static_cast<double>(waves(shape));
  work.kept_share =
      static_cast<double>(forecast.saved_layers) / static_cast<double>(run.shape.num_layers);
  const MachineProfile profile = task_costs(sheet, model, shape, work);
  move_for_each_expert(forecast.coarseness.experts, shape, memory.classes, pages);
  forecast.simulated = TimedStep(shape, pages, memory)
                           .simulate(profile, limits.quick ? kQuickSteps : kStepsUntilSettled);
  const double middle_s = forward_end_s(forecast.simulated);
  const double end_s = forecast.simulated.step_s.back();
  add_busy(forecast.simulated, sheet, shape.devices, 0, middle_s, forecast.forward);
  add_busy(forecast.simulated, sheet, shape.devices, middle_s, end_s, forecast.backward);
  forecast.device_busy_s = device_busy_s(forecast.simulated);
  forecast.traffic = forecast.simulated.traffic;
  add_peaks(forecast);
  return forecast;
}

}  // namespace pagoda
