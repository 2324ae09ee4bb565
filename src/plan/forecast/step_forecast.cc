#include "plan/forecast/step_forecast.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/si_units.h"
#include "plan/step/steady_run.h"

namespace pagoda {
namespace {

constexpr int kStepsUntilSettled = 3, kQuickSteps = 2;

Result<MemoryPlan> divide(const RunShape& shape, const PageTable& pages, const PlannedRun& run,
                          const MemoryBudget& budget, bool quick = false) {
  return plan_memory(shape, pages, budget, run.header_bytes,
                     quick ? DivisionEffort::kQuick : DivisionEffort::kFull);
}

// The least memory beside the workspace.
LeastMemory least_of(const RunShape& shape, const PlannedRun& run) {
  LeastSlots least = least_slots(shape, PageTable(shape), run.header_bytes);
  return {*std::max_element(least.device_bytes.begin(), least.device_bytes.end()), least.host_bytes,
          std::move(least.device_bytes)};
}

// What each of the rank's devices would have left beyond what a step takes.
std::vector<int64_t> spare_bytes(const PlannedRun& run, const LeastMemory& least) {
  std::vector<int64_t> spare;
  for (size_t d = 0; d < least.on_device.size(); ++d) {
    const int64_t taken = least.on_device[d] + run.chosen_bytes(d);
    spare.push_back(run.budget.device_bytes.of(static_cast<int>(d)) - taken);
  }
  return spare;
}

std::vector<KindBytes> kinds_of(const PageTable& pages, const MemoryPlan& memory) {
  constexpr std::pair<PageKind, const char*> kKinds[] = {
      {PageKind::kWeights, "weights"},       {PageKind::kState, "state"},
      {PageKind::kGradient, "gradients"},    {PageKind::kActivation, "activations"},
      {PageKind::kLayerBuffer, "in-layer"},  {PageKind::kGradientSum, "sums"},
      {PageKind::kExpertSum, "expert sums"}, {PageKind::kGuestWeights, "guests"}};
  std::vector<KindBytes> kinds;
  for (const auto& [kind, name] : kKinds) {
    KindBytes bytes{name};
    for (const PageTable::Class& c : pages.classes) {
      if (c.kind == kind) bytes.all += c.total_bytes();
    }
    const bool of_some_runs = kind == PageKind::kExpertSum || kind == PageKind::kGuestWeights;
    if (of_some_runs && bytes.all == 0) continue;
    bytes.device = std::min(bytes.all, memory.on_devices(pages, kind));
    bytes.host = std::min(bytes.all, memory.in_host(pages, kind));
    kinds.push_back(bytes);
  }
  return kinds;
}

// A rank's part of the forecast run.
struct RankPlan {
  const PlannedRun& run;
  const MachineSheet& sheet;
  RunShape shape = {};
  std::optional<PageTable> pages = {};
  LeastMemory least = {};
  LeastMemory lent = {};  // beyond the budgets, for coarse pieces
  MemoryPlan memory = {};

