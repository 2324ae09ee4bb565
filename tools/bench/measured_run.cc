#include "tools/bench/measured_run.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "base/bytes.h"
#include "base/clock.h"
#include "bench/drive.h"
#include "bench/leg.h"
#include "device/past_cache.h"

namespace pagoda {
namespace {

double seconds_since(int64_t start_us) {
  return 1e-6 * static_cast<double>(monotonic_us() - start_us);
}

}  // namespace

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

double memory_bytes_per_s(int threads) {
  constexpr int64_t kBytes = 64 * kMiB;  // of each thread, read and written
  constexpr int kTrials = 5;
  const HostMemory memory = need(HostMemory::allocate(2 * threads * kBytes));
  std::memset(memory.data(), 1, static_cast<size_t>(memory.bytes()));
  ThreadPool pool(threads);
  std::vector<double> rates;
  for (int i = 0; i < kTrials; ++i) {
    const LegTimer timer;
    pool.parallel_for(threads, [&](int64_t t) {
      std::byte* from = memory.data() + 2 * t * kBytes;
      copy_past_cache(from + kBytes, from, kBytes);
    });
    const double seconds = timer.finish(0).seconds;
    rates.push_back(static_cast<double>(memory.bytes()) / seconds);
  }
  return quantile(rates, 0.5);
}

std::string profile_moves(Storage* storage, const std::string& directory, int64_t page_bytes,
                          double memory_bytes_per_s, MachineProfile& profile) {
  constexpr int kPages = 48, kRounds = 3;
  const DriveRates rates =
      need(measure_drive(storage, directory, page_bytes + kPageHeaderBytes, kPages, kRounds));
  profile.read = {0, 1e-9 / rates.read_gb_s, 0};
  profile.write = {0, 1e-9 / rates.write_gb_s, 0};
  profile.half_duplex = rates.half_duplex();
  profile.completion_s = 1e-6 * rates.latency_us;
  const ByteCost bytes = measure_bytes(page_bytes);
  profile.upload = profile.download = {0, bytes.copy_s, 1};
  profile.checksum = {0, bytes.check_s + 1e-9 * rates.cpu_s_per_gb, 1};
  const auto moves = [&](Cost& cost, double bytes_of_byte) {
    cost.memory = std::min(1.0, bytes_of_byte / cost.unit_s / memory_bytes_per_s);
  };
  moves(profile.upload, 2);
  moves(profile.download, 2);
  for (Cost* cost : {&profile.checksum, &profile.read, &profile.write}) moves(*cost, 1);
  return strf("drive: read %.2f GB/s, write %.2f GB/s, both at once %.2f GB/s: %s duplex, %.3f s "
              "of a core for a GB; copy %.1f GB/s, checksum %.1f GB/s",
              rates.read_gb_s, rates.write_gb_s, rates.both_gb_s,
              profile.half_duplex ? "half" : "full", rates.cpu_s_per_gb, 1e-9 / bytes.copy_s,
              1e-9 / bytes.check_s);
}

int64_t state_page_bytes(const PageTable& pages) {
  int64_t bytes = 0;
  for (const PageTable::Class& c : pages.classes) {
    if (c.kind == PageKind::kState && c.expert) bytes = c.page_bytes;
  }
  return bytes;
}

MeasuredRun::MeasuredRun(const HfFolder& folder, Storage* storage, const SessionOptions& options)
    : run(folder, storage, options),
      planned_(run.session().shape(), run.session().pages(), run.session().memory().classes,
               run.session().memory().state_on_device, options.eager_adam,
               Ledger(false, 0,
                      std::vector<int64_t>(run.session().table().records.size(), 0))) {}

StepResult MeasuredRun::step(std::mt19937& random, double& seconds) {
  const StepBatch batch = random_batch(run.session(), random);
  const int64_t cpu = process_cpu_us(), issuing = thread_cpu_us(), start = monotonic_us();
  StepResult result = run.step(batch);
  seconds = seconds_since(start);
  cpu_s_ += 1e-6 * static_cast<double>(process_cpu_us() - cpu);
  issuing_s_ += 1e-6 * static_cast<double>(thread_cpu_us() - issuing);
  return result;
}

void MeasuredRun::warm_up(std::mt19937& random, int steps) {
  double seconds = 0;
  for (int i = 0; i < steps; ++i) {
    planned_.train(step(random, seconds).routing, [](const StepPiece&) {});
  }
  cpu_s_ = issuing_s_ = 0;
}

void MeasuredRun::measure(std::mt19937& random, int steps) {
  run.session().pager().drain();
  rounds_.push_back({run.session().pager().residency(), {}});
  for (int i = 0; i < steps; ++i) {
    step_s_.push_back(0);
    rounds_.back().routings.push_back(step(random, step_s_.back()).routing);
  }
}

void MeasuredRun::forget() {
  for (const Round& round : rounds_) {
    for (const Routing& routing : round.routings) planned_.train(routing, [](const StepPiece&) {});
  }
  rounds_.clear();
  step_s_.clear();
  cpu_s_ = issuing_s_ = 0;
}

double MeasuredRun::later_step_s() const {
  double seconds = 0, steps = 0;
  size_t first = 0;
  for (const Round& round : rounds_) {
    for (size_t i = 1; i < round.routings.size(); ++i, ++steps) seconds += step_s_[first + i];
    first += round.routings.size();
  }
  return seconds / steps;
}

double MeasuredRun::mean_step_s() const {
  return std::accumulate(step_s_.begin(), step_s_.end(), 0.0) /
         static_cast<double>(step_s_.size());
}

void MeasuredRun::add(const Simulated& simulated, Replayed& replayed) const {
  for (const double step_s : simulated.step_s) replayed.mean_step_s += step_s;
  for (const SimulatedWork& work : simulated.works) {
    if (work.moves) continue;
    replayed.task_s[static_cast<size_t>(work.kind)] += work.end_s - work.start_s;
  }
  replayed.peak_device_bytes =
      std::max(replayed.peak_device_bytes, simulated.peak_device_bytes.front());
  replayed.peak_host_bytes = std::max(replayed.peak_host_bytes, simulated.peak_host_bytes);
}

MeasuredRun::Replayed MeasuredRun::simulate(const MachineProfile& profile) const {
  PlannedRun planned = planned_;
  Replayed replayed;
  for (const Round& round : rounds_) {
    Simulator simulator(&run.session().shape(), &run.session().pages(), profile, round.start);
    for (const Routing& routing : round.routings) {
      planned.train(routing, [&](const StepPiece& piece) {
        simulator.run(piece);
        replayed.tasks += std::ssize(piece.tasks);
      });
      simulator.end_step();
    }
    add(simulator.finish(), replayed);
  }
  replayed.mean_step_s /= static_cast<double>(step_s_.size());
  return replayed;
}

namespace {

// That a task of the kind moves for each of its units, or however many it has, and does not find in
// a cache.
struct Moved {
  double of_unit = 0, of_task = 0;
};
Moved moved_bytes(TaskKind kind, const RunShape& shape) {
  const auto value = static_cast<double>(shape.dtype_bytes);
  const RecordShape& expert = shape.records[static_cast<size_t>(shape.expert(0, 0))];
  const auto elements = static_cast<double>(expert.num_elements);
  switch (kind) {
    case TaskKind::kAdam:
      return {3 * value + 2 * static_cast<double>(expert.state_bytes) / elements, 0};
    case TaskKind::kGradient: return {4 + value, 0};
    case TaskKind::kExpert: return {0, value * elements};
    case TaskKind::kExpertBackward: return {0, 2 * value * elements};
    default: return {};
  }
}

}  // namespace

void fit_tasks(const TaskTimes& times, const MeasuredRun& resident, double memory_bytes_per_s,
               MachineProfile& profile) {
  // While a task ran the issuing thread may have had a core too.
  const double computing = 1 - resident.issuing_s() / resident.cpu_s();
  for (int kind = 0; kind < kTaskKinds; ++kind) {
    const std::vector<CostSample>& samples = times.of(static_cast<TaskKind>(kind));
    const Moved moved = moved_bytes(static_cast<TaskKind>(kind), resident.run.session().shape());
    double seconds = 0, cpu_s = 0, bytes = 0;
    for (const CostSample& sample : samples) {
      seconds += sample.seconds;
      cpu_s += computing * sample.cpu_s;
      bytes += moved.of_task + moved.of_unit * sample.units;
    }
    Cost& cost = profile.tasks[static_cast<size_t>(kind)];
    cost = fit_cost(samples, 1);
    if (seconds <= 0) continue;
    cost.cores = std::min(cpu_s / seconds, profile.cores);
    cost.memory = std::min(1.0, bytes / seconds / memory_bytes_per_s);
  }
  profile.of(TaskKind::kPrefetch) = profile.of(TaskKind::kBring) = {};
  const auto tasks = static_cast<double>(resident.simulate(profile).tasks);
  profile.issue = {resident.issuing_s() / tasks, 0, 1};
  const RunShape& shape = resident.run.session().shape();
  const auto waits = static_cast<double>(
      std::count(shape.is_moe.begin(), shape.is_moe.end(), uint8_t{1}) + 2);
  const double left_s = resident.mean_step_s() - resident.simulate(profile).mean_step_s;
  profile.wake_up_s = std::max(0.0, left_s / waits);
}

namespace {

bool is_update(size_t kind) {
  return kind == static_cast<size_t>(TaskKind::kAdam) ||
         kind == static_cast<size_t>(TaskKind::kGradient);
}

// The value in [0, most] at which `above`, which falls, is zero, by halving; an end where it is so
// nowhere.
double where_zero(double most, const std::function<double(double)>& above) {
  constexpr int kHalvings = 6;
  double low = 0, high = most;
  if (above(low) <= 0) return low;
  if (above(high) >= 0) return high;
  for (int i = 0; i < kHalvings; ++i) {
    const double middle = (low + high) / 2;
    (above(middle) > 0 ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

void fit_paged(const TaskTimes& times, const MeasuredRun& paged, MachineProfile& profile) {
  double tasks_s = 0;
  for (size_t kind = 0; kind < kTaskKinds; ++kind) {
    if (is_update(kind)) continue;
    for (const CostSample& sample : times.of(static_cast<TaskKind>(kind))) {
      tasks_s += sample.seconds;
    }
  }
  profile.issue.fixed_s =
      paged.issuing_s() / static_cast<double>(paged.simulate(profile).tasks);
  const auto tasks_left_s = [&](double memory) {
    for (size_t kind = 0; kind < kTaskKinds; ++kind) {
      if (!is_update(kind)) profile.tasks[kind].memory = memory;
    }
    const MeasuredRun::Replayed replayed = paged.simulate(profile);
    double left_s = tasks_s;
    for (size_t kind = 0; kind < kTaskKinds; ++kind) {
      if (!is_update(kind)) left_s -= replayed.task_s[kind];
    }
    return left_s;
  };
  const auto steps_left_s = [&](double turn_s) {
    profile.turn_s = turn_s;
    return paged.mean_step_s() - paged.simulate(profile).mean_step_s;
  };
  constexpr double kMostTurn_s = 4e-3;  // of a system's scheduler
  constexpr int kPasses = 2;            // each changes what runs beside the other's
  for (int pass = 0; pass < kPasses; ++pass) {
    tasks_left_s(where_zero(1, tasks_left_s));
    steps_left_s(where_zero(kMostTurn_s, steps_left_s));
  }
}

}  // namespace pagoda
