#include "bench/sheet/run_profile.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "bench/race/available_memory.h"
#include "bench/random_batch.h"
#include "bench/random_weights.h"
#include "offload/scratch_folder.h"
#include "plan/machine/device_profile.h"
#include "plan/step/task_table.h"
#include "preview/kept_experts.h"
#include "preview/layout_choice.h"
#include "preview/model_sizes.h"
#include "preview/sheet_budgets.h"
#include "train/run_setup.h"
#include "train/task_times.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

constexpr double kProfileRate = 1e-5;
constexpr int64_t kMicrobatches = 2;  // of a device in a step here

// The first layers, up to two with experts; so many experts that a row block each is seldom full.
ModelConfig first_layers(ModelConfig model) {
  int64_t moe = 0, layers = 0;
  while (layers < model.num_layers && moe < 2) moe += model.is_moe_layer(layers++) ? 1 : 0;
  model.num_layers = layers;
  model.next_token_layers = 0;
  for (auto* of_layers : {&model.conv_layers, &model.sliding_layers}) {
    if (!of_layers->empty()) of_layers->resize(static_cast<size_t>(layers));
  }
  std::erase_if(model.mlp_only_layers, [&](int64_t layer) { return layer >= layers; });
  if (model.expert_groups == 1) {
    model.num_experts =
        std::min(model.num_experts, std::max<int64_t>(8, 4 * model.experts_per_token));
  }
  return model;
}

MeasuredCosts costs_of(const DeviceTasks& tasks) {
  MeasuredCosts costs;
  for (size_t kind = 0; kind < costs.size(); ++kind) {
    if (!tasks.samples[kind].empty()) costs[kind] = fit_cost(tasks.samples[kind], 1);
  }
  // One device alone exchanges no rows; those of others would take the same copies.
  for (const TaskKind kind : {TaskKind::kPlaceRows, TaskKind::kPackRows, TaskKind::kTakeParcel}) {
    std::optional<Cost>& cost = costs[static_cast<size_t>(kind)];
    if (!cost) cost = costs[static_cast<size_t>(TaskKind::kDispatch)];
  }
  return costs;
}

class ProfiledRun {
 public:
  ProfiledRun(const RunConfig& config, std::vector<DeviceSetup> devices, const ModelConfig& model,
              const std::string& directory)
      : model_(model) {
    RunConfig equal = config;
    equal.train.devices.clear();
    for (DeviceSetup& device : devices) {
      equal.train.devices.push_back(device.name);
      device.rank = 0;
    }
    equal.parallel = {};
    equal.parallel.shares = ShareKind::kUniform;
    equal.train.chunks = equal.train.expert_shards = 1;
    equal.train.shards = std::ssize(devices);
    equal.train.tokens_per_step =
        std::ssize(devices) * kMicrobatches * config.train.micro_batch_tokens;
    equal.train.save_steps = 0;
    equal.memory.disk = {directory};
    options_ = session_options(equal);
    options_.devices = std::move(devices);
    options_.device_bytes = options_.host_bytes = kRoomForAll;
  }

  Status open(Storage* storage) {
    ASSIGN_OR_RETURN(const MemoryPlan plan, Session::plan(model_, options_));
    options_.device_bytes = plan.whole_device_bytes;
    options_.host_bytes = plan.min_host_bytes;
    const bool on_gpu = options_.size.on_gpu;
    RETURN_IF_ERROR(check_available((on_gpu ? 0 : plan.whole_device_bytes) + plan.min_host_bytes));
    ASSIGN_OR_RETURN(session_, Session::create(model_, options_, storage));
    RandomWeights weights(model_);
    RETURN_IF_ERROR(load_weights(weights, *session_));
    ledger_ = std::make_unique<Ledger>(false, 0,
                                       std::vector<int64_t>(session_->table().records.size(), 0));
    runner_ = std::make_unique<StepRunner>(session_.get(), ledger_.get(),
                                           session_->options().adam.clip_norm);
    RETURN_IF_ERROR(step());
    few_ = std::make_unique<TaskTimes>(&session_->shape());
    many_ = std::make_unique<TaskTimes>(&session_->shape());
    return Status();
  }

  Status step() {
    RETURN_IF_ERROR(stop_status("measuring"));
    const bool many = steps_ % 2 == 1;
    session_->executor().time_tasks(many ? many_.get() : few_.get());
    RETURN_IF_ERROR(runner_->train(batch(many), kProfileRate).status());
    session_->pager().drain();
    if (few_ != nullptr) ++steps_;
    return session_->pager().status();
  }

  void close() {
    if (session_ == nullptr) return;
    session_->executor().time_tasks(nullptr);
    runner_.reset();
    session_->remove_files();
  }