  void coarsen(const Coarseness& coarseness);
  Status divide(const RoomOfRanks& room, bool quick);
  std::vector<int64_t> used_bytes() const;
  int64_t saved_layers() const;
  StepForecast::Rank forecast() const;
};

// Coarse pieces need more memory at a time; it is lent.
void RankPlan::coarsen(const Coarseness& coarseness) {
  shape = coarse_shape(run.shape, coarseness);
  pages.emplace(shape);
  const LeastMemory coarse = least_of(brief_shape(shape), run);
  lent = {std::numeric_limits<int64_t>::min(), coarse.host_bytes - least.host_bytes};
  for (size_t d = 0; d < coarse.on_device.size(); ++d) {
    const int64_t fine = least.on_device[d] + run.chosen_bytes(d) - run.budget.fixed_bytes[d];
    lent.device_bytes = std::max(lent.device_bytes, coarse.on_device[d] - fine);
  }
}

Status RankPlan::divide(const RoomOfRanks& room, bool quick) {
  shape.in_place = shape.in_place && room.in_place;
  MemoryBudget budget = run.budget;
  budget.device_bytes += lent.device_bytes;
  budget.host_bytes += lent.host_bytes;
  ASSIGN_OR_RETURN(memory, pagoda::divide(shape, *pages, run, room.of(std::move(budget)), quick));
  return Status();
}

// [own device] workspace and slots.
std::vector<int64_t> RankPlan::used_bytes() const {
  std::vector<int64_t> used = memory.device_slot_bytes;
  for (size_t d = 0; d < used.size(); ++d) {
    used[d] += run.budget.fixed_bytes[d] - lent.device_bytes;
  }
  return used;
}

// Every device that keeps anything has room for the layers that do.
int64_t RankPlan::saved_layers() const {
  const std::vector<int64_t> used = used_bytes();
  int64_t layers = run.shape.num_layers;
  bool keeps = false;
  for (size_t d = 0; d < run.kept_layer_bytes.size(); ++d) {
    const int64_t of_layer = run.kept_layer_bytes[d];
    if (of_layer == 0) continue;
    const int64_t left = run.budget.device_bytes.of(static_cast<int>(d)) - used[d];
    layers = std::min(layers, left / of_layer);
    keeps = true;
  }
  return keeps ? std::max<int64_t>(0, layers) : 0;
}

StepForecast::Rank RankPlan::forecast() const {
  const std::vector<int64_t> used = used_bytes();
  const auto most = std::max_element(used.begin(), used.end());
  return {least,
          *most,
          static_cast<int>(most - used.begin()),
          std::max<int64_t>(0, memory.host_slot_bytes - lent.host_bytes),
          {},
          0};
}

// Where one rank has no room for the states on its devices, for guests beside these, or for rows
// that are read in place, all do without.
Status divide(std::vector<RankPlan>& ranks, bool quick) {
  for (RankPlan& rank : ranks) RETURN_IF_ERROR(rank.divide({}, quick));
  const auto all = [&](bool MemoryPlan::*has_room) {
    return std::all_of(ranks.begin(), ranks.end(),
                       [&](const RankPlan& rank) { return rank.memory.*has_room; });
  };
  const RoomOfRanks room{all(&MemoryPlan::state_on_device), all(&MemoryPlan::weights_travel),
                         all(&MemoryPlan::in_place)};
  for (RankPlan& rank : ranks) {
    if (!room.holds(rank.memory)) RETURN_IF_ERROR(rank.divide(room, quick));
    rank.shape = seated(std::move(rank.shape), rank.memory);
  }
  return Status();
}

// Buffers without room on the device are uploaded for one expert after the other, in the order of
// blocks and microbatches. Then blocks and microbatches stay as they are, as far as their number
// allows.
Coarseness fitting_coarseness(const std::vector<RankPlan>& ranks, const CoarseLimits& limits) {
  const RunShape& shape = ranks.front().run.shape;
  int64_t layer_buffers = 0;
  for (const PageTable::Class& c : PageTable(shape).classes) {
    if (c.kind == PageKind::kLayerBuffer) layer_buffers += c.total_bytes();
  }
  const bool stays = std::all_of(ranks.begin(), ranks.end(), [&](const RankPlan& rank) {
    const std::vector<int64_t> spare = spare_bytes(rank.run, rank.least);
    return *std::min_element(spare.begin(), spare.end()) >= layer_buffers;
  });
  if (stays) return coarseness(shape, limits);
  return coarseness(shape, limits, true);
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

// Each of the experts that are one here would have uploaded the pages that do not stay.
void move_for_each_expert(int64_t experts, std::vector<RankPlan>& ranks) {
  const bool stay = std::all_of(ranks.begin(), ranks.end(), [](const RankPlan& rank) {
    return layer_buffers_stay(rank.shape, *rank.pages, rank.memory.classes);
  });
  for (RankPlan& rank : ranks) {
    for (PageTable::Page& page : rank.pages->pages) {
      const PageKind kind = rank.pages->classes[page.slot_class].kind;
      if (!stay && kind == PageKind::kLayerBuffer) page.bytes *= experts;
    }
  }
}

// Runs steps until pages have found their places, and then times one step.
class TimedStep {
 public:
  // `ranks` must outlive it.
  explicit TimedStep(const std::vector<RankPlan>& ranks) {
    for (const RankPlan& rank : ranks) ranks_.push_back(std::make_unique<Rank>(rank));
  }

  Simulated simulate(const std::vector<MachineProfile>& profiles, int steps_before);

 private:
  struct Rank {
    explicit Rank(const RankPlan& of)
        : plan(of.shape, *of.pages,
               {.training = of.shape.training, .state_on_device = of.memory.state_on_device}),
          classes(of.memory.classes),
          forecast(of.shape, *of.pages, classes),
          run(&plan,
              gathers(of.shape, *of.pages, classes) ? SteadyRun::Tokens::kGathered
                                                    : SteadyRun::Tokens::kEven,
              &forecast),
          replay(&*of.pages, all_on_disk(of.shape, *of.pages, classes)) {
      if (of.run.routing != nullptr) run.set_routing(*of.run.routing);
    }

    StepPlan plan;
    std::vector<SlotClass> classes;
    ExpertForecast forecast;
    SteadyRun run;
    Replay replay;
  };
  void settle(Rank& rank, int steps) const;

  std::vector<std::unique_ptr<Rank>> ranks_;
};

void TimedStep::settle(Rank& rank, int steps) const {
  for (int i = 0; i < steps; ++i) {
    rank.run.step([&](const StepPiece& piece) {
      foresee(piece, rank.replay);
      for (const Task& task : piece.tasks) rank.replay.place(task);
    });
    if (i == 0) rank.run.pin(rank.classes, rank.plan.shape().pinned_share);
  }
}

Simulated TimedStep::simulate(const std::vector<MachineProfile>& profiles, int steps_before) {
  std::vector<Simulator::Machine> machines;
  std::vector<std::vector<StepPiece>> pieces(ranks_.size());  // of all ranks but the first
  for (size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = *ranks_[r];
    settle(rank, steps_before);
    machines.push_back({profiles[r], rank.replay.residency()});
    if (r == 0) continue;
    rank.run.step([&](const StepPiece& piece) { pieces[r].push_back(piece); });
  }
  const StepPlan& plan = ranks_.front()->plan;
  Simulator simulator(&plan.shape(), &plan.pages(), std::move(machines));
  std::vector<const StepPiece*> together(ranks_.size());
  size_t next = 0;
  ranks_.front()->run.step([&](const StepPiece& piece) {
    together[0] = &piece;
    for (size_t r = 1; r < ranks_.size(); ++r) together[r] = &pieces[r][next];
    simulator.run(together);
    ++next;
  });
  simulator.end_step();
  return simulator.finish();
}

Resource resource_of(const Simulated& step, const SimulatedWork& work) {
  const std::string& stream = step.streams[static_cast<size_t>(work.stream)].name;
  if (stream.starts_with("upload")) return Resource::kUpload;
  if (stream.starts_with("download")) return Resource::kDownload;
  if (stream.starts_with("drive")) return Resource::kDrive;
  if (stream.starts_with("optimizer")) return Resource::kOptimizer;
  if (stream.starts_with("network")) return Resource::kNetwork;
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

// How long each resource works in [from, to): the mean over the devices, or the ranks, of what each
// of them has.
void add_busy(const Simulated& step, const std::vector<RankPlan>& ranks, double from_s, double to_s,
              PhaseForecast& phase) {
  phase.seconds = to_s - from_s;
  const RunShape& shape = ranks.front().shape;
  const bool duplex = !ranks.front().sheet.disk.half_duplex;
  double cores = 0;
  for (const RankPlan& rank : ranks) cores += rank.sheet.host.cores;
  for (const SimulatedWork& work : step.works) {
    const double inside = std::min(work.end_s, to_s) - std::max(work.start_s, from_s);
    if (inside <= 0) continue;
    const double own = work.own_s * inside / (work.end_s - work.start_s);
    const Resource resource = resource_of(step, work);
    const bool of_device = resource == Resource::kCompute || resource == Resource::kLinks ||
                           resource == Resource::kUpload || resource == Resource::kDownload ||
                           (resource == Resource::kNetwork && !shape.shares_cards);
    const bool half = resource == Resource::kDrive && duplex;
    const double share =
        of_device ? 1.0 / shape.devices : (half ? 0.5 : 1.0) / static_cast<double>(ranks.size());
    if (resource != Resource::kCores) {
      phase.busy_s[static_cast<size_t>(resource)] += own * share;
    }
    phase.busy_s[static_cast<size_t>(Resource::kCores)] += own * work.cores / cores;
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
  const std::string of =
      run.shape.ranks() > 1 ? strf("of rank %d ", run.shape.rank) : std::string();
  const int device = tightest_device(run.budget.device_bytes, least);
  const auto d = static_cast<size_t>(device);
  if (run.budget.device_bytes.of(device) < least.on_device[d]) {
    const std::string which = device > 0 ? strf("device %d ", device) : "the device ";
    return Status(Exit::kDeviceMemory,
                  which + strf("%shas %s for a step that needs at least %s (%s of it workspace)",
                               of.c_str(), format_bytes(run.budget.device_bytes.of(device)).c_str(),
                               format_bytes_up(least.on_device[d]).c_str(),
                               format_bytes(run.budget.fixed_bytes[d]).c_str()));
  }
  if (run.budget.host_bytes < least.host_bytes) {
    return Status(Exit::kHostMemory, strf("the host %shas %s for a step that needs at least %s",
                                          of.c_str(), format_bytes(run.budget.host_bytes).c_str(),
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
    case Resource::kNetwork:
      return "network";
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
  for (size_t d = 0; d < least.on_device.size(); ++d) {
    least.on_device[d] += run.budget.fixed_bytes[d] - run.chosen_bytes(d);
  }
  least.device_bytes = *std::max_element(least.on_device.begin(), least.on_device.end());
  return least;
}

int tightest_device(const DeviceBudget& budget, const LeastMemory& least) {
  const auto spare = [&](int device) {
    return budget.of(device) - least.on_device[static_cast<size_t>(device)];
  };
  int tightest = 0;
  for (int d = 1; d < static_cast<int>(least.on_device.size()); ++d) {
    if (spare(d) < spare(tightest)) tightest = d;
  }
  return tightest;
}

Result<StepForecast> forecast_step(const PlannedRun& run, const ModelShape& model,
                                   const MachineSheet& sheet, const CoarseLimits& limits) {
  const PlannedRank alone{run, &sheet};
  return forecast_step({&alone, 1}, Cost(), model, limits);
}

Result<StepForecast> forecast_step(std::span<const PlannedRank> planned, const Cost& network,
                                   const ModelShape& model, const CoarseLimits& limits) {
  CHECK(!planned.empty());
  std::vector<RankPlan> ranks;
  for (const PlannedRank& rank : planned) {
    RankPlan& plan = ranks.emplace_back(RankPlan{rank.run, *rank.sheet});
    plan.least = least_memory(rank.run);
    RETURN_IF_ERROR(check_least(plan.least, rank.run));
  }
  StepForecast forecast;
  const PlannedRun& run = planned.front().run;
  if (run.routing == nullptr) forecast.coarseness = fitting_coarseness(ranks, limits);
  for (RankPlan& rank : ranks) rank.coarsen(forecast.coarseness);
  RETURN_IF_ERROR(divide(ranks, limits.quick));
  for (const RankPlan& rank : ranks) forecast.ranks.push_back(rank.forecast());
  const RunShape& shape = ranks.front().shape;
  const PageTable& pages = *ranks.front().pages;
  const MemoryPlan& memory = ranks.front().memory;
  const LeastMemory& lent = ranks.front().lent;
  forecast.least = ranks.front().least;
  forecast.state_on_device = memory.state_on_device;
  forecast.weights_travel = memory.weights_travel;
  forecast.device_bytes = forecast.ranks.front().device_bytes;
  forecast.host_bytes = forecast.ranks.front().host_bytes;
  forecast.whole_device_bytes = memory.whole_device_bytes - lent.device_bytes;
  forecast.whole_host_bytes = std::max<int64_t>(0, memory.whole_host_bytes - lent.host_bytes);
  forecast.kinds = kinds_of(pages, memory);
  forecast.group_blocks = run.shape.group_blocks;
  forecast.waves_in_flight = waves_in_flight(run.shape);
  forecast.saved_layers = ranks.front().saved_layers();
  CostSettings work{run.sequence_len, memory.state_on_device, forecast.coarseness};
  work.group_blocks = run.shape.group_blocks;
  work.devices = run.devices;
  work.dispatches = static_cast<double>(forecast.coarseness.experts) *
                    dispatches(run.shape, false) /
                    dispatches(shape, gathers(shape, pages, memory.classes));
  work.messages = static_cast<double>(waves(run.shape)) / static_cast<double>(waves(shape));
  std::vector<MachineProfile> profiles;
  for (const RankPlan& rank : ranks) {
    work.kept_share =
        static_cast<double>(rank.saved_layers()) / static_cast<double>(run.shape.num_layers);
    profiles.push_back(task_costs(rank.sheet, model, shape, work));
    const double own_gb_s = rank.sheet.network.gb_s;
    const double byte_s = own_gb_s > 0 ? 1 / (own_gb_s * kGiga) : network.unit_s;
    profiles.back().network = {work.messages * network.fixed_s, byte_s, 0};
  }
  move_for_each_expert(forecast.coarseness.experts, ranks);
  forecast.simulated =
      TimedStep(ranks).simulate(profiles, limits.quick ? kQuickSteps : kStepsUntilSettled);
  const double middle_s = forward_end_s(forecast.simulated);
  const double end_s = forecast.simulated.step_s.back();
  add_busy(forecast.simulated, ranks, 0, middle_s, forecast.forward);
  add_busy(forecast.simulated, ranks, middle_s, end_s, forecast.backward);
  forecast.device_busy_s = device_busy_s(forecast.simulated);
  for (size_t r = 0; r < ranks.size(); ++r) {
    forecast.ranks[r].traffic = forecast.simulated.ranks[r].traffic;
    forecast.ranks[r].sent_bytes = forecast.simulated.ranks[r].sent_bytes;
  }
  forecast.traffic = forecast.ranks.front().traffic;
  add_peaks(forecast);
  return forecast;
}

}  // namespace pagoda
