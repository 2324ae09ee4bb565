#include "preview/plan_changes.h"

#include <algorithm>
#include <optional>

#include "base/bytes.h"
#include "preview/sheet_budgets.h"

namespace pagoda {
namespace {

constexpr int kMostDoublings = 6;
constexpr double kWorthSaying = 0.02;

PlanChange set_state(StateFormat format) {
  return {strf("optim.state = \"%s\"", state_format_name(format)),
          [format](RunConfig& c, MachineSheet&) { c.optim.state = format; }};
}

PlanChange set_micro_batch(int64_t tokens) {
  return {strf("train.micro_batch_tokens = %lld", (long long)tokens),
          [tokens](RunConfig& c, MachineSheet&) { c.train.micro_batch_tokens = tokens; }};
}

PlanChange set_step(int64_t tokens) {
  return {strf("train.tokens_per_step = %lld", (long long)tokens),
          [tokens](RunConfig& c, MachineSheet&) {
            c.train.tokens_per_step = tokens;
            c.train.micro_batch_tokens = std::min(c.train.micro_batch_tokens, tokens);
          }};
}

// A budget, and `there`, the memory that the machine has.
template <typename Budget>
PlanChange set_budget(const char* key, Budget RunConfig::Memory::*budget, int64_t bytes,
                      int64_t there) {
  const MemorySize size = MemorySize::of_bytes(align_up(bytes, kMiB));
  const std::string beyond =
      bytes <= there ? "" : strf(", of more than the %s there are", format_bytes(there).c_str());
  return {strf("%s = \"%s\"%s", key, size.text().c_str(), beyond.c_str()),
          [budget, size](RunConfig& c, MachineSheet&) { c.memory.*budget = size; }};
}

PlanChange set_device(int64_t bytes, const MachineSheet& sheet) {
  return set_budget("memory.device", &RunConfig::Memory::device, bytes, sheet.device_bytes());
}

PlanChange set_host(int64_t bytes, const MachineSheet& sheet) {
  return set_budget("memory.host", &RunConfig::Memory::host, bytes, sheet.host_bytes());
}

PlanChange without_checkpoints() {
  return {"train.save_steps = 0 (one version of each page, no checkpoints)",
          [](RunConfig& c, MachineSheet&) { c.train.save_steps = 0; }};
}

PlanChange set_drives(int64_t drives) {
  return {strf("%lld such drives", (long long)drives),
          [drives](RunConfig&, MachineSheet& m) { m.disk.drives = drives; }};
}

PlanChange both(const PlanChange& a, const PlanChange& b) {
  return {a.text + " and " + b.text, [a, b](RunConfig& c, MachineSheet& m) {
            a.apply(c, m);
            b.apply(c, m);
          }};
}

class Trial {
 public:
  Trial(const ModelSizes& model, const RunConfig& config, const MachineSheet& sheet)
      : model_(model), config_(config), sheet_(sheet) {}

  bool fits(const PlanChange& change) const {
    auto [config, sheet] = changed(change);
    if (!config.validate_for_planning().ok()) return false;
    const auto plan = forecast_memory(model_, config, sheet);
    return plan.ok() && plan.value().fits.ok();
  }
  // Tokens a second; 0 where it is no run.
  Result<RunForecast> plan(const PlanChange& change, const CoarseLimits& limits) const {
    auto [config, sheet] = changed(change);
    RETURN_IF_ERROR(config.validate_for_planning());
    return forecast_run(model_, config, sheet, limits);
  }

 private:
  std::pair<RunConfig, MachineSheet> changed(const PlanChange& change) const {
    RunConfig config = config_;
    MachineSheet sheet = sheet_;
    change.apply(config, sheet);
    return {config, sheet};
  }

