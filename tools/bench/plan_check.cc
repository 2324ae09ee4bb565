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
// take by themselves, and of the cores) and with memory for as large a part as the predicted runs
// have (what moves of pages add); copies, checksums and the drive by themselves. All sessions of a
// model take turns, round after round: each round predicts all runs from what it measured of the
// calibrations alone, and the median of its predictions is held against the median of the measured
// steps. --kinds tells of each run what its tasks took by kind in the last round, and what they
// were simulated to. Needs a machine that nobody else uses; --tiny shows in a minute that the
// program works.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "bench/race/timing.h"
#include "plan/step/task_table.h"
#include "tools/bench/measured_run.h"

namespace pagoda {
namespace {

constexpr int kSteps = 2;           // steps of a timing that count
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
// Shares of that memory; the model that is measured beforehand has another one.
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
  double device_share = 0;  // 0: room for everything
};

// Seconds and bytes of a step.
struct StepNumbers {
  double seconds = 0;
  int64_t device_bytes = 0, host_bytes = 0;  // most that pages have in slots
};

struct Run {
  StepNumbers predicted, measured;
  double error() const { return predicted.seconds / measured.seconds - 1; }
};

// A part more than it is: 0.01 is one in a hundred.
double above(int64_t predicted, int64_t measured) {
  return static_cast<double>(predicted) / static_cast<double>(std::max<int64_t>(1, measured)) - 1;
}

// What tasks took, by kind, of a step: measured, and simulated with the routing it had.
void print_kinds(const MeasuredRun& run, const MachineProfile& profile) {
  const MeasuredRun::Replayed replayed = run.simulate(profile);
  const auto steps = static_cast<double>(run.steps());
  std::printf("    ms a step   cores measured simulated\n");
  for (size_t kind = 0; kind < kTaskKinds; ++kind) {
    double measured_s = 0;
    for (const CostSample& sample : run.times().of(static_cast<TaskKind>(kind))) {
      measured_s += sample.seconds;
    }
    if (measured_s <= 0) continue;
    std::printf("    %-12s %4.2f %8.1f %9.1f\n", kTaskTable[static_cast<size_t>(kind)].name,
                profile.tasks[kind].cores, 1e3 * measured_s / steps,
                1e3 * replayed.task_s[kind]);
  }
  std::printf("    %-17s %8.1f %9.1f\n", "the step", 1e3 * run.step_s(),
              1e3 * replayed.step_s);
}

// What the user chose, and where pages are.
struct Setting {
  int rounds = 6;
  bool kinds = false, tiny = false;
  std::string directory;
  std::unique_ptr<Storage> storage;
};

HfFolder make_model(const Setting& setting, const Case& c, const char* name) {
  const std::string folder = setting.directory + "/" + name;
  std::filesystem::remove_all(folder);
  CHECK(std::filesystem::create_directories(folder));
  return make_random_model(folder, model_of(c, setting.tiny));
}

SessionOptions session_options(const Setting& setting, const HfFolder& folder, const Case& c,
                               const Choice& choice, const char* name) {
  const int64_t microbatches = std::max<int64_t>(1, c.tokens / choice.microbatch_tokens);
  const std::string file = strf("%s-%lld-%.0f", name,
                                static_cast<long long>(choice.microbatch_tokens),
                                100 * choice.device_share);
  SessionOptions options = roomy_options(setting.directory + "/store", file, microbatches,
                                         choice.microbatch_tokens, c.eager);
  if (choice.device_share == 0) return options;
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

StepNumbers predict(const Session& session, const MeasuredMachine& machine) {
  StepNumbers numbers;
  numbers.seconds = machine.step_s([&](const MachineProfile& profile) {
    const EvenStep step = simulate_even(session, profile);
    numbers.device_bytes = step.peak_device_bytes;
    numbers.host_bytes = step.peak_host_bytes;
    return step.step_s;
  });
  return numbers;
}

// A run that is predicted.
class Candidate {
 public:
  Candidate(const Setting& setting, const HfFolder& folder, const Case& c, const Choice& choice)
      : choice_(choice),
        run_(folder, setting.storage.get(),
             session_options(setting, folder, c, choice, "candidate")) {}

  double measure() {
    run_.measure(kSteps);
    return run_.step_s();
  }
  // The newest measurement, from what the machine was meanwhile.
  void predict(const MeasuredMachine& machine) {
    const double routed_s = machine.step_s(
        [&](const MachineProfile& profile) { return run_.simulate(profile).step_s; });
    const Pager& pager = run_.session().pager();
    rounds_.push_back(
        {{pagoda::predict(run_.session(), machine),
          {run_.step_s(), pager.peak_bytes(Place::on_device(0)), pager.peak_bytes(Place::host())}},
         routed_s});
  }
  Run result() const { return {over_rounds(&Run::predicted), over_rounds(&Run::measured)}; }
  void print(const Setting& setting, const MeasuredMachine& machine) const;

 private:
  struct Round {
    Run run;
    double routed_s;  // simulated with the routing it had
  };
  StepNumbers over_rounds(StepNumbers Run::*of) const;

  Choice choice_;
  MeasuredRun run_;
  std::vector<Round> rounds_;
};

StepNumbers Candidate::over_rounds(StepNumbers Run::*of) const {
  StepNumbers numbers;
  numbers.seconds = median(rounds_, [&](const Round& r) { return (r.run.*of).seconds; });
  for (const Round& r : rounds_) {
    numbers.device_bytes = std::max(numbers.device_bytes, (r.run.*of).device_bytes);
    numbers.host_bytes = std::max(numbers.host_bytes, (r.run.*of).host_bytes);
  }
  return numbers;
}

void Candidate::print(const Setting& setting, const MeasuredMachine& machine) const {
  if (setting.kinds) print_kinds(run_, machine.profile);
  std::vector<double> timings;
  for (const Round& r : rounds_) timings.push_back(r.run.measured.seconds);
  const Run run = result();
  std::printf(
      "  %5lld %4.0f %%   %9.3f %7.3f %8.3f %+6.1f %%  %4.1f %%  %9.1f %+5.1f %%  %9.1f "
      "%+5.1f %%\n",
      static_cast<long long>(choice_.microbatch_tokens), 100 * choice_.device_share,
      run.predicted.seconds, median(rounds_, [](const Round& r) { return r.routed_s; }),
      run.measured.seconds, 100 * run.error(),
      100 * (quantile(timings, 0.75) - quantile(timings, 0.25)) / run.measured.seconds,
      1e-6 * static_cast<double>(run.measured.device_bytes),
      100 * above(run.predicted.device_bytes, run.measured.device_bytes),
      1e-6 * static_cast<double>(run.measured.host_bytes),
      100 * above(run.predicted.host_bytes, run.measured.host_bytes));
}

// All runs with one size of microbatch, and what they are predicted from: steps of another model
// with room for everything, and with memory for a part.
class Cell {
 public:
  Cell(const Setting& setting, const HfFolder& folder, const Case& c, const HfFolder& other_folder,
       const Case& other, int64_t tokens);
  // All are measured in turn; then all are predicted.
  void round();
  void print() const;
  std::deque<Candidate>& candidates() { return candidates_; }

 private:
  struct Seconds {
    double roomy_s = 0, roomy_cpu_s = 0, part_s = 0;
    double before_s = 0, after_s = 0;  // part_s, simulated before the fit and after it
  };

  const Setting& setting_;
  MeasuredRun roomy_, part_;
  std::deque<Candidate> candidates_;
  std::vector<MeasuredMachine> machines_;  // [round]
  std::vector<Seconds> beforehand_;        // [round]
};

Cell::Cell(const Setting& setting, const HfFolder& folder, const Case& c,
           const HfFolder& other_folder, const Case& other, int64_t tokens)
    : setting_(setting),
      roomy_(other_folder, setting.storage.get(),
             session_options(setting, other_folder, other, {tokens, 0}, "calibration")),
      part_(other_folder, setting.storage.get(),
            session_options(setting, other_folder, other, {tokens, kCalibrationShare},
                            "calibration")) {
  CHECK(roomy_.session().memory().state_on_device);
  CHECK(!part_.session().memory().state_on_device);
  for (const double share : kDeviceShares) {
    candidates_.emplace_back(setting, folder, c, Choice{tokens, share});
  }
}

void Cell::round() {
  machines_.push_back(measure_machine(part_, setting_.storage.get(), setting_.directory));
  roomy_.measure(kSteps);
  part_.measure(kSteps);
  for (Candidate& candidate : candidates_) candidate.measure();
  MeasuredMachine& machine = machines_.back();
  fit_tasks(roomy_, machine);
  Seconds& seconds = beforehand_.emplace_back();
  seconds.roomy_s = roomy_.step_s();
  seconds.roomy_cpu_s = roomy_.cpu_s();
  seconds.part_s = part_.step_s();
  seconds.before_s = part_.simulate(machine.profile).step_s;
  fit_paged(part_, machine);
  seconds.after_s =
      machine.step_s([&](const MachineProfile& p) { return part_.simulate(p).step_s; });
  for (Candidate& candidate : candidates_) candidate.predict(machine);
}

void Cell::print() const {
  const auto of = [&](double Seconds::*member) {
    return median(beforehand_, [&](const Seconds& s) { return s.*member; });
  };
  const auto profile = [&](const auto& figure) {
    return median(machines_, [&](const MeasuredMachine& m) { return figure(m.profile); });
  };
  std::printf(
      "  beforehand: %.3f s a step with room for everything, on %.2f of %.2f cores, "
      "%.1f us between tasks; with memory for a part %.3f s, simulated %.3f s before the "
      "fit, %.3f s after; a turn %.0f us, moves add %.2f times that, issue %.1f us\n"
      "  %s%s\n",
      of(&Seconds::roomy_s), of(&Seconds::roomy_cpu_s) / of(&Seconds::roomy_s),
      profile([](const MachineProfile& p) { return p.cores; }),
      1e6 * median(machines_, &MeasuredMachine::hand_over_s), of(&Seconds::part_s),
      of(&Seconds::before_s), of(&Seconds::after_s),
      1e6 * profile([](const MachineProfile& p) { return p.slice_s; }),
      median(machines_, &MeasuredMachine::paging),
      1e6 * profile([](const MachineProfile& p) { return p.issue.fixed_s; }),
      describe_moves(machines_).c_str(),
      median(machines_, &MeasuredMachine::shared) > 0 ? "; others use this machine" : "");
  if (setting_.kinds) print_kinds(part_, machines_.back().profile);
  for (const Candidate& candidate : candidates_) candidate.print(setting_, machines_.back());
  std::fflush(stdout);
}

// What the run costs that the prediction chooses, against the fastest. The least of several
// measurements is too low by their noise, so the two are raced again, by themselves.
double regret(const std::vector<Candidate*>& candidates) {
  constexpr int kRaceRounds = 10;
  const auto least = [&](StepNumbers Run::*of) {
    return *std::min_element(candidates.begin(), candidates.end(), [&](auto* a, auto* b) {
      return (a->result().*of).seconds < (b->result().*of).seconds;
    });
  };
  Candidate *chosen = least(&Run::predicted), *fastest = least(&Run::measured);
  std::vector<double> ratios;
  for (int round = 0; round < kRaceRounds && chosen != fastest; ++round) {
    const double first_s = (round % 2 == 0 ? chosen : fastest)->measure();
    const double second_s = (round % 2 == 0 ? fastest : chosen)->measure();
    ratios.push_back(round % 2 == 0 ? first_s / second_s : second_s / first_s);
  }
  const double before =
      chosen->result().measured.seconds / fastest->result().measured.seconds;
  const double raced = ratios.empty() ? 1 : std::max(1.0, quantile(ratios, 0.5));
  std::printf("  regret %.3f (%.3f before the race)\n", raced, before);
  std::fflush(stdout);
  return raced;
}

// All of them take turns, so that those that are chosen among were measured at the same time.
// Adds the runs, and the regret of the one that the predictions choose.
void check_case(const Setting& setting, const Case& c, std::vector<Run>& runs,
                std::vector<double>& regrets) {
  const HfFolder folder = make_model(setting, c, "model");
  const Case other = calibration_case(c);
  const HfFolder other_folder = make_model(setting, other, "calibration");
  std::printf("%lld layers of %lld experts, %lld of them a token; %lld tokens a step, %s; memory "
              "for %.0f %% of weights and states\n"
              "  micro device   predicted  routed measured    error spread  device MB   above    "
              "host MB   above\n",
              static_cast<long long>(c.layers), static_cast<long long>(c.experts),
              static_cast<long long>(c.experts_per_token), static_cast<long long>(c.tokens),
              c.eager ? "per_expert" : "global", 100 * c.memory);
  std::deque<Cell> cells;
  const std::span<const int64_t> sizes =
      setting.tiny ? std::span<const int64_t>(kTinyMicrobatchTokens)
                   : std::span<const int64_t>(kMicrobatchTokens);
  for (const int64_t tokens : sizes) {
    cells.emplace_back(setting, folder, c, other_folder, other, tokens);
  }
  for (int round = 0; round < setting.rounds; ++round) {
    for (Cell& cell : cells) cell.round();
  }
  std::vector<Candidate*> candidates;
  for (Cell& cell : cells) {
    cell.print();
    for (Candidate& candidate : cell.candidates()) candidates.push_back(&candidate);
  }
  for (const Candidate* candidate : candidates) runs.push_back(candidate->result());
  regrets.push_back(regret(candidates));
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
              "%.1f %%\nregret of the chosen run of each model, raced against the fastest: at "
              "most %.3f\n"
              "peak bytes of a tier: below what they were in %d of %zu, more than 3 %% above in "
              "%d\n",
              runs.size(), quantile(errors, 0.5), quantile(errors, 0.95),
              *std::max_element(regrets.begin(), regrets.end()), below, 2 * runs.size(),
              far_above);
}

// only: one of the models; -1: all.
int check(const std::string& parent, Setting& setting, int only) {
  setting.directory = parent + "/plan_check";
  CHECK(std::filesystem::create_directories(setting.directory), "%s exists",
        setting.directory.c_str());
  setting.storage = need(open_storage(IoKind::kAuto, setting.directory));
  std::printf("storage: %s\n", setting.storage->describe().c_str());
  std::vector<Case> cases(std::begin(kCases), std::end(kCases));
  if (only >= 0) cases = {kCases[static_cast<size_t>(only) % std::size(kCases)]};
  if (setting.tiny) cases = {kTinyCase};
  std::vector<Run> all;
  std::vector<double> regrets;
  for (const Case& c : cases) check_case(setting, c, all, regrets);
  std::filesystem::remove_all(setting.directory);
  print_summary(all, regrets);
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  std::string parent = std::filesystem::temp_directory_path();
  int only = -1;
  pagoda::Setting setting;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      setting.rounds = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
      only = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--kinds") == 0) {
      setting.kinds = true;
    } else if (std::strcmp(argv[i], "--tiny") == 0) {
      setting.tiny = true;
    } else if (argv[i][0] != '-') {
      parent = argv[i];
    } else {
      std::fprintf(stderr,
                   "plan_check: usage: [--rounds N] [--only MODEL] [--kinds] [--tiny] [DIR]\n");
      return 2;
    }
  }
  return pagoda::check(parent, setting, only);
}
