// How far the simulator is from steps on several CPU devices, equal and not: trains a small model
// for some steps on devices that are slowed, whose links take time, simulates the same steps and
// prints both. Not installed.
//
//   device_check [DIR] [--count N] [--seed S]     pages go to a new folder in DIR, removed later
//   device_check [DIR] --overlap                  how much of an exchange is under compute
//
// Configurations are drawn from the seed: one to four devices, exchanges that would be a fifth to
// three fifths of a step in half of them, budgets that page in a quarter. The costs of tasks come
// from a session on one device, which takes turns with the steps that are measured: what others
// take follows by their factors, what wires take is what they were made to. That device is slowed
// too, since after a sleep caches are cold and a task takes more of its core. A timing in which the
// cores were not to be had is repeated, and counted.
//
// Overlap: the same steps with wires that take no time, and with wires of which each works for
// 15 % of such a step, both ways together for 30 %, by turns. What a step takes longer, over what a
// wire works, is the part of the exchange that is not under compute; the simulator's is beside it.
// Groups of experts are sent while others are computed: the fewer a layer has, the less is under
// compute.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/race/timing.h"
#include "tools/bench/measured_run.h"

namespace pagoda {
namespace {

constexpr int kSteps = 2, kMostRepeats = 3;
constexpr int64_t kMicrobatchTokens = 256;
constexpr RandomModel kModel{.layers = 2, .hidden_size = 512, .heads = 8, .kv_heads = 4,
                             .head_dim = 64, .experts = 16, .experts_per_token = 2,
                             .expert_size = 512, .vocab_size = 2048, .initializer_range = 0.05};

struct Configuration {
  std::vector<Throttle> devices;
  int64_t microbatches = 8;
  int64_t attention_devices = 1;
  double exchange = 0;  // about the part of a step that the busiest wire works; 0: wires are fast
  bool pages = false;
  int64_t group_blocks = 0;  // plan.group_blocks; 0: auto

  std::string text() const {
    std::string names;
    for (const Throttle& t : devices) {
      names += strf("%scpu/%g:%g", names.empty() ? "" : ",", t.experts, t.rest);
    }
    return strf("%s, %lld microbatches, %lld attend%s", names.c_str(), (long long)microbatches,
                (long long)attention_devices, pages ? ", paging" : "");
  }
};

// How often each of `devices` is slowed: together they take at most a third of a core's time.
double slowness(size_t devices) { return 3 * static_cast<double>(devices); }

Configuration draw(int number, std::mt19937& random) {
  const auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  Configuration c;
  const int count = 1 + number % 4;
  const bool equal = pick(2) == 0;
  const double slow = slowness(static_cast<size_t>(count));
  for (int d = 0; d < count; ++d) {
    const double factor = equal ? 1 : 1 + 0.5 * pick(3);
    c.devices.push_back({slow * factor, slow * factor * (equal ? 1 : 1 + 0.5 * pick(3))});
  }
  c.microbatches = pick(2) == 0 ? 4 : 8;
  c.attention_devices = 1 + pick(count);
  c.pages = pick(4) == 0;
  if (count > 1 && pick(3) > 0) c.exchange = 0.2 + 0.1 * pick(5);
  return c;
}

struct Outcome {
  double measured_s = 0, simulated_s = 0;
  double busy_error = 0;  // the largest difference of a device's busy share
  double wire_share = 0;  // of the measured step, of an average wire
  int repeats = 0;
  double error() const { return simulated_s / measured_s - 1; }
};

class Check {
 public:
  explicit Check(std::string directory)
      : directory_(std::move(directory)), folder_(make_random_model(directory_, kModel)) {
    storage_ = need(open_storage(IoKind::kAuto, directory_));
    std::printf("storage: %s\n", storage_->describe().c_str());
  }

  Outcome run(const Configuration& c);

  // Parts of an exchange that are under compute, and what the wires work of a step.
  struct Overlap {
    double measured = 0, simulated = 0, wire_share = 0;
  };
  Overlap overlap(const Configuration& c);