  const ModelSizes& model_;
  const RunConfig& config_;
  const MachineSheet& sheet_;
};

// Halves microbatch and step, as long as they are whole rows.
std::vector<std::vector<PlanChange>> smaller_steps(const RunConfig& c) {
  std::vector<std::vector<PlanChange>> kinds(2);
  const int64_t row = c.data.sequence_len;
  for (int64_t t = c.train.micro_batch_tokens / 2; t >= row && t % row == 0; t /= 2) {
    kinds[0].push_back(set_micro_batch(t));
  }
  for (int64_t t = c.train.tokens_per_step / 2; t >= row && t % row == 0; t /= 2) {
    kinds[1].push_back(set_step(t));
  }
  return kinds;
}

std::vector<PlanChange> smaller_states(const RunConfig& c) {
  std::vector<PlanChange> changes;
  if (c.optim.state == StateFormat::kFp32) changes.push_back(set_state(StateFormat::kBf16));
  if (c.optim.state != StateFormat::k8Bit) changes.push_back(set_state(StateFormat::k8Bit));
  return changes;
}

std::vector<PlanChange> more_drives(const MachineSheet& m, int64_t store_bytes) {
  const int64_t size = m.disk_bytes() / m.disk.drives;
  if (size <= 0) return {};
  std::vector<PlanChange> changes;
  const int64_t enough = std::max(m.disk.drives, div_ceil(store_bytes, size));
  for (int64_t extra = 0; extra < 2; ++extra) changes.push_back(set_drives(enough + extra));
  return changes;
}

}  // namespace

std::vector<PlanChange> fitting_changes(const ModelSizes& model, const RunConfig& config,
                                        const MachineSheet& sheet) {
  const auto memory_only = forecast_memory(model, config, sheet);
  if (!memory_only.ok()) return {};
  const RunForecast& plan = memory_only.value();
  std::vector<std::vector<PlanChange>> kinds = smaller_steps(config);
  // Budgets below what the machine has; else it must have more.
  const PlanChange device = set_device(plan.least.device_bytes, sheet);
  const PlanChange host = set_host(plan.least.host_bytes, sheet);
  kinds.push_back({device, host, both(device, host)});
  kinds.push_back(smaller_states(config));
  if (config.train.save_steps > 0) kinds.push_back({without_checkpoints()});
  kinds.push_back(more_drives(sheet, plan.store_bytes));
  const Trial trial(model, config, sheet);
  std::vector<PlanChange> found;
  const auto first_fit = [&](const std::vector<PlanChange>& changes) {
    for (const PlanChange& change : changes) {
      if (!trial.fits(change)) continue;
      found.push_back(change);
      return;
    }
  };
  for (const std::vector<PlanChange>& kind : kinds) first_fit(kind);
  if (!found.empty()) return found;
  std::vector<PlanChange> together;
  for (size_t a = 0; a < kinds.size(); ++a) {
    for (size_t b = a + 1; b < kinds.size(); ++b) {
      if (kinds[a].empty() || kinds[b].empty()) continue;
      together.push_back(both(kinds[a].back(), kinds[b].back()));
    }
  }
  first_fit(together);
  return found;
}

namespace {

// The parts of the machine of which more could help: those that are busy for a fifth of the step,
// and memory if its lack makes pages move.
std::vector<PlanChange> more_of_the_machine(const RunConfig& c, const MachineSheet& m,
                                            const StepForecast& step) {
  constexpr double kMatters = 0.2;
  const auto matters = [&](Resource r) { return step.busy_s(r) >= kMatters * step.step_s(); };
  const int64_t host = host_budget(c, m);
  const int64_t device = c.memory.device.of(0).resolve(m.device_bytes(), m.auto_device_bytes());
  std::vector<PlanChange> changes;
  if (step.busy_s(Resource::kDrive) > 0) {
    changes.push_back({"twice the host memory", [host](RunConfig& r, MachineSheet& s) {
                         s.host.memory = MemorySize::of_bytes(2 * s.host_bytes());
                         r.memory.host = MemorySize::of_bytes(2 * host);
                       }});
  }
  if (m.gpu() && step.busy_s(Resource::kUpload) > 0) {
    changes.push_back({"twice the device memory", [device](RunConfig& r, MachineSheet& s) {
                         s.device.memory = MemorySize::of_bytes(2 * s.device_bytes());
                         r.memory.device = MemorySize::of_bytes(2 * device);
                       }});
  }
  if (matters(Resource::kDrive)) changes.push_back(set_drives(m.disk.drives + 1));
  if (matters(Resource::kLinks)) {
    changes.push_back({"twice the rate of links between devices",
                       [](RunConfig&, MachineSheet& s) { s.link.gb_s *= 2; }});
  }
  if (matters(Resource::kCores)) {
    changes.push_back({"twice the cores and their memory's rate", [](RunConfig&, MachineSheet& s) {
                         s.host.cores *= 2;
                         s.host.adam_gb_s *= 2;
                       }});
  }
  if (m.gpu() && (matters(Resource::kUpload) || matters(Resource::kDownload))) {
    changes.push_back({"twice the rate of copies to the device",
                       [](RunConfig&, MachineSheet& s) { s.host.copy_gb_s *= 2; }});
  }
  return changes;
}

std::vector<PlanChange> candidates(const RunConfig& c, const MachineSheet& m,
                                   const StepForecast& step) {
  std::vector<PlanChange> changes = more_of_the_machine(c, m, step);
  if (c.train.tokens_per_step % (2 * c.train.micro_batch_tokens) == 0) {
    changes.push_back(set_micro_batch(2 * c.train.micro_batch_tokens));
  }
  for (PlanChange& change : smaller_states(c)) changes.push_back(std::move(change));
  if (c.optim.clip == ClipKind::kGlobal) {
    changes.push_back({"optim.clip = \"per_expert\" (gradients do not wait)",
                       [](RunConfig& r, MachineSheet&) { r.optim.clip = ClipKind::kPerExpert; }});
  }
  return changes;
}

// Other assignments of a run's work to its devices: fewer or more that attend, and experts that
// stay at home or get their seats by their rows.
std::vector<PlanChange> assignments(const RunConfig& c, const RunForecast& plan) {
  const int64_t devices = std::ssize(plan.devices);
  if (devices < 2) return {};
  const int64_t most = std::min(devices, c.sums().shards);
  const int64_t now = std::count_if(plan.devices.begin(), plan.devices.end(),
                                    [](const auto& device) { return device.microbatches > 0; });
  std::vector<int64_t> attending;
  for (int64_t n = 1; n < most; n *= 2) attending.push_back(n);
  attending.push_back(most);
  std::vector<PlanChange> changes;
  for (const int64_t n : attending) {
    if (n == now) continue;
    changes.push_back({strf("parallel.attention_devices = %lld", (long long)n),
                       [n](RunConfig& r, MachineSheet&) { r.parallel.attention_devices = n; }});
  }
  const PlaceKind other =
      c.parallel.place == PlaceKind::kStep ? PlaceKind::kHome : PlaceKind::kStep;
  changes.push_back({strf("parallel.place = \"%s\"", other == PlaceKind::kStep ? "step" : "home"),
                     [other](RunConfig& r, MachineSheet&) { r.parallel.place = other; }});
  return changes;
}

class Study {
 public:
  Study(const ModelSizes& model, const RunConfig& config, const MachineSheet& sheet,
        const CoarseLimits& limits)
      : config_(config), sheet_(sheet), limits_(limits), trial_(model, config, sheet) {}

