// How far the simulator is from this machine: trains a small model for some steps under several
// budgets, tokens per step and clipping modes, simulates the same steps, prints both. Not
// installed.
//
//   simulator_check [DIR] [--rounds N]     pages go to a new folder in DIR, removed at the end
//
// Everything the simulator is told is measured in the same run: the times of tasks in steps of a
// second session with room for everything, which take turns with the steps that are measured;
// copies, checksums and the drive by themselves. Figures are medians over rounds.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "bench/race/timing.h"
#include "tools/bench/measured_run.h"

namespace pagoda {
namespace {

constexpr int kSteps = 2;  // steps of a timing that count
constexpr int64_t kMicrobatchTokens = 512;
constexpr RandomModel kModel{.layers = 4, .hidden_size = 256, .heads = 8, .kv_heads = 4,
                             .head_dim = 32, .experts = 24, .experts_per_token = 4,
                             .expert_size = 512, .vocab_size = 2048, .initializer_range = 0.05};

struct Configuration {
  int64_t microbatches;
  bool eager;
  double device;  // part of weights and states that fits on the device
  double host;    // the same in host memory
};

// Averages over the steps of a round, and the medians of these over rounds.
struct Outcome {
  double resident_s = 0;  // of a step, with room for everything
  double measured_s = 0, simulated_s = 0;
  double read_bytes = 0, write_bytes = 0;
  double error() const { return simulated_s / measured_s - 1; }
};

class Check {
 public:
  Check(std::string directory, int rounds)
      : directory_(std::move(directory)),
        rounds_(rounds),
        folder_(make_random_model(directory_, kModel)) {
    storage_ = need(open_storage(IoKind::kAuto, directory_));
    std::printf("storage: %s\n", storage_->describe().c_str());
  }

  Outcome run(const Configuration& configuration);

 private:
  SessionOptions options(const Configuration& configuration, bool resident) const;

  std::string directory_;
  int rounds_;
  HfFolder folder_;
  std::unique_ptr<Storage> storage_;
};

SessionOptions Check::options(const Configuration& configuration, bool resident) const {
  SessionOptions options =
      roomy_options(directory_ + "/store", resident ? "resident" : "paged",
                    configuration.microbatches, kMicrobatchTokens, configuration.eager);
  if (resident) return options;
  const MemoryPlan roomy = need(Session::plan(folder_.config(), options));
  int64_t elements = 0;
  for (const RecordSpec& r : TensorTable::make(folder_.config()).records) {
    elements += r.num_elements;
  }
  const auto part = [&](double of) { return static_cast<int64_t>(of * 14 * double(elements)); };
  options.device_bytes = roomy.min_device_bytes + part(configuration.device);
  options.host_bytes = roomy.min_host_bytes + part(configuration.host);
  return options;
}

Outcome Check::run(const Configuration& configuration) {
  MeasuredRun resident(folder_, storage_.get(), options(configuration, true));
  MeasuredRun paged(folder_, storage_.get(), options(configuration, false));
  CHECK(resident.session().memory().state_on_device);
  std::vector<MeasuredMachine> machines;
  std::vector<Outcome> rounds;
  for (int round = 0; round < rounds_; ++round) {
    machines.push_back(measure_machine(paged, storage_.get(), directory_));
    resident.measure(kSteps);
    paged.measure(kSteps);
    fit_tasks(resident, machines.back());
    Outcome& outcome = rounds.emplace_back();
    outcome.resident_s = resident.step_s();
    outcome.measured_s = paged.step_s();
    outcome.simulated_s = paged.simulate(machines.back().profile).step_s;
    outcome.read_bytes = double(paged.read_bytes());
    outcome.write_bytes = double(paged.written_bytes());
  }
  Outcome outcome;
  for (double Outcome::*of : {&Outcome::resident_s, &Outcome::measured_s, &Outcome::simulated_s,
                              &Outcome::read_bytes, &Outcome::write_bytes}) {
    outcome.*of = median(rounds, [&](const Outcome& round) { return round.*of; });
  }
  std::printf("  %s\n  with room for everything: %.3f s a step, %.1f us between tasks%s\n",
              describe_moves(machines).c_str(), outcome.resident_s,
              1e6 * median(machines, &MeasuredMachine::hand_over_s),
              median(machines, &MeasuredMachine::shared) > 0
                  ? "; others use this machine, the error says little"
                  : "");
  return outcome;
}

int check(const std::string& parent, int rounds) {
  const std::string directory = parent + "/simulator_check";
  CHECK(std::filesystem::create_directories(directory), "%s exists", directory.c_str());
  std::vector<double> errors;
  {
    Check check(directory, rounds);
    const Configuration configurations[] = {
        {2, false, 0.02, 0.10}, {2, false, 0.15, 0.40}, {2, false, 0.10, 2.00},
        {8, false, 0.02, 0.10}, {8, false, 0.15, 0.40}, {8, false, 0.10, 2.00},
        {2, true, 0.05, 0.20},  {2, true, 0.10, 2.00},  {8, true, 0.05, 0.20},
        {8, true, 0.10, 2.00},
    };
    for (const Configuration& c : configurations) {
      std::printf("%lld tokens, %s, device %.2f, host %.2f of weights and state\n",
                  (long long)(c.microbatches * kMicrobatchTokens),
                  c.eager ? "per_expert" : "global", c.device, c.host);
      const Outcome outcome = check.run(c);
      std::printf("  a step: %.3f s measured, %.3f s simulated, error %+.1f %%; %.0f MB read, "
                  "%.0f MB written\n",
                  outcome.measured_s, outcome.simulated_s, 100 * outcome.error(),
                  1e-6 * outcome.read_bytes, 1e-6 * outcome.write_bytes);
      std::fflush(stdout);
      errors.push_back(std::abs(outcome.error()));
    }
  }
  std::filesystem::remove_all(directory);
  std::printf(
      "sizes of the errors of %zu configurations: median %.1f %%, 95th percentile %.1f %%\n",
      errors.size(), 100 * quantile(errors, 0.5), 100 * quantile(errors, 0.95));
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  std::string parent = std::filesystem::temp_directory_path();
  int rounds = 3;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::max(1, std::atoi(argv[++i]));
    } else if (argv[i][0] != '-') {
      parent = argv[i];
    } else {
      std::fprintf(stderr, "simulator_check: usage: [--rounds N] [DIR]\n");
      return 2;
    }
  }
  return pagoda::check(parent, rounds);
}
