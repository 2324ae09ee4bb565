#include "preview/zebra_choice.h"

#include <algorithm>
#include <bit>
#include <compare>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "offload/page_file.h"
#include "plan/machine/device_profile.h"
#include "plan/machine/task_costs.h"
#include "plan/machine/work_cost.h"
#include "plan/memory/coarse_run.h"
#include "plan/memory/memory_plan.h"
#include "plan/step/pages.h"
#include "plan/zebra/zebra_search.h"
#include "preview/kept_experts.h"
#include "preview/model_sizes.h"
#include "preview/sheet_budgets.h"
#include "preview/this_machine.h"
#include "train/process_memory.h"

namespace pagoda {
namespace {

bool is_open(const RunConfig& config) {
  return config.zebra() && (config.auto_lags() || config.auto_offloaded() ||
                            config.auto_kept_rows() || config.parallel.attention_devices == 0);
}

// One number says it for all layers that have the same.
std::vector<int64_t> brief(std::vector<int64_t> numbers) {
  const bool alike = std::ranges::all_of(numbers, [&](int64_t n) { return n == numbers.front(); });
  if (alike) numbers.resize(1);
  return numbers;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : " ") + text;
  return all;
}

// The most devices that attend in any one copy of a stage: copies of unequal speed have unequal
// numbers of shards, and a device without one does not attend.
int64_t attending_of_copy(const RunShape& shape) {
  int64_t most = 0;
  for (int stage = 0; stage < shape.stages.count; ++stage) {
    std::vector<int64_t> attending(static_cast<size_t>(shape.copies.count), 0);
    for (const int device : shape.attending_devices(stage)) {
      most = std::max(most, ++attending[static_cast<size_t>(shape.copies.of_device(device))]);
    }
  }
  return most;
}

// [layer] the most experts that attending devices of any one copy keep. A copy without a shard has
// no such device, and keeps none.
std::vector<int64_t> kept_of_copy(const RunShape& shape) {
  std::vector<int64_t> most(static_cast<size_t>(shape.num_layers), 0);
  for (int copy = 0; copy < shape.copies.count; ++copy) {
    std::vector<int64_t> kept(most.size(), 0);
    for (int64_t r = 0; r < std::ssize(shape.records); ++r) {
      const RecordShape& record = shape.records[static_cast<size_t>(r)];
      if (record.expert < 0) continue;
      kept[static_cast<size_t>(record.layer)] += shape.attends(shape.seat_of(r, copy));
    }
    for (size_t l = 0; l < most.size(); ++l) most[l] = std::max(most[l], kept[l]);
  }
  return most;
}

// Deals attention to so many devices of each copy, or to fewer, so that the number that is written
// for the run deals it alike.
void deal_attending(const ModelShape& model, int64_t devices, RunSetup& setup) {
  for (int64_t most = 0; most != devices;) {
    most = devices;
    setup.deal_attention(most);
    devices = attending_of_copy(make_run_shape(model, setup));
  }
}

// A network that nobody has measured is taken to be as fast as what joins devices of a rank.
MachineProfile costs_of(const RankMachines& machines, const ModelShape& model,
                        const RunShape& shape, const RunConfig& config, const RunSetup& setup) {
  MachineProfile all;
  for (size_t rank = 0; rank < machines.sheets.size(); ++rank) {
    const MachineSheet& sheet = *machines.sheets[rank];
    CostSettings work;
    work.sequence_len = config.data.sequence_len;
    if (sheet.knows_devices()) work.devices = setup.devices;
    MachineProfile own = task_costs(sheet, model, shape, work);
    const bool measured = sheet.network.gb_s > 0;
    own.network = measured ? WorkClock::link(sheet.network.gb_s, 0) : own.of(TaskKind::kReceive);
    if (machines.sheets.size() == 1) return own;
    if (rank == 0) {
      all = own;
      all.device_tasks.assign(setup.devices.size(), own.tasks);
      all.network = machines.network;
    }
    for (size_t d = 0; d < setup.devices.size(); ++d) {
      if (setup.devices[d].rank != static_cast<int>(rank)) continue;
      all.device_tasks[d] = own.device_tasks.empty() ? own.tasks : own.device_tasks[d];
    }
  }
  return all;
}

// What one of a rank's devices has to do with a record, as far as memory goes, or with a shard of a
// stage, which has no elements.
struct DeviceUse {
  int place = 0;   // among the rank's devices
  int stage = -1;  // -1: the embedding or the head
  bool seat = false, computes = false, updates = false, expert = false;
  int64_t elements = 0, state_bytes = 0;
  auto operator<=>(const DeviceUse&) const = default;
};
using RankWork = std::map<DeviceUse, int64_t>;  // how often

RankWork rank_work(const RunShape& shape, int rank) {
  const DeviceRange own = shape.devices_of(rank);
  RankWork work;
  for (int64_t r = 0; r < std::ssize(shape.records); ++r) {
    const RecordShape& record = shape.records[static_cast<size_t>(r)];
    for (int d = own.first; d < own.end(); ++d) {
      const DeviceUse with = {.place = d - own.first,
                              .stage = record.layer < 0 ? -1 : shape.stage_of(record.layer),
                              .seat = shape.has_seat(d, r),
                              .computes = shape.computes_with(d, r),
                              .updates = record.device == d,
                              .expert = record.expert >= 0,
                              .elements = record.num_elements,
                              .state_bytes = record.state_bytes};
      if (with.seat || with.computes || with.updates) ++work[with];
    }
  }
  for (int stage = 0; stage < shape.stages.count; ++stage) {
    for (const int d : shape.shards_of(stage)) {
      if (own.contains(d)) ++work[{.place = d - own.first, .stage = stage}];
    }
  }
  return work;
}

// Bytes that a step needs at a time on each of a rank's devices.
std::vector<int64_t> needed_at_a_time(const ModelShape& model, RunSetup setup, int rank) {
  setup.rank = rank;
  const RunShape brief = brief_shape(make_run_shape(model, setup));
  std::vector<int64_t> needed = make_budget(model, setup, 0, 0).fixed_bytes;
  const LeastSlots least = least_slots(brief, PageTable(brief), kPageHeaderBytes);
  for (size_t d = 0; d < needed.size(); ++d) needed[d] += least.device_bytes[d];
  return needed;
}

// The same of all ranks, of which those that do as much as another need as much.
std::vector<int64_t> needed_at_a_time(const ModelShape& model, const RunSetup& setup) {
  const RunShape shape = make_run_shape(model, setup);
  std::map<RankWork, std::vector<int64_t>> known;
  std::vector<int64_t> needed;
  for (int rank = 0; rank < shape.ranks(); ++rank) {
    const auto [at, is_new] = known.try_emplace(rank_work(shape, rank));
    if (is_new) at->second = needed_at_a_time(model, setup, rank);
    needed.insert(needed.end(), at->second.begin(), at->second.end());
  }
  return needed;
}

// The same of candidates by the devices that attend and the experts that these keep. Planning
// memory takes longer than timing: it is done for powers of two, and a number between two of them
// is taken to need what either does.
class CandidateNeeds {
 public:
  using MakeSetup = std::function<RunSetup(int64_t devices, int64_t offloaded)>;
  CandidateNeeds(const ModelShape& model, MakeSetup candidate)
      : model_(model), candidate_(std::move(candidate)) {}