 private:
  SessionOptions options(const Configuration& c, const char* name) const;

  std::string directory_;
  HfFolder folder_;
  std::unique_ptr<Storage> storage_;
};

SessionOptions Check::options(const Configuration& c, const char* name) const {
  SessionOptions options =
      roomy_options(directory_ + "/store", name, c.microbatches, kMicrobatchTokens, false);
  options.optimizer_threads = 1;
  options.devices.clear();
  for (const Throttle& throttle : c.devices) options.devices.push_back({1, throttle});
  options.size.sums.shards = default_shards(c.microbatches);
  options.seats_by_step = true;
  options.plan.group_blocks = c.group_blocks;
  options.deal_attention(c.attention_devices);
  return options;
}

// Bytes of a step over an average wire.
double wire_bytes(const MeasuredRun& run) {
  const auto devices = static_cast<double>(run.busy_s().size());
  return static_cast<double>(run.sent().bytes) / (devices * (devices - 1));
}

// Wires of which each works for that part of a step, whose time a run without wires tells.
SlowLink::Speed wires_for(const MeasuredRun& run, double part) {
  if (run.sent().bytes == 0) return {};
  return {.latency_s = 100e-6, .bytes_per_s = wire_bytes(run) / (part * run.step_s())};
}

Check::Overlap Check::overlap(const Configuration& c) {
  constexpr int kRounds = 3;
  Configuration one = c;
  one.devices.resize(1);
  one.attention_devices = 1;
  MeasuredRun reference(folder_, storage_.get(), options(one, "reference"));
  MeasuredRun free(folder_, storage_.get(), options(c, "free"));
  free.measure(kSteps);
  const SlowLink::Speed link = wires_for(free, c.exchange);
  MeasuredRun wired(folder_, storage_.get(), options(c, "wired"), link);
  std::vector<double> measured, simulated, shares;
  for (int round = 0; round < kRounds; ++round) {
    MeasuredMachine machine = measure_machine(wired, storage_.get(), directory_);
    reference.measure(kSteps);
    free.measure(kSteps);
    wired.measure(kSteps);
    fit_tasks(reference, machine);
    const auto simulate = [&](const MeasuredRun& run, const SlowLink::Speed& wires) {
      return run.simulate(profile_of(machine, c.devices, c.devices.front(), wires)).step_s;
    };
    const double works = wire_bytes(wired) / link.bytes_per_s;
    measured.push_back(1 - (wired.step_s() - free.step_s()) / works);
    simulated.push_back(1 - (simulate(wired, link) - simulate(free, {})) / works);
    shares.push_back(works / wired.step_s());
  }
  return {quantile(measured, 0.5), quantile(simulated, 0.5), quantile(shares, 0.5)};
}

Outcome Check::run(const Configuration& c) {
  const double slow = slowness(c.devices.size());
  const Throttle reference_throttle{slow, slow};
  Configuration one = c;
  one.devices = {reference_throttle};
  one.attention_devices = 1;
  MeasuredRun reference(folder_, storage_.get(), options(one, "reference"));
  SessionOptions asked = options(c, "measured");
  const MemoryPlan roomy = need(Session::plan(folder_.config(), asked));
  asked.device_bytes = roomy.min_device_bytes + (roomy.whole_device_bytes -
                                                 roomy.min_device_bytes) / (c.pages ? 20 : 2);
  if (c.pages) asked.host_bytes = roomy.min_host_bytes * 3 / 2;
  SlowLink::Speed link;
  if (c.exchange > 0) {
    MeasuredRun trial(folder_, storage_.get(), asked);
    trial.measure(1);
    link = wires_for(trial, c.exchange);
  }
  MeasuredRun run(folder_, storage_.get(), asked,
                  link.bytes_per_s > 0 ? std::optional(link) : std::nullopt);
  Outcome outcome;
  for (; outcome.repeats <= kMostRepeats; ++outcome.repeats) {
    MeasuredMachine machine = measure_machine(run, storage_.get(), directory_);
    reference.measure(kSteps);
    run.measure(kSteps);
    fit_tasks(reference, machine);
    const MeasuredRun::Replayed replayed =
        run.simulate(profile_of(machine, c.devices, reference_throttle, link));
    outcome.measured_s = run.step_s();
    outcome.simulated_s = replayed.step_s;
    outcome.busy_error = 0;
    for (size_t d = 0; d < run.busy_s().size(); ++d) {
      outcome.busy_error = std::max(
          outcome.busy_error,
          std::abs(run.busy_s()[d] / run.step_s() - replayed.busy_s[d] / replayed.step_s));
    }
    if (link.bytes_per_s > 0) {
      outcome.wire_share = wire_bytes(run) / link.bytes_per_s / run.step_s();
    }
    if (c.pages) CHECK(run.read_bytes() > 0 && run.written_bytes() > 0, "it does not page");
    if (!machine.shared()) break;
  }
  return outcome;
}

void print_errors(const char* what, std::vector<double> errors) {
  if (errors.empty()) return;
  std::printf("%s: median %.1f %%, ninth decile %.1f %%, worst %.1f %%\n", what,
              100 * quantile(errors, 0.5), 100 * quantile(errors, 0.9),
              100 * *std::max_element(errors.begin(), errors.end()));
}

int overlap(const std::string& directory) {
  Check check(directory);
  for (const int64_t attend : {1, 2}) {
    for (const int64_t group_blocks : {0, 1}) {
      Configuration c;
      c.devices.assign(2, {slowness(2), slowness(2)});
      c.microbatches = 16;
      c.attention_devices = attend;
      c.exchange = 0.15;
      c.group_blocks = group_blocks;
      const Check::Overlap o = check.overlap(c);
      std::printf(
          "%s, %s: a wire works %.0f %% of a step; %.0f %% of that under compute, "
          "simulated %.0f %%\n",
          c.text().c_str(), group_blocks == 1 ? "a row block a group" : "auto groups",
          100 * o.wire_share, 100 * o.measured, 100 * o.simulated);
      std::fflush(stdout);
    }
  }
  return 0;
}

int check(const std::string& directory, int count, uint32_t seed) {
  std::vector<double> errors, busy_errors;
  int repeats = 0;
  {
    Check check(directory);
    std::mt19937 random(seed);
    for (int i = 0; i < count; ++i) {
      const Configuration c = draw(i, random);
      const Outcome outcome = check.run(c);
      std::printf("%2d %s: %.3f s measured, %.3f s simulated, error %+.1f %%; busy shares within "
                  "%.1f %%; a wire works %.0f %%%s\n",
                  i, c.text().c_str(), outcome.measured_s, outcome.simulated_s,
                  100 * outcome.error(), 100 * outcome.busy_error, 100 * outcome.wire_share,
                  outcome.repeats > kMostRepeats ? "; the cores were not to be had" : "");
      std::fflush(stdout);
      errors.push_back(std::abs(outcome.error()));
      busy_errors.push_back(outcome.busy_error);
      repeats += outcome.repeats;
    }
  }
  print_errors("sizes of the errors of a step", errors);
  print_errors("differences of busy shares", busy_errors);
  std::printf("%d timings were repeated since the cores were not to be had\n", repeats);
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  std::string parent = std::filesystem::temp_directory_path();
  int count = 40;
  uint32_t seed = 1;
  bool overlaps = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--count") == 0 && i + 1 < argc) {
      count = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = static_cast<uint32_t>(std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--overlap") == 0) {
      overlaps = true;
    } else if (argv[i][0] != '-') {
      parent = argv[i];
    } else {
      std::fprintf(stderr, "device_check: usage: [--count N] [--seed N] [--overlap] [DIR]\n");
      return 2;
    }
  }
  const std::string directory = parent + "/device_check";
  CHECK(std::filesystem::create_directories(directory), "%s exists", directory.c_str());
  const int code = overlaps ? pagoda::overlap(directory) : pagoda::check(directory, count, seed);
  std::filesystem::remove_all(directory);
  return code;
}
