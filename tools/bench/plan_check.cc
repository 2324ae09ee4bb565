// How well a step is known before it runs: predicts what steps of small runs take and need, on a
// profile of this machine that was measured with another model, then trains them. Prints for each
// run the time of a step predicted and measured (and, as simulated with the routing that it had,
// how much of the error that explains) and the peak bytes of its tiers; for each model the run that
// the prediction would choose among those that differ in what is free to choose (the size of a
// microbatch, and how much of the memory the device gets) against the best of all; and of all runs
// the error's median and 95th percentile. Not installed.
//
//   plan_check [--rounds N] [--only MODEL] [--kinds] [--tiny] [DIR]
//                                       pages go to a new folder in DIR, removed at the end
//
// The prediction knows no routing: tokens are taken to choose all experts equally often. The
// profile: tasks' times in steps of a model of the same widths and another number of layers,
// experts, choices and tokens, for each size of a microbatch, with room for everything (what tasks
// take by themselves, and of the cores) and with memory for as large a part as the predicted
// runs have (what they take beside copies, checks and updates); copies, checksums and the drive by
// themselves. These steps take turns with those of the run that is predicted, for a machine's speed
// changes by the minute. --kinds tells of each run what its tasks took by kind, and what they were
// simulated to. Needs a machine that nobody else uses; --tiny shows in a minute that the program
// works.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/machine.h"
#include "bench/leg.h"
#include "plan/steady_run.h"
#include "tools/bench/measured_run.h"
#include "train/trace_names.h"

namespace pagoda {
namespace {

constexpr int kWarmUpSteps = 2;
// Of the run that is predicted, the first of which begins with an empty drive and does not count;
// and of either kind beforehand.
constexpr int kStepsOfRound = 3, kCalibrationSteps = 2;
constexpr double kStateBytes = 14;  // of an element: bf16 weights, fp32 weights and moments

// A model, and the memory that its runs have beyond what the plan needs: a part of weights and
// states.
struct Case {
  int64_t layers, experts, experts_per_token, tokens;
  bool eager;
  double memory;
};
constexpr Case kCases[] = {{4, 24, 4, 4096, false, 0.60},
                           {6, 16, 2, 4096, false, 0.30},
                           {3, 32, 4, 2048, true, 0.40},
                           {5, 20, 3, 6144, true, 1.30}};
constexpr Case kTinyCase = {2, 8, 2, 512, false, 0.50};
constexpr int64_t kMicrobatchTokens[] = {256, 512, 1024};
constexpr int64_t kTinyMicrobatchTokens[] = {128, 256};
// Of that memory; the model that is measured beforehand has another.
constexpr double kDeviceShares[] = {0.2, 0.6};
constexpr double kCalibrationShare = 0.4;

RandomModel model_of(const Case& c, bool tiny) {
  const int64_t d = tiny ? 64 : 256;
  return {.layers = c.layers, .hidden_size = d, .heads = 8, .kv_heads = 4, .head_dim = d / 8,
          .experts = c.experts, .experts_per_token = c.experts_per_token, .expert_size = 2 * d,
          .vocab_size = 2048, .initializer_range = 0.05};
}

// The model that is measured beforehand.
Case calibration_case(const Case& c) {
  return {std::max<int64_t>(2, c.layers - 1), c.experts - 4,
          c.experts_per_token == 2 ? 3 : c.experts_per_token - 1, c.tokens / 2, c.eager, c.memory};
}

// One run of a case.
struct Choice {
  int64_t microbatch_tokens = 0;
  double device_share = 0;
};

// Of a step, in seconds and bytes.
struct StepNumbers {
  double seconds = 0;
  int64_t device_bytes = 0, host_bytes = 0;  // most that pages have in slots
};

struct Run {
  Choice choice;
  StepNumbers predicted, measured;
  double error() const { return predicted.seconds / measured.seconds - 1; }
};

// A part more than it is: 0.01 is one in a hundred.
double above(int64_t predicted, int64_t measured) {
  return static_cast<double>(predicted) / static_cast<double>(std::max<int64_t>(1, measured)) - 1;
}

// What tasks took, by kind, of a step: measured, and simulated with the routing it had.
void print_kinds(const TaskTimes& times, const MeasuredRun& paged,
                 const MachineProfile& profile) {
  const MeasuredRun::Replayed replayed = paged.simulate(profile);
  const auto steps = static_cast<double>(paged.step_s().size());
  std::printf("    ms a step   cores measured simulated\n");
  for (size_t kind = 0; kind < kTaskKinds; ++kind) {
    double measured_s = 0;
    for (const CostSample& sample : times.of(static_cast<TaskKind>(kind))) {
      measured_s += sample.seconds;
    }
    if (measured_s <= 0) continue;
    std::printf("    %-12s %4.2f %8.1f %9.1f\n", task_kind_name(static_cast<TaskKind>(kind)),
                profile.tasks[kind].cores, 1e3 * measured_s / steps,
                1e3 * replayed.task_s[kind] / steps);
  }
  std::printf("    %-17s %8.1f %9.1f\n", "the step", 1e3 * paged.mean_step_s(),
              1e3 * replayed.mean_step_s);
}

// The model that is measured beforehand, with one size of microbatch: steps with room for
// everything, and steps with memory for a part.
class Calibration {
 public:
  Calibration(const HfFolder& folder, Storage* storage, const SessionOptions& with_room,
              const SessionOptions& with_a_part)
      : random_(3), roomy_(folder, storage, with_room), paged_(folder, storage, with_a_part) {
    CHECK(roomy_.run.session().memory().state_on_device);
    CHECK(!paged_.run.session().memory().state_on_device);
    roomy_.warm_up(random_, kWarmUpSteps);
    paged_.warm_up(random_, kWarmUpSteps);
  }