  std::vector<int64_t> of(int64_t devices, int64_t offloaded) {
    const auto below = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(offloaded)));
    std::vector<int64_t> needed = at(devices, below);
    if (below == offloaded) return needed;
    const std::vector<int64_t>& beyond = at(devices, std::min(2 * below, model_.num_experts));
    std::ranges::transform(needed, beyond, needed.begin(),
                           [](int64_t a, int64_t b) { return std::max(a, b); });
    return needed;
  }

 private:
  const std::vector<int64_t>& at(int64_t devices, int64_t offloaded) {
    const auto [known, is_new] = known_.try_emplace({devices, offloaded});
    if (is_new) known->second = needed_at_a_time(model_, candidate_(devices, offloaded));
    return known->second;
  }

  const ModelShape& model_;
  const MakeSetup candidate_;
  std::map<std::pair<int64_t, int64_t>, std::vector<int64_t>> known_;
};

// What each device keeps of weights beside what a step needs at a time, by the machine of its rank,
// or the only one that is known.
std::vector<WeightRoom> weight_rooms(const RankMachines& machines, const RunConfig& config,
                                     const RunSetup& setup, const std::vector<int64_t>& needed) {
  std::vector<WeightRoom> rooms;
  while (rooms.size() < needed.size()) {
    const size_t first = rooms.size();
    const int rank = setup.devices[first].rank;
    const auto sharing = std::ranges::count(setup.devices, rank, &DeviceSetup::rank);
    const size_t known = std::min(static_cast<size_t>(rank), machines.sheets.size() - 1);
    const MachineSheet& sheet = *machines.sheets[known];
    const DeviceBudget device_bytes = device_budget(config, sheet, sharing);
    const int64_t host_bytes = host_budget(config, sheet);
    for (int place = 0; place < sharing; ++place) {
      const int64_t least = needed[first + static_cast<size_t>(place)];
      rooms.push_back({static_cast<double>(device_bytes.of(place) - least),
                       static_cast<double>(host_bytes) / static_cast<double>(sharing)});
    }
  }
  return rooms;
}

}  // namespace

int64_t most_kept_of_layer(const ModelShape& model, const RunSetup& setup) {
  const WorkspaceSize& size = setup.size;
  const int64_t tokens = size.microbatches / size.sums.chunks * size.microbatch_tokens;
  const int64_t rows = div_ceil(tokens * model.experts_per_token, model.num_experts);
  const int64_t group = setup.plan.group_blocks > 0 ? setup.plan.group_blocks : kMostGroupBlocks;
  return kLeastWaves * group / div_ceil(rows, kRowBlock);
}