  // Those of steps with random tokens.
  DeviceTasks tasks(int device) const {
    DeviceTasks tasks;
    for (size_t kind = 0; kind < tasks.samples.size(); ++kind) {
      tasks.samples[kind] = few_->of(static_cast<TaskKind>(kind), device);
    }
    tasks.microbatches = kMicrobatches * session_->config().num_moe_layers() * div_ceil(steps_, 2);
    tasks.expert_rows = few_->devices()[static_cast<size_t>(device)].expert_rows;
    return tasks;
  }
  MeasuredCosts costs(int device) const {
    DeviceTasks all = tasks(device);
    for (size_t kind = 0; kind < all.samples.size(); ++kind) {
      const std::vector<CostSample> more = many_->of(static_cast<TaskKind>(kind), device);
      all.samples[kind].insert(all.samples[kind].end(), more.begin(), more.end());
    }
    return costs_of(all);
  }
  // A microbatch in a layer has so many rows of experts.
  int64_t rows() const {
    return options_.size.microbatch_tokens * session_->config().experts_per_token;
  }

 private:
  // Random tokens, or the first one of each microbatch in all of its places, whose experts have all
  // of its rows: what they take for few rows and for many tells what each row takes from what is
  // fixed.
  StepBatch batch(bool many) {
    StepBatch batch = random_batch(*session_, random_);
    const int64_t length = options_.size.microbatch_tokens;
    for (int64_t i = 0; many && i < std::ssize(batch.tokens); ++i) {
      batch.tokens[static_cast<size_t>(i)] = batch.tokens[static_cast<size_t>(i - i % length)];
    }
    return batch;
  }

  ModelConfig model_;
  SessionOptions options_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Ledger> ledger_;
  std::unique_ptr<StepRunner> runner_;
  std::unique_ptr<TaskTimes> few_, many_;  // where experts have few rows, and where some have many
  int64_t steps_ = 0;  // timed
  std::mt19937 random_{7};
};

// A kind of time of all tasks of some kinds.
double sum_of(double CostSample::*time, const DeviceTasks& tasks,
              std::initializer_list<TaskKind> kinds) {
  double sum = 0;
  for (const TaskKind kind : kinds) {
    for (const CostSample& sample : tasks.samples[static_cast<size_t>(kind)]) sum += sample.*time;
  }
  return sum;
}

// The same of a microbatch in a layer with experts.
double attention_s(double CostSample::*time, const DeviceTasks& tasks) {
  using enum TaskKind;
  return sum_of(time, tasks,
                {kAttention, kRoute, kResidual, kRouteReplay, kRouteBackward, kAttentionBackward}) /
         static_cast<double>(tasks.microbatches);
}
// Experts of this random model are not equally busy, so by the rows that the device had.
double experts_s(double CostSample::*time, const DeviceTasks& tasks, int64_t rows) {
  if (tasks.expert_rows == 0) return 0;
  return sum_of(time, tasks, {TaskKind::kExpert, TaskKind::kExpertBackward}) /
         static_cast<double>(tasks.expert_rows) * static_cast<double>(rows);
}

Status measure(ProfiledRun& run, Storage* storage, int rounds) {
  RETURN_IF_ERROR(run.open(storage));
  for (int round = 0; round < rounds; ++round) {
    set_status_line(strf("bench machine: round %d of %d", round + 1, rounds));
    RETURN_IF_ERROR(run.step());
  }
  set_status_line("");
  return Status();
}

// GPUs that a run takes by itself have no name in it.
Status check_gpus(const RunConfig& config, const MachineSheet& machine) {
  if (config.gpus().empty()) return Status();
  if (config.devices().front().kind != Processor::kGpu) {
    return Status(Exit::kUsage,
                  "train.devices: a profile is of devices that the run lists; write \"cuda:0\", or "
                  "list several GPUs");
  }
  if (machine.gpu()) return Status();
  return Status(Exit::kUsage,
                "--device cpu: the run computes on GPUs; leave it out, so that the sheet has "
                "their rates");
}

// The run's devices, one of each name.
std::vector<DeviceSetup> different(const RunConfig& config) {
  std::vector<DeviceSetup> different;
  for (const DeviceSetup& device : session_options(config).devices) {
    const bool known = std::any_of(different.begin(), different.end(),
                                   [&](const auto& other) { return other.name == device.name; });
    if (!known) different.push_back(device);
  }
  return different;
}

}  // namespace