  PlanAdvice run() {
    // Larger numbers of tokens a step; the first two are changes that may help.
    for (int i = 0; i <= kMostDoublings; ++i) {
      const std::optional<RunForecast> plan = doubled(i);
      if (i == 0) before_ = plan;
      if (!plan || (found_.compute_bound.reached() && i > 2)) break;
    }
    if (!before_) return {};
    for (const PlanChange& change : candidates(config_, sheet_, *before_->step)) consider(change);
    try_assignments();
    std::stable_sort(
        found_.helpful.begin(), found_.helpful.end(),
        [](const HelpfulChange& a, const HelpfulChange& b) { return a.gain > b.gain; });
    return std::move(found_);
  }

 private:
  // nullopt if the run does not fit.
  std::optional<RunForecast> consider(const PlanChange& change) {
    auto plan = trial_.plan(change, limits_);
    if (!plan.ok() || !plan.value().step || !plan.value().fits.ok()) return std::nullopt;
    const double rate = plan.value().tokens_per_s();
    const double gain = before_ ? rate / before_->tokens_per_s() - 1 : 0;
    if (gain >= kWorthSaying) found_.helpful.push_back({change.text, rate, gain});
    return plan.take();
  }
  void try_assignments() {
    double best = before_->tokens_per_s() * (1 + kWorthSaying);
    for (const PlanChange& change : assignments(config_, *before_)) {
      const std::optional<RunForecast> plan = consider(change);
      found_.assignments += plan.has_value();
      if (!plan || plan->tokens_per_s() < best) continue;
      best = plan->tokens_per_s();
      found_.best_assignment = change.text;
    }
  }
  std::optional<RunForecast> doubled(int times) {
    const size_t said = found_.helpful.size();
    const int64_t tokens = config_.train.tokens_per_step << times;
    std::optional<RunForecast> plan = consider(set_step(tokens));
    if (times > 2) found_.helpful.resize(said);
    ComputeBound& bound = found_.compute_bound;
    if (!plan || bound.reached()) return plan;
    const double share = plan->step->busy_s(Resource::kCompute) / plan->step->step_s();
    if (share > bound.compute_share) bound = {tokens, share, plan->tokens_per_s()};
    return plan;
  }

