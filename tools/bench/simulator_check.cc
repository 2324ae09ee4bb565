// How far the simulator is from this machine: trains a small model for some steps under several
// budgets, tokens per step and clipping modes, simulates the same steps, prints both. Not
// installed.
//
//   simulator_check [DIR] [--rounds N]     pages go to a new folder in DIR, removed at the end
//
// Everything the simulator is told is measured in the same run: the times of tasks in steps of a
// second session with room for everything, which take turns with the steps that are measured;
// copies, checksums and the drive by themselves.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/machine.h"
#include "bench/leg.h"
#include "offload/checksum.h"
#include "plan/simulator.h"
#include "tools/bench/random_token_run.h"
#include "train/planned_run.h"

namespace pagoda {
namespace {

constexpr int kWarmUpSteps = 2;
constexpr int kStepsOfRound = 3;
constexpr int64_t kMicrobatchTokens = 512;
constexpr RandomModel kModel{.layers = 4, .hidden_size = 256, .heads = 8, .kv_heads = 4,
                             .head_dim = 32, .experts = 24, .experts_per_token = 4,
                             .expert_size = 512, .vocab_size = 2048, .initializer_range = 0.05};

double seconds_since(int64_t start_us) {
  return 1e-6 * static_cast<double>(monotonic_us() - start_us);
}

struct Configuration {
  int64_t microbatches;
  bool eager;
  double device;  // part of weights and states that fits on the device
  double host;    // and in host memory
};

// ---- the machine by itself ----

// Cores that this process gets while others use the machine too: all threads at work for a moment.
double cores_to_be_had(int threads) {
  constexpr double kMoment_s = 0.1;
  const LegTimer timer;
  const int64_t start = monotonic_us();
  std::vector<std::thread> workers;
  for (int i = 0; i < threads; ++i) {
    workers.emplace_back([start] {
      volatile uint64_t work = 0;
      while (seconds_since(start) < kMoment_s) {
        for (int j = 0; j < 10000; ++j) work = work + 1;
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  const Leg leg = timer.finish(0);
  return leg.cpu_seconds / leg.seconds;
}

// The drive under pages of this size: all written, all read, and half of each at once.
void measure_drive(Storage* storage, const std::string& directory, int64_t page_bytes,
                   MachineProfile& profile) {
  constexpr int kPages = 48;
  const int64_t slot_bytes = page_bytes + kPageHeaderBytes;
  const int file = need(storage->open(directory + "/drive", kPages * slot_bytes, true));
  const HostMemory memory = need(HostMemory::allocate(kPages * slot_bytes));
  std::mt19937_64 random(1);
  for (int64_t i = 0; i < memory.bytes() / 8; ++i) {
    reinterpret_cast<uint64_t*>(memory.data())[i] = random();
  }
  const auto transfer = [&](int first, int last, const auto& op_of) {
    std::vector<IoRequest> requests(static_cast<size_t>(last - first));
    std::vector<Event> done;
    for (int i = first; i < last; ++i) {
      IoRequest& request = requests[static_cast<size_t>(i - first)];
      Event event = Event::make();
      request = {op_of(i), file, i * slot_bytes, memory.data() + i * slot_bytes, slot_bytes, {},
                 [event](IoRequest& r) mutable {
                   CHECK(r.status.ok(), "%s", r.status.message().c_str());
                   event.signal();
                 }};
      done.push_back(event);
      storage->submit(&request);
    }
    for (const Event& event : done) event.wait();
  };
  const auto writes = [](int) { return IoRequest::Op::kWrite; };
  const auto reads = [](int) { return IoRequest::Op::kRead; };
  const auto mixed = [](int i) {
    return i % 2 == 0 ? IoRequest::Op::kRead : IoRequest::Op::kWrite;
  };
  const auto median = [](const std::vector<double>& times) { return quantile(times, 0.5); };
  std::vector<double> write_s, read_s, mixed_s, one_s;
  for (int round = 0; round < 5; ++round) {
    const auto time = [&](std::vector<double>& times, int pages, const auto& op_of) {
      const int64_t start = monotonic_us();
      transfer(0, pages, op_of);
      times.push_back(seconds_since(start));
    };
    time(write_s, kPages, writes);
    time(read_s, kPages, reads);
    time(mixed_s, kPages, mixed);
    time(one_s, 1, reads);
  }
  const double bytes = static_cast<double>(kPages) * static_cast<double>(page_bytes);
  profile.read = {0, median(read_s) / bytes, 0};
  profile.write = {0, median(write_s) / bytes, 0};
  const double half_each = median(read_s) / 2 + median(write_s) / 2;
  profile.half_duplex = median(mixed_s) > 0.75 * half_each;
  profile.completion_s = std::max(0.0, median(one_s) - median(read_s) / kPages);
  storage->close(file);
  need(storage->remove_file(directory + "/drive"));
  std::printf("drive: read %.2f GB/s, write %.2f GB/s, both at once %.2f GB/s: %s duplex\n",
              bytes / median(read_s) * 1e-9, bytes / median(write_s) * 1e-9,
              bytes / median(mixed_s) * 1e-9, profile.half_duplex ? "half" : "full");
}

// ---- one configuration ----

struct Outcome {
  double measured_s = 0, simulated_s = 0;  // of a step, on average
  double read_bytes = 0, write_bytes = 0;  // of a step
  double error() const { return simulated_s / measured_s - 1; }
};

class Check {
 public:
  Check(std::string directory, int rounds)
      : directory_(std::move(directory)),
        rounds_(rounds),
        threads_(usable_cores()),
        folder_(make_random_model(directory_, kModel)) {
    storage_ = need(open_storage(IoKind::kAuto, directory_));
    std::printf("storage: %s\n", storage_->describe().c_str());
  }

  Outcome run(const Configuration& configuration);

 private:
  SessionOptions options(const Configuration& configuration, bool resident) const;

  std::string directory_;
  int rounds_, threads_;
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

// A session whose steps are measured, and what plans and simulates the same steps.
class Twin {
 public:
  Twin(const HfFolder& folder, Storage* storage, const SessionOptions& options)
      : run(folder, storage, options),
        planned_(run.session().shape(), run.session().pages(), run.session().memory().classes,
                 run.session().memory().state_on_device, options.eager_adam,
                 Ledger(false, 0,
                        std::vector<int64_t>(run.session().table().records.size(), 0))) {}

  void warm_up(std::mt19937& random) {
    for (int i = 0; i < kWarmUpSteps; ++i) {
      planned_.train(step(random), [](const StepPiece&) {});
    }
  }
  // From quiet to quiet; the time of the steps alone counts.
  void measure(std::mt19937& random, int steps) {
    run.session().pager().drain();
    if (rounds_.empty()) measured_s_ = 0;  // of the warm up
    rounds_.push_back({run.session().pager().residency(), {}});
    for (int i = 0; i < steps; ++i, ++steps_) {
      rounds_.back().routings.push_back(step(random));
    }
  }
  double measured_s() const { return measured_s_ / steps_; }  // of a step, on average
  int steps() const { return steps_; }
  // The same of the measured steps, simulated.
  double simulated_s(const MachineProfile& profile) const {
    PlannedRun planned = planned_;
    double sum = 0;
    for (const Round& round : rounds_) {
      Simulator simulator(&run.session().shape(), &run.session().pages(), profile, round.start);
      for (const Routing& routing : round.routings) {
        planned.train(routing, [&](const StepPiece& piece) { simulator.run(piece); });
        simulator.end_step();
      }
      for (double step_s : simulator.finish().step_s) sum += step_s;
    }
    return sum / steps_;
  }

  RandomTokenRun run;

 private:
  struct Round {
    Residency start;
    std::vector<Routing> routings;
  };
  Routing step(std::mt19937& random) {
    const StepBatch batch = random_batch(run.session(), random);
    const int64_t start = monotonic_us();
    const StepResult result = run.step(batch);
    measured_s_ += seconds_since(start);
    return result.routing;
  }

  PlannedRun planned_;  // after the warm up
  std::vector<Round> rounds_;
  double measured_s_ = 0;
  int steps_ = 0;
};

int64_t page_bytes(const PageTable& pages) {
  int64_t bytes = 0;
  for (const PageTable::Class& c : pages.classes) {
    if (c.kind == PageKind::kState && c.expert) bytes = c.page_bytes;
  }
  return bytes;
}

// What the steps with room for everything tell: the costs of tasks, and, as what these do not
// explain, that of the thread which issues them waking up when it has waited.
void add_tasks(const TaskTimes& times, double cores, const Twin& resident,
               MachineProfile& profile) {
  for (int kind = 0; kind < kTaskKinds; ++kind) {
    profile.tasks[static_cast<size_t>(kind)] =
        fit_cost(times.of(static_cast<TaskKind>(kind)), cores);
  }
  profile.of(TaskKind::kPrefetch) = profile.of(TaskKind::kBring) = {};
  const RunShape& shape = resident.run.session().shape();
  const auto waits = static_cast<double>(
      std::count(shape.is_moe.begin(), shape.is_moe.end(), uint8_t{1}) + 2);
  const double left_s = resident.measured_s() - resident.simulated_s(profile);
  profile.wake_up_s = std::max(0.0, left_s / waits);
}

Outcome Check::run(const Configuration& configuration) {
  Twin resident(folder_, storage_.get(), options(configuration, true));
  Twin paged(folder_, storage_.get(), options(configuration, false));
  CHECK(resident.run.session().memory().state_on_device);
  std::mt19937 random(3);
  resident.warm_up(random);
  paged.warm_up(random);
  paged.run.session().pager().drain();
  const Pager::Counters before = paged.run.session().pager().counters();
  TaskTimes times(&resident.run.session().shape());
  double processor_s = 0;
  MachineProfile profile;
  profile.cores = 0;
  for (int round = 0; round < rounds_; ++round) {
    profile.cores += cores_to_be_had(threads_) / rounds_;
    resident.run.session().executor().time_tasks(&times);
    const LegTimer timer;
    resident.measure(random, kStepsOfRound - 1);
    processor_s += timer.finish(0).cpu_seconds;
    paged.measure(random, kStepsOfRound);
  }
  paged.run.session().pager().drain();
  const ByteCost bytes = measure_bytes(page_bytes(paged.run.session().pages()));
  profile.upload = profile.download = {0, bytes.copy_s, 1};
  profile.checksum = {0, bytes.check_s, 1};
  measure_drive(storage_.get(), directory_, page_bytes(paged.run.session().pages()), profile);
  const double cores =
      std::min(profile.cores, processor_s / (resident.measured_s() * resident.steps()));
  add_tasks(times, cores, resident, profile);
  if (profile.cores < 0.9 * threads_) {
    std::printf(
        "  others use this machine: %.2f of %d cores were to be had, the error says little\n",
        profile.cores, threads_);
  }
  const Pager::Counters& after = paged.run.session().pager().counters();
  Outcome outcome;
  outcome.measured_s = paged.measured_s();
  outcome.simulated_s = paged.simulated_s(profile);
  outcome.read_bytes = double(after.fetch_bytes - before.fetch_bytes) / paged.steps();
  outcome.write_bytes = double(after.write_back_bytes - before.write_back_bytes) / paged.steps();
  std::printf(
      "  with room for everything: %.3f s a step on %.2f of %.2f cores, wake-up %.1f ms; copy "
      "%.1f GB/s, checksum %.1f GB/s\n",
      resident.measured_s(), cores, profile.cores, 1e3 * profile.wake_up_s,
      1e-9 / profile.upload.unit_s, 1e-9 / profile.checksum.unit_s);
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
  std::sort(errors.begin(), errors.end());
  const auto at = [&](double part) {
    return 100 * errors[static_cast<size_t>(part * static_cast<double>(errors.size() - 1) + 0.5)];
  };
  std::printf(
      "sizes of the errors of %zu configurations: median %.1f %%, 95th percentile %.1f %%\n",
      errors.size(), at(0.5), at(0.95));
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
    } else {
      parent = argv[i];
    }
  }
  return pagoda::check(parent, rounds);
}