  // What was measured before counts no more.
  void begin() {
    for (MeasuredRun* run : {&roomy_, &paged_}) run->forget();
    roomy_times_ = std::make_unique<TaskTimes>(&roomy_.run.session().shape());
    paged_times_ = std::make_unique<TaskTimes>(&paged_.run.session().shape());
    roomy_.run.session().executor().time_tasks(roomy_times_.get());
    paged_.run.session().executor().time_tasks(paged_times_.get());
  }
  void measure() {
    roomy_.measure(random_, kCalibrationSteps);
    paged_.measure(random_, kCalibrationSteps);
    paged_.run.session().pager().drain();
  }
  // Adds what tasks take to what cores, copies and the drive do. Prints what there was to fit.
  void fit(double memory_bytes_per_s, bool kinds, MachineProfile& profile) const;

  int64_t page_bytes() const { return state_page_bytes(roomy_.run.session().pages()); }

 private:
  std::mt19937 random_;
  std::unique_ptr<TaskTimes> roomy_times_, paged_times_;  // outlive the runs
  MeasuredRun roomy_, paged_;
};

class PlanCheck {
 public:
  PlanCheck(std::string directory, int rounds, bool kinds, bool tiny)
      : directory_(std::move(directory)),
        rounds_(rounds),
        kinds_(kinds),
        tiny_(tiny),
        threads_(usable_cores()) {
    storage_ = need(open_storage(IoKind::kAuto, directory_));
    std::printf("storage: %s\n", storage_->describe().c_str());
  }

  std::vector<Run> run(const Case& c);

 private:
  HfFolder make_model(const Case& c, const char* name) const;
  SessionOptions options(const HfFolder& folder, const Case& c, const Choice& choice,
                         const char* file) const;
  StepNumbers predict(const Session& session, const MachineProfile& profile) const;
  Run run(const HfFolder& folder, const Case& c, const Choice& choice, Calibration& calibration);
  std::vector<int64_t> microbatch_tokens() const {
    if (tiny_) return {std::begin(kTinyMicrobatchTokens), std::end(kTinyMicrobatchTokens)};
    return {std::begin(kMicrobatchTokens), std::end(kMicrobatchTokens)};
  }

