#include "tools/bench/layout_race.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "plan/machine/device_profile.h"
#include "preview/layout_search.h"
#include "preview/this_machine.h"
#include "preview/zebra_choice.h"
#include "tools/bench/task_pauses.h"

namespace pagoda {
namespace {

HfFolder make_model(const std::string& directory, const RandomModel& model) {
  CHECK(std::filesystem::create_directories(directory), "%s exists", directory.c_str());
  return make_random_model(directory, model);
}

std::vector<Throttle> joined(std::vector<Throttle> devices, const std::vector<Throttle>& others) {
  devices.insert(devices.end(), others.begin(), others.end());
  return devices;
}

double wire_bytes(const MeasuredRun& run) {
  const auto devices = static_cast<double>(run.busy_s().size());
  return static_cast<double>(run.sent().bytes) / (devices * (devices - 1));
}

constexpr double kMostWake = 2e-3;  // seconds
constexpr int kReferenceSteps = 4;  // on several devices

std::string numbers(const std::vector<int64_t>& all) {
  std::string text;
  for (const int64_t n : all) text += (text.empty() ? "" : " ") + std::to_string(n);
  return text;
}

}  // namespace

std::string names_of(const std::vector<Throttle>& devices) {
  std::string names;
  for (size_t d = 0; d < devices.size(); ++d) {
    size_t same = 1;
    while (d + 1 < devices.size() && devices[d + 1].experts == devices[d].experts &&
           devices[d + 1].rest == devices[d].rest) {
      ++d;
      ++same;
    }
    names += (names.empty() ? "" : ",") + strf("cpu/%g:%g", devices[d].experts, devices[d].rest);
    if (same > 1) names += strf("*%zu", same);
  }
  return names;
}

std::string describe(const Layout& layout) {
  return strf("offloaded %s, lags %d %d %d", numbers(layout.offloaded).c_str(), layout.lags.head,
              layout.lags.attention, layout.lags.expert);
}

Layout expert_parallel(std::string name, std::vector<Throttle> devices, ShareKind shares) {
  Layout layout{.name = std::move(name), .devices = std::move(devices)};
  layout.attention_devices = std::ssize(layout.devices);
  layout.shares = shares;
  return layout;
}

Layout disaggregated(std::string name, const std::vector<Throttle>& faster,
                     const std::vector<Throttle>& slower) {
  Layout layout{.name = std::move(name), .devices = joined(faster, slower), .zebra = true};
  layout.attention_devices = std::ssize(faster);
  return layout;
}

LayoutRace::LayoutRace(std::string directory, Storage* storage, const TrainedStep& step, int steps)
    : directory_(std::move(directory)),
      storage_(storage),
      step_(step),
      steps_(steps),
      folder_(make_model(directory_, step.model)) {}

SessionOptions LayoutRace::options(const Layout& layout, const std::string& file) const {
  SessionOptions options = roomy_options(directory_ + "/store", file, step_.chunks * step_.width,
                                         step_.row_tokens, false);
  options.optimizer_threads = 1;
  options.devices.clear();
  for (const Throttle& throttle : layout.devices) options.devices.push_back({1, throttle});
  options.size.sums.chunks = layout.chunks;
  options.size.sums.shards = shards_of(layout);
  if (layout.copies > 1) options.size.sums.expert_shards = options.size.sums.shards;
  options.stages = layout.stages;
  options.copies = layout.copies;
  options.pipeline_order = layout.pipeline;
  options.zebra = layout.zebra;
  options.size.pages_expert_sums =
      options.size.sums.pages_expert_sums(layout.zebra || layout.stages > 1);
  options.lags = layout.lags;
  options.offloaded = layout.offloaded;
  // Where devices have room for everything, rows that came for the forward stay for the backward.
  options.kept_rows = step_.width * step_.row_tokens * step_.model.experts_per_token;
  options.stage_layers = layout.stage_layers;
  options.order = layout.order;
  options.shares = layout.shares;
  options.seats_by_step = true;
  options.deal_attention(layout.attention_devices);
  return options;
}

std::unique_ptr<MeasuredRun> LayoutRace::make_run(const Layout& layout) {
  const bool slow = layout.wire.bytes_per_s > 0;
  auto run =
      std::make_unique<MeasuredRun>(folder_, storage_, options(layout, strf("run-%d", ++files_)),
                                    slow ? std::optional(layout.wire) : std::nullopt);
  run->draw(even_batch);
  return run;
}

RunShape LayoutRace::shape_of(const Layout& layout) const {
  return make_run_shape(model_shape(folder_.config()), options(layout, "shape"));
}

ActionTimes LayoutRace::times_of(const Layout& layout) {
  return run_times(shape_of(layout), profile_on(layout.devices, {}));
}

Layout LayoutRace::plan_zebra(Layout layout, bool asym_ea) {
  layout.chunks = step_.chunks;
  const ModelShape model = model_shape(folder_.config());
  OpenZebra open;
  open.attention_devices = layout.attention_devices;
  open.most_of_layer = most_kept_of_layer(model, options(layout, "shape"));
  if (!asym_ea) open.offloaded = layout.offloaded;
  const auto with = [&](int64_t, int64_t offloaded) {
    layout.offloaded = {offloaded};
    return shape_of(layout);
  };
  const ZebraRun best = search_zebra(open, with, profile_on(layout.devices, {}));
  layout.offloaded = best.offloaded;
  layout.lags = best.lags;
  return layout;
}

SlowLink::Speed LayoutRace::wire_for(const Layout& layout, double part_of_step) {
  const std::unique_ptr<MeasuredRun> trial = make_run(layout);
  if (trial->sent().bytes == 0) return {};
  return {.latency_s = 100e-6,
          .bytes_per_s = wire_bytes(*trial) / (part_of_step * trial->step_s())};
}

void LayoutRace::add(Layout layout) {
  reference({layout.devices.front()});
  reference(layout.devices);
  layout.shards = shards_of(layout);
  std::unique_ptr<MeasuredRun> run = make_run(layout);
  entries_.push_back({std::move(layout), std::move(run)});
}

int64_t LayoutRace::shards_of(const Layout& layout) const {
  return layout.shards > 0 ? layout.shards
                           : default_shards(step_.chunks * step_.width / layout.chunks);
}

// A machine that takes what the devices took, and copies as fast.
MachineSheet LayoutRace::sheet_of(const RunConfig& config, const std::vector<Throttle>& devices) {
  const MachineProfile measured = profile_on(devices, {});
  MachineSheet sheet = this_machine_sheet();
  sheet.host.cores = measured.cores;
  sheet.host.copy_gb_s = 1e-9 / measured.upload.unit_s;
  sheet.host.checksum_gb_s = 1e-9 / measured.checksum.unit_s;
  sheet.profile.model = profile_key(model_shape(folder_.config()), config.train.micro_batch_tokens,
                                    config.data.sequence_len);
  const std::vector<ListedDevice> listed = config.devices();
  for (size_t d = 0; d < listed.size(); ++d) {
    const std::string name = listed[d].text();
    if (std::ranges::count(sheet.profile.devices, name) > 0) continue;
    MeasuredCosts costs;
    for (size_t kind = 0; kind < costs.size(); ++kind) {
      const Cost& cost = measured.device_tasks[d][kind];
      if (cost.seconds(1) > 0) costs[kind] = cost;
    }
    add_device(name, costs, sheet.profile);
  }
  return sheet;
}

namespace {

constexpr double kToOthers = 1e9;  // bytes a second to other machines, where there is none

// The machine alone, or as many as there are devices, with a network as fast as the wires.
ClusterSheet cluster_of(MachineSheet machine, size_t devices, const SlowLink::Speed& wire) {
  const bool slow = wire.bytes_per_s > 0;
  ClusterSheet cluster;
  cluster.network.gb_s = 1e-9 * (slow ? wire.bytes_per_s : kToOthers);
  cluster.network.latency_us = 1e6 * wire.latency_s;
  cluster.nodes.assign(slow ? devices : 1, std::move(machine));
  return cluster;
}

}  // namespace

std::optional<Layout> LayoutRace::search(std::string name, const std::vector<Throttle>& devices,
                                         const SlowLink::Speed& wire) {
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = step_.row_tokens;
  config.train.tokens_per_step = step_.tokens();
  config.train.save_steps = 0;
  config.train.devices.clear();
  for (const Throttle& device : devices) config.train.devices.push_back(names_of({device}));
  config.total_devices = std::ssize(devices);
  config.memory.device = config.memory.host = MemorySize::of_bytes(8 * kGiB);
  const ClusterSheet cluster = cluster_of(sheet_of(config, devices), devices.size(), wire);
  if (cluster.nodes.size() > 1) {
    config.train.devices.resize(1);
    config.parallel.exchange = ExchangeSetting::kFlat;  // the order of all layouts of a race
  }
  const std::vector<RunConfig> configs(cluster.nodes.size(), config);
  const ModelSizes model = need(read_model_sizes(directory_ + "/model"));
  const LayoutSearch found = search_layouts(model, configs, cluster, kFinePlan);
  if (found.runs.empty()) return {};
  const RunConfig& best = found.runs.front().configs.front();
  CHECK(best.train.micro_batch_tokens == step_.row_tokens, "a race's microbatches are one row");
  Layout layout{.name = std::move(name), .devices = devices, .stages = best.stages()};
  layout.wire = wire;
  layout.copies = best.copies();
  layout.pipeline = best.parallel.order;
  layout.zebra = best.zebra();
  layout.attention_devices = best.attention_devices(std::ssize(devices));
  layout.chunks = best.train.chunks;
  layout.shares = best.parallel.shares;
  layout.lags = best.lags();
  layout.offloaded = best.offloaded();
  layout.shards = best.sums().shards;
  layout.stage_layers = best.stage_layers();
  layout.settings = found.runs.front().text();
  std::printf("\nThe search tried %lld layouts: %s\n", (long long)found.tried,
              layout.settings.c_str());
  return layout;
}

void LayoutRace::draw_for(const std::string& name, BatchSource batches) {
  for (Entry& entry : entries_) {
    if (entry.layout.name == name) entry.run->draw(std::move(batches));
  }
}

std::unique_ptr<MeasuredRun> LayoutRace::make_reference(const std::vector<Throttle>& devices,
                                                        int64_t microbatches, bool together) {
  const Layout all = expert_parallel("reference", devices, ShareKind::kUniform);
  SessionOptions asked = options(all, strf("reference-%d", ++files_));
  asked.size.microbatches = asked.size.sums.shards = microbatches;
  asked.deal_attention(std::ssize(devices));
  if (together) asked.plan.group_blocks = kMostTogether;
  auto run = std::make_unique<MeasuredRun>(folder_, storage_, asked);
  run->draw(even_batch);
  return run;
}

LayoutRace::Reference& LayoutRace::reference(const std::vector<Throttle>& devices) {
  for (Reference& r : references_) {
    if (names_of(r.devices) == names_of(devices)) return r;
  }
  references_.push_back({devices});
  Reference& r = references_.back();
  const int64_t count = std::ssize(devices);
  const int64_t half = step_.chunks * step_.width / 2;
  r.run = make_reference(devices, count * std::max<int64_t>(1, half / count), false);
  if (count > 1) r.small = make_reference(devices, count, true);
  measure(r);
  return r;
}

void LayoutRace::measure(Reference& r) {
  if (r.devices.size() == 1) r.machine = measure_machine(*r.run, storage_, directory_);
  r.run->measure(r.devices.size() == 1 ? 1 : kReferenceSteps);
  if (r.devices.size() == 1) return fit_tasks(*r.run, r.machine);
  measure_costs(r);
  // A stream that waits for another device's sleeps meanwhile, and wakes late.
  r.wake_s = where_zero(kMostWake, [&](double seconds) {
    r.wake_s = seconds;
    return r.run->step_s() - r.run->simulate(profile_on(r.devices, {})).step_s;
  });
}

namespace {

double between_s(const MeasuredRun& run, size_t device) {
  return between_s(run.times().devices()[device],
                   run.busy_s()[device] * static_cast<double>(run.steps()));
}

// The samples of devices that are slowed alike, as many seconds longer as their streams do
// something else behind a task.
std::vector<CostSample> samples_of(const MeasuredRun& run, const std::vector<Throttle>& devices,
                                   const Throttle& alike, TaskKind kind) {
  std::vector<CostSample> samples;
  for (size_t d = 0; d < devices.size(); ++d) {
    if (names_of({devices[d]}) != names_of({alike})) continue;
    const double more_s = between_s(run, d);
    for (CostSample sample : run.times().of(kind, static_cast<int>(d))) {
      sample.seconds += more_s;
      samples.push_back(sample);
    }
  }
  return samples;
}

}  // namespace

void LayoutRace::measure_costs(Reference& r) {
  r.small->measure(kReferenceSteps);
  r.tasks.assign(r.devices.size(), {});
  for (size_t d = 0; d < r.devices.size(); ++d) {
    for (int kind = 0; kind < kTaskKinds; ++kind) {
      const auto task = static_cast<TaskKind>(kind);
      std::vector<CostSample> samples = samples_of(*r.run, r.devices, r.devices[d], task);
      const std::vector<CostSample> small = samples_of(*r.small, r.devices, r.devices[d], task);
      samples.insert(samples.end(), small.begin(), small.end());
      r.tasks[d][static_cast<size_t>(kind)] = fit_cost(samples, 1 / r.devices[d].of(task));
    }
  }
}

bool LayoutRace::shared() const {
  const MeasuredRun& any = *references_.front().run;
  return std::any_of(
             references_.begin(), references_.end(),
             [](const Reference& r) { return r.devices.size() == 1 && r.machine.shared(); }) ||
         measure_machine(any, storage_, directory_).shared();
}

// What tasks take on these devices, together; what is between tasks, and of the machine, from the
// first one alone.
MachineProfile LayoutRace::profile_on(const std::vector<Throttle>& devices,
                                      const SlowLink::Speed& link) {
  const std::vector<Throttle> first = {devices.front()};
  const MeasuredMachine& machine = reference(first).machine;
  MachineProfile profile = profile_of(machine, first, first.front(), link);
  if (devices.size() == 1) return profile;
  const TaskCosts alone = std::move(profile.device_tasks.front());
  const Reference& together = reference(devices);
  profile.device_tasks = together.tasks;
  profile.stream_wake_s = together.wake_s;
  for (size_t d = 0; d < devices.size(); ++d) {
    TaskCosts& of_device = profile.device_tasks[d];
    for (size_t kind = 0; kind < of_device.size(); ++kind) {
      Cost& cost = of_device[kind];
      const bool measured = cost.seconds(1) > 0;
      const auto task = static_cast<TaskKind>(kind);
      if (!measured) cost = alone[kind].slower(devices[d].of(task) / first.front().of(task));
      if (!measured || task == TaskKind::kReceive) continue;
      // It takes the memory's rate as the part of a core that it keeps busy.
      const double part = alone[kind].cores > 0 ? cost.cores / alone[kind].cores : 0;
      cost.memory = std::min(1.0, alone[kind].memory * part);
    }
  }
  return profile;
}

namespace {

// How much longer attention took in these steps than by the profile. The work of a microbatch is
// the same in every layout, so that this is how much slower the machine was.
double slowness_in(const MeasuredRun& run, const MachineProfile& profile) {
  double measured_s = 0, expected_s = 0;
  for (size_t d = 0; d < profile.device_tasks.size(); ++d) {
    for (const TaskKind kind : {TaskKind::kAttention, TaskKind::kAttentionBackward}) {
      const Cost& cost = profile.device_tasks[d][static_cast<size_t>(kind)];
      for (const CostSample& sample : run.times().of(kind, static_cast<int>(d))) {
        measured_s += sample.seconds + between_s(run, d);
        expected_s += cost.seconds(sample.units);
      }
    }
  }
  return measured_s / expected_s;
}

}  // namespace

LayoutTimes LayoutRace::time_entry(Entry& entry) {
  const MeasuredRun& run = *entry.run;
  MachineProfile profile = profile_on(entry.layout.devices, entry.layout.wire);
  const double forecast_s = simulate_even(run.session(), profile).step_s;
  slowness_.push_back(slowness_in(run, profile));
  for (TaskCosts& of_device : profile.device_tasks) {
    for (Cost& cost : of_device) {
      cost = {cost.fixed_s * slowness_.back(), cost.unit_s * slowness_.back(), cost.cores,
              cost.memory, cost.start_s * slowness_.back()};
    }
  }
  const MeasuredRun::Replayed replayed = run.simulate(profile);
  entry.step_seconds = run.step_seconds();
  entry.simulated_seconds = replayed.step_seconds;
  LayoutTimes times{run.step_s(), replayed.step_s, forecast_s};
  for (size_t d = 0; d < run.busy_s().size(); ++d) {
    times.busy.push_back(run.busy_s()[d] / run.step_s());
    times.simulated_busy.push_back(replayed.busy_s[d] / replayed.step_s);
  }
  if (entry.layout.wire.bytes_per_s > 0) {
    times.wire_share = wire_bytes(run) / entry.layout.wire.bytes_per_s / run.step_s();
  }
  const Pager& pager = run.session().pager();
  for (int d = 0; d < run.session().shape().devices; ++d) {
    times.peak_bytes = std::max(times.peak_bytes, pager.peak_bytes(Place::on_device(d)));
  }
  return times;
}

void LayoutRace::run(int rounds, int most_repeats) {
  for (int round = 0; round < rounds; ++round) {
    for (int trial = 0; trial <= most_repeats; ++trial) {
      for (Reference& r : references_) measure(r);
      // Every second time in the other order.
      for (size_t i = 0; i < entries_.size(); ++i) {
        entries_[round % 2 == 0 ? i : entries_.size() - 1 - i].run->measure(steps_);
      }
      if (trial < most_repeats && shared()) {
        ++repeats_;
        continue;
      }
      for (Entry& entry : entries_) entry.rounds.push_back(time_entry(entry));
      break;
    }
  }
}

const LayoutRace::Entry& LayoutRace::entry(const std::string& name) const {
  for (const Entry& entry : entries_) {
    if (entry.layout.name == name) return entry;
  }
  CHECK(false, "no layout %s", name.c_str());
}

LayoutTimes LayoutRace::times(const std::string& name) const {
  const std::vector<LayoutTimes>& rounds = entry(name).rounds;
  LayoutTimes times;
  times.peak_bytes = rounds.front().peak_bytes;
  for (double LayoutTimes::*of : {&LayoutTimes::measured_s, &LayoutTimes::simulated_s,
                                  &LayoutTimes::forecast_s, &LayoutTimes::wire_share}) {
    times.*of = median(rounds, of);
  }
  for (size_t d = 0; d < rounds.front().busy.size(); ++d) {
    times.busy.push_back(median(rounds, [&](const LayoutTimes& t) { return t.busy[d]; }));
    times.simulated_busy.push_back(
        median(rounds, [&](const LayoutTimes& t) { return t.simulated_busy[d]; }));
  }
  return times;
}

double LayoutRace::ratio(const std::string& name, const std::string& other) const {
  const std::vector<LayoutTimes>&of = entry(name).rounds, &to = entry(other).rounds;
  std::vector<double> ratios;
  for (size_t i = 0; i < of.size(); ++i) ratios.push_back(of[i].measured_s / to[i].measured_s);
  return quantile(ratios, 0.5);
}

const std::vector<double>& LayoutRace::step_seconds(const std::string& name) const {
  return entry(name).step_seconds;
}

const std::vector<double>& LayoutRace::simulated_seconds(const std::string& name) const {
  return entry(name).simulated_seconds;
}

StepBatch even_batch(const Session& session, std::mt19937& random) {
  StepBatch batch = random_batch(session, random);
  const auto vocabulary = static_cast<uint64_t>(session.config().vocab_size);
  for (int32_t& token : batch.tokens) token = static_cast<int32_t>(random() % vocabulary);
  return batch;
}

BatchSource shifting_batches() {
  auto steps = std::make_shared<uint64_t>(0);
  return [steps](const Session& session, std::mt19937& random) {
    StepBatch batch = random_batch(session, random);
    const auto vocabulary = static_cast<uint64_t>(session.config().vocab_size);
    const uint64_t first = *steps / 5 * 24 % vocabulary;
    ++*steps;
    for (int32_t& token : batch.tokens) {
      const uint64_t a = random() % 24, b = random() % 24;
      token = static_cast<int32_t>((first + a * b / 24) % vocabulary);
    }
    return batch;
  };
}

}  // namespace pagoda