void choose_zebra(const ModelShape& model, const RankMachines& machines, const RunConfig& config,
                  RunSetup& setup) {
  if (!is_open(config) || model.num_experts == 0) return;
  OpenZebra open;
  const int64_t groups = int64_t{setup.stages} * setup.copies;
  open.most_attending = std::min<int64_t>(setup.size.sums.shards, setup.num_devices() / groups - 1);
  open.most_of_layer = most_kept_of_layer(model, setup);
  if (config.parallel.attention_devices > 0) {
    open.attention_devices = attending_of_copy(make_run_shape(model, setup));
  }
  const MachineSheet& sheet = *machines.sheets.front();
  const MachineSheet::Profile& profiled = sheet.profile;
  const bool alone = machines.sheets.size() == 1 && setup.devices.back().rank == 0;
  const bool all_fit = alone && profiled.most_kept > 0 &&
                       profiled.least_kept <= profiled.most_kept * open.most_attending;
  if (all_fit &&
      profiled.model ==
          profile_key(model, setup.size.microbatch_tokens, config.data.sequence_len) &&
      profiled.kept_by ==
          kept_experts_key(model, setup, device_budget(config, sheet, setup.num_devices()))) {
    open.least_in_all = profiled.least_kept;
    open.most_in_all = profiled.most_kept;
  }
  if (!config.auto_offloaded()) open.offloaded = setup.offloaded;
  if (!config.auto_lags()) open.lags = setup.lags;
  const auto candidate = [&](int64_t devices, int64_t offloaded) {
    RunSetup other = setup;
    if (!open.attention_devices) other.deal_attention(devices);
    other.offloaded = {offloaded};
    return other;
  };
  CandidateNeeds needs(model, candidate);
  open.rooms = [&](int64_t devices, int64_t offloaded) {
    return weight_rooms(machines, config, setup, needs.of(devices, offloaded));
  };
  const bool keeps_rows = config.auto_kept_rows();  // setup has none then
  const auto with = [&](int64_t devices, int64_t offloaded) {
    RunSetup of_candidate = candidate(devices, offloaded);
    if (keeps_rows) {
      const RunShape shape = make_run_shape(model, of_candidate);
      of_candidate.kept_rows = rows_to_keep(shape, open.rooms(devices, offloaded));
    }
    return make_run_shape(model, of_candidate);
  };
  const MachineProfile profile =
      costs_of(machines, model, with(open.attention_devices.value_or(1), 0), config, setup);
  const ZebraRun run = search_zebra(open, with, profile);
  if (!open.attention_devices) deal_attending(model, run.attention_devices, setup);
  setup.offloaded = brief(run.offloaded);
  setup.lags = run.lags;
  if (!keeps_rows) return;
  setup.kept_rows =
      rows_to_keep(make_run_shape(model, setup),
                   weight_rooms(machines, config, setup, needed_at_a_time(model, setup)));
}

void write_zebra(const RunShape& shape, RunConfig& config) {
  RunConfig::Parallel& parallel = config.parallel;
  if (parallel.attention_devices == 0) parallel.attention_devices = attending_of_copy(shape);
  if (config.auto_offloaded()) {
    parallel.offloaded.clear();
    for (const int64_t experts : brief(kept_of_copy(shape))) {
      parallel.offloaded.push_back(std::to_string(experts));
    }
  }
  const auto& [head, attention, expert] = shape.lags;
  if (config.auto_lags()) {
    parallel.lags = {std::to_string(head), std::to_string(attention), std::to_string(expert)};
  }
  if (config.auto_kept_rows()) parallel.kept_rows = std::to_string(shape.kept_rows);
}

Status resolve_zebra(RunConfig& config, RankGroup& ranks,
                     const std::optional<MachineSheet>& measured) {
  if (!is_open(config)) return Status();
  RunSetup setup = run_setup(config);
  RETURN_IF_ERROR(join_ranks(config, ranks, setup));
  if (ranks.rank() > 0) return Status();
  ASSIGN_OR_RETURN(const ModelSizes model, read_model_sizes(config.model.path));
  RETURN_IF_ERROR(set_frozen(config, model.config, setup));
  RETURN_IF_ERROR(check_layers(model.shape, setup));
  const MachineSheet machine = measured ? *measured : this_machine_sheet(config.gpus());
  choose_zebra(model.shape, {{&machine}}, config, setup);
  write_zebra(make_run_shape(model.shape, setup), config);
  const RunConfig::Parallel& parallel = config.parallel;
  log_info(strf(
      "parallel.attention_devices %lld, parallel.offloaded %s, parallel.lags %s, "
      "parallel.kept_rows %s, as planned for %s",
      (long long)parallel.attention_devices, joined(parallel.offloaded).c_str(),
      joined(parallel.lags).c_str(), parallel.kept_rows.c_str(), machine.machine.name.c_str()));
  return Status();
}

}  // namespace pagoda