  std::string directory_;
  int rounds_;
  bool kinds_, tiny_;
  int threads_;
  std::unique_ptr<Storage> storage_;
};

void Calibration::fit(double memory_bytes_per_s, bool kinds, MachineProfile& profile) const {
  fit_tasks(*roomy_times_, roomy_, memory_bytes_per_s, profile);
  const double alone_s = paged_.simulate(profile).mean_step_s;
  const double roomy_s = roomy_.mean_step_s() * static_cast<double>(roomy_.step_s().size());
  std::printf("  beforehand: %.3f s a step with room for everything, on %.2f of %.2f cores, "
              "wake-up %.2f ms, issue %.1f us;",
              roomy_.mean_step_s(), roomy_.cpu_s() / roomy_s, profile.cores,
              1e3 * profile.wake_up_s, 1e6 * profile.issue.fixed_s);
  if (kinds) print_kinds(*paged_times_, paged_, profile);
  fit_paged(*paged_times_, paged_, profile);
  std::printf(" with memory for a part %.3f s, simulated %.3f s before the fit, %.3f s after; "
              "moves %.2f of memory's rate, a turn %.0f us, issue %.1f us\n",
              paged_.mean_step_s(), alone_s, paged_.simulate(profile).mean_step_s,
              profile.of(TaskKind::kExpert).memory, 1e6 * profile.turn_s,
              1e6 * profile.issue.fixed_s);
  if (kinds) print_kinds(*paged_times_, paged_, profile);
}

HfFolder PlanCheck::make_model(const Case& c, const char* name) const {
  const std::string folder = directory_ + "/" + name;
  std::filesystem::remove_all(folder);
  CHECK(std::filesystem::create_directories(folder));
  return make_random_model(folder, model_of(c, tiny_));
}

// Without memory to divide: room for everything.
SessionOptions PlanCheck::options(const HfFolder& folder, const Case& c, const Choice& choice,
                                  const char* file) const {
  const int64_t microbatches = std::max<int64_t>(1, c.tokens / choice.microbatch_tokens);
  SessionOptions options = roomy_options(directory_ + "/store", file, microbatches,
                                         choice.microbatch_tokens, c.eager);
  if (c.memory == 0) return options;
  const MemoryPlan least = need(Session::plan(folder.config(), options));
  const auto elements =
      static_cast<double>(TensorTable::make(folder.config()).total_parameters());
  const auto part = [&](double share) {
    return static_cast<int64_t>(share * c.memory * kStateBytes * elements);
  };
  options.device_bytes = least.min_device_bytes + part(choice.device_share);
  options.host_bytes = least.min_host_bytes + part(1 - choice.device_share);
  return options;
}

// A few steps from all on disk, the last of which counts: by then pages have found their places.
StepNumbers PlanCheck::predict(const Session& session, const MachineProfile& profile) const {
  constexpr int kSteps = 4;
  const RunShape& shape = session.shape();
  const std::vector<SlotClass>& classes = session.memory().classes;
  const StepPlan plan(shape, session.pages(),
                      {true, session.memory().state_on_device, session.options().eager_adam});
  ExpertForecast forecast(shape, session.pages(), classes);
  SteadyRun steady(&plan, SteadyRun::Tokens::kEven, &forecast);
  Simulator simulator(&shape, &session.pages(), profile,
                      all_on_disk(shape.devices, session.pages(), classes));
  for (int i = 0; i < kSteps; ++i) {
    steady.step([&](const StepPiece& piece) { simulator.run(piece); });
    simulator.end_step();
  }
  const Simulated simulated = simulator.finish();
  return {simulated.step_s.back(), simulated.peak_device_bytes.front(), simulated.peak_host_bytes};
}

// In turns with the steps that the profile is drawn from: a machine is not as fast at all times.
Run PlanCheck::run(const HfFolder& folder, const Case& c, const Choice& choice,
                   Calibration& calibration) {
  MeasuredRun paged(folder, storage_.get(), options(folder, c, choice, "paged"));
  std::mt19937 random(5);
  paged.warm_up(random, kWarmUpSteps);
  TaskTimes times(&paged.run.session().shape());
  paged.run.session().executor().time_tasks(&times);  // as beforehand, for it takes time
  calibration.begin();
  MachineProfile profile;
  profile.cores = 0;
  for (int round = 0; round < rounds_; ++round) {
    profile.cores += cores_to_be_had(threads_) / rounds_;
    calibration.measure();
    paged.measure(random, kStepsOfRound);
    paged.run.session().pager().drain();
  }
  const double memory = memory_bytes_per_s(threads_);
  const std::string moves =
      profile_moves(storage_.get(), directory_, calibration.page_bytes(), memory, profile);
  const double stolen = 1 - profile.cores / threads_;
  calibration.fit(memory, kinds_, profile);
  Run run{choice, predict(paged.run.session(), profile), {}};
  const MeasuredRun::Replayed peaks = paged.simulate(profile);
  run.measured = {paged.later_step_s(), peaks.peak_device_bytes, peaks.peak_host_bytes};
  std::printf("  %s\n", moves.c_str());
  if (kinds_) print_kinds(times, paged, profile);
  std::printf("  %5lld %4.0f %%   %9.3f %7.3f %8.3f %+6.1f %%   %9.1f %+5.1f %%   %9.1f %+5.1f %%"
              "%s\n",
              static_cast<long long>(choice.microbatch_tokens), 100 * choice.device_share,
              run.predicted.seconds, peaks.mean_step_s, run.measured.seconds, 100 * run.error(),
              1e-6 * static_cast<double>(run.measured.device_bytes),
              100 * above(run.predicted.device_bytes, run.measured.device_bytes),
              1e-6 * static_cast<double>(run.measured.host_bytes),
              100 * above(run.predicted.host_bytes, run.measured.host_bytes),
              stolen > 0.1 ? "   others use this machine" : "");
  std::fflush(stdout);
  return run;
}

std::vector<Run> PlanCheck::run(const Case& c) {
  const HfFolder folder = make_model(c, "model");
  const Case other = calibration_case(c);
  const HfFolder other_folder = make_model(other, "calibration");
  std::printf("%lld layers of %lld experts, %lld of them a token; %lld tokens a step, %s; memory "
              "for %.0f %% of weights and states\n"
              "  micro device   predicted  routed measured    error   device MB    above     host "
              "MB    above\n",
              static_cast<long long>(c.layers), static_cast<long long>(c.experts),
              static_cast<long long>(c.experts_per_token), static_cast<long long>(c.tokens),
              c.eager ? "per_expert" : "global", 100 * c.memory);
  std::vector<Run> runs;
  Case with_room = other;
  with_room.memory = 0;
  for (const int64_t tokens : microbatch_tokens()) {
    const Choice beforehand{tokens, kCalibrationShare};
    Calibration calibration(other_folder, storage_.get(),
                            options(other_folder, with_room, beforehand, "calibration-roomy"),
                            options(other_folder, other, beforehand, "calibration"));
    for (const double share : kDeviceShares) {
      runs.push_back(run(folder, c, {tokens, share}, calibration));
    }
  }
  return runs;
}

// What the run costs that the prediction chooses, against the fastest.
double regret(const std::vector<Run>& runs) {
  const auto less = [](double StepNumbers::*seconds, StepNumbers Run::*of) {
    return [=](const Run& a, const Run& b) { return a.*of.*seconds < b.*of.*seconds; };
  };
  const auto chosen = std::min_element(runs.begin(), runs.end(),
                                       less(&StepNumbers::seconds, &Run::predicted));
  const auto best = std::min_element(runs.begin(), runs.end(),
                                     less(&StepNumbers::seconds, &Run::measured));
  return chosen->measured.seconds / best->measured.seconds;
}

void print_summary(const std::vector<Run>& runs, const std::vector<double>& regrets) {
  std::vector<double> errors;
  int below = 0, far_above = 0;
  for (const Run& run : runs) {
    errors.push_back(100 * std::abs(run.error()));
    for (const double part : {above(run.predicted.device_bytes, run.measured.device_bytes),
                              above(run.predicted.host_bytes, run.measured.host_bytes)}) {
      below += part < 0;
      far_above += part > 0.03;
    }
  }
  std::printf("%zu runs: sizes of the errors of a step's time: median %.1f %%, 95th percentile "
              "%.1f %%\nregret of the chosen run of each model: at most %.3f\n"
              "peak bytes of a tier: below what they were in %d of %zu, more than 3 %% above in "
              "%d\n",
              runs.size(), quantile(errors, 0.5), quantile(errors, 0.95),
              *std::max_element(regrets.begin(), regrets.end()), below, 2 * runs.size(),
              far_above);
}

// only: one of the models; -1: all.
int check(const std::string& parent, int rounds, int only, bool kinds, bool tiny) {
  const std::string directory = parent + "/plan_check";
  CHECK(std::filesystem::create_directories(directory), "%s exists", directory.c_str());
  std::vector<Run> all;
  std::vector<double> regrets;
  {
    PlanCheck check(directory, rounds, kinds, tiny);
    std::vector<Case> cases(std::begin(kCases), std::end(kCases));
    if (only >= 0) cases = {kCases[static_cast<size_t>(only) % std::size(kCases)]};
    if (tiny) cases = {kTinyCase};
    for (const Case& c : cases) {
      const std::vector<Run> runs = check.run(c);
      regrets.push_back(regret(runs));
      std::printf("  regret %.3f\n", regrets.back());
      all.insert(all.end(), runs.begin(), runs.end());
    }
  }
  std::filesystem::remove_all(directory);
  print_summary(all, regrets);
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  std::string parent = std::filesystem::temp_directory_path();
  int rounds = 3;
  int only = -1;
  bool kinds = false, tiny = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--kinds") == 0) {
      kinds = true;
    } else if (std::strcmp(argv[i], "--tiny") == 0) {
      tiny = true;
    } else if (argv[i][0] != '-') {
      parent = argv[i];
    } else {
      std::fprintf(stderr,
                   "plan_check: usage: [--rounds N] [--only MODEL] [--kinds] [--tiny] [DIR]\n");
      return 2;
    }
  }
  return pagoda::check(parent, rounds, only, kinds, tiny);
}