  const RunConfig& config_;
  const MachineSheet& sheet_;
  const CoarseLimits& limits_;
  const Trial trial_;
  std::optional<RunForecast> before_;
  PlanAdvice found_;
};

}  // namespace

PlanAdvice advise(const ModelSizes& model, const RunConfig& config, const MachineSheet& sheet,
                  const CoarseLimits& limits) {
  return Study(model, config, sheet, limits).run();
}

std::vector<int64_t> micro_batch_choices(const RunConfig& config) {
  const int64_t row = config.data.sequence_len, step = config.train.tokens_per_step;
  std::vector<int64_t> choices;
  for (int64_t parts = 1; parts <= step / row; ++parts) {
    if (step % parts != 0 || step / parts % row != 0) continue;
    const bool power = (parts & (parts - 1)) == 0;
    const bool own = step / parts == config.train.micro_batch_tokens;
    if (power || own || parts == step / row) choices.push_back(step / parts);
  }
  return choices;
}

namespace {

bool lacks_memory(Exit code) {
  return code == Exit::kDeviceMemory || code == Exit::kHostMemory || code == Exit::kDoesNotFit;
}

// Whether so many ranks of this machine have room. Ranks keep rows that come from others, which one
// alone does not have.
bool has_room(const ModelSizes& model, RunConfig config, const MachineSheet& sheet, int64_t tokens,
              int ranks, const CoarseLimits& limits) {
  if (ranks == 1) return true;
  config.train.micro_batch_tokens = tokens;
  ClusterSheet cluster;
  cluster.nodes.assign(static_cast<size_t>(ranks), sheet);
  cluster.network = {.gb_s = 1};  // its time does not matter
  const std::vector<RunConfig> configs(static_cast<size_t>(ranks), config);
  return forecast_ranks(model, configs, cluster, limits).ok();
}

}  // namespace

Result<int64_t> choose_micro_batch_tokens(const ModelSizes& model, const RunConfig& config,
                                          const MachineSheet& sheet, int ranks,
                                          const CoarseLimits& limits) {
  constexpr double kAsFast = 1.01;
  struct Choice {
    int64_t tokens = 0;
    double step_s = 0;
  };
  std::vector<Choice> choices;
  Status refused;  // the first refusal that more memory would not change
  bool room_matters = false;
  const Trial trial(model, config, sheet);
  for (const int64_t tokens : micro_batch_choices(config)) {
    const auto plan = trial.plan(set_micro_batch(tokens), limits);
    if (!plan.ok() && !lacks_memory(plan.status().code())) {
      if (refused.ok()) refused = plan.status();
      continue;
    }
    room_matters = true;
    if (!plan.ok() || !plan.value().step) continue;
    if (!has_room(model, config, sheet, tokens, ranks, limits)) continue;
    choices.push_back({tokens, plan.value().step->step_s()});
    const size_t n = choices.size();
    if (n >= 3 && choices[n - 1].step_s > choices[n - 2].step_s) break;
  }
  if (!room_matters) RETURN_IF_ERROR(refused);
  if (choices.empty()) {
    return Status(Exit::kUsage, strf("train.micro_batch_tokens = \"auto\": no part of the %lld "
                                     "tokens of a step has room, even a row of %lld; raise "
                                     "memory.device or memory.host, or lower data.sequence_len",
                                     (long long)config.train.tokens_per_step,
                                     (long long)config.data.sequence_len));
  }
  double least_s = choices.front().step_s;
  for (const Choice& choice : choices) least_s = std::min(least_s, choice.step_s);
  for (const Choice& choice : choices) {
    if (choice.step_s <= kAsFast * least_s) return choice.tokens;
  }
  return choices.front().tokens;
}

}  // namespace pagoda