RunProfile::Device device_figures(const std::string& name, const DeviceTasks& device,
                                  int64_t rows) {
  using enum TaskKind;
  RunProfile::Device found{.name = name};
  found.attention_s = attention_s(&CostSample::seconds, device);
  found.experts_s = experts_s(&CostSample::seconds, device, rows);
  found.exchange_s = sum_of(&CostSample::seconds, device, {kPackRows, kReceive, kPlaceRows}) /
                     static_cast<double>(device.microbatches);
  found.attention_slowness = found.attention_s / attention_s(&CostSample::own_s, device);
  if (found.experts_s > 0) {
    found.experts_slowness = found.experts_s / experts_s(&CostSample::own_s, device, rows);
  }
  return found;
}

Result<RunProfile> profile_run(const RunConfig& config, MachineSheet machine,
                               const std::string& directory, int rounds) {
  RETURN_IF_ERROR(check_gpus(config, machine));
  const bool on_gpu = !config.gpus().empty();
  ASSIGN_OR_RETURN(const ModelSizes model, read_model_sizes(config.model.path));
  if (config.train.micro_batch_tokens == 0) {
    return Status(Exit::kUsage, "train.micro_batch_tokens: a profile needs a number of tokens");
  }
  if (model.shape.num_experts == 0) {
    return Status(Exit::kUsage, config.model.path + " has no experts to profile");
  }
  RETURN_IF_ERROR(check_layers(model.shape, run_setup(config)));
  ASSIGN_OR_RETURN(const std::unique_ptr<Storage> storage, open_storage(IoKind::kAuto, directory));
  ScratchFolder scratch(directory);
  RETURN_IF_ERROR(scratch.create());
  const ModelConfig first = first_layers(model.config);
  const std::vector<DeviceSetup> setups = different(config);
  ProfiledRun run(config, setups, first, scratch.path());
  const Status status = measure(run, storage.get(), rounds);
  RunProfile found;
  found.profile.model =
      profile_key(model.shape, config.train.micro_batch_tokens, config.data.sequence_len);
  for (int d = 0; status.ok() && d < static_cast<int>(setups.size()); ++d) {
    const std::string& name = setups[static_cast<size_t>(d)].name;
    add_device(name, run.costs(d), found.profile);
    found.devices.push_back(device_figures(name, run.tasks(d), run.rows()));
    if (on_gpu) found.devices.back().attention_slowness = found.devices.back().experts_slowness = 0;
  }
  run.close();
  RETURN_IF_ERROR(status);
  const std::optional<RunConfig> zebra = as_zebra(model.shape, config);
  if (!zebra) return found;
  if (!on_gpu) machine.device.kind = Processor::kCpu;  // a GPU beside them is not the run's
  const DeviceBudget budget = device_budget(*zebra, machine, std::ssize(zebra->devices()));
  ASSIGN_OR_RETURN(const KeptExperts kept, kept_experts(model.config, *zebra, budget));
  found.profile.least_kept = kept.least;
  found.profile.most_kept = kept.most;
  found.profile.kept_by = kept.run;
  return found;
}

void take_gpus(const RunConfig& config, MachineSheet& machine) {
  const std::vector<Gpu> gpus = config.gpus();
  if (gpus.empty() || !machine.gpu()) return;
  int64_t least = gpus.front().memory_bytes;
  for (const Gpu& gpu : gpus) least = std::min(least, gpu.memory_bytes);
  machine.device.memory = MemorySize::of_bytes(least);
  machine.device.count = std::ssize(gpus);
  // Rows may have to go through the host's memory.
  if (machine.device.count > 1) machine.link.gb_s = machine.host.copy_gb_s / 2;
}

std::vector<std::string> RunProfile::lines() const {
  const auto slowest = [&](double Device::*of) {
    double most = 0;
    for (const Device& device : devices) most = std::max(most, device.*of);
    return most;
  };
  std::vector<std::string> lines = {
      "a microbatch in a layer, forward and backward: its time, as a multiple of the processor "
      "time of its work, and the slowest device's time over it (HeterMoE's Figure 2)",
      "device            attention ms  experts ms  exchange ms   attention  experts   attention  "
      "experts"};
  const auto times = [](double slowness) {
    return slowness > 0 ? strf("%.2f", slowness) : std::string("-");
  };
  for (const Device& d : devices) {
    lines.push_back(strf("%-16s  %12.3f  %10.3f  %11.3f  %10s  %7s  %10.2f  %7.2f", d.name.c_str(),
                         1e3 * d.attention_s, 1e3 * d.experts_s, 1e3 * d.exchange_s,
                         times(d.attention_slowness).c_str(), times(d.experts_slowness).c_str(),
                         slowest(&Device::attention_s) / d.attention_s,
                         slowest(&Device::experts_s) / d.experts_s));
  }
  if (profile.kept_by.empty()) return lines;
  lines.push_back(strf(
      "experts: at least %lld of all layers must be kept by devices that attend; each of these has "
      "room for %lld",
      (long long)profile.least_kept, (long long)profile.most_kept));
  return lines;
}

}  // namespace pagoda
