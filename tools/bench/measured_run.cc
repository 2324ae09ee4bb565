#include "tools/bench/measured_run.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "base/clock.h"
#include "bench/drive.h"
#include "bench/leg.h"

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

std::string profile_moves(Storage* storage, const std::string& directory, int64_t page_bytes,
                          MachineProfile& profile) {
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

void fit_tasks(const TaskTimes& times, const MeasuredRun& resident, MachineProfile& profile) {
  // While a task ran the issuing thread may have had a core too.
  const double computing = 1 - resident.issuing_s() / resident.cpu_s();
  for (int kind = 0; kind < kTaskKinds; ++kind) {
    const std::vector<CostSample>& samples = times.of(static_cast<TaskKind>(kind));
    double seconds = 0, cpu_s = 0;
    for (const CostSample& sample : samples) {
      seconds += sample.seconds;
      cpu_s += computing * sample.cpu_s;
    }
    const double cores = seconds > 0 ? std::min(cpu_s / seconds, profile.cores) : 1;
    profile.tasks[static_cast<size_t>(kind)] = fit_cost(samples, cores);
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

// Brings the cost of each kind of task nearer to what its simulated time is the measured one with.
void fit_times(const std::array<double, kTaskKinds>& measured_s, const MeasuredRun& paged,
               MachineProfile& profile) {
  const MeasuredRun::Replayed replayed = paged.simulate(profile);
  for (size_t kind = 0; kind < kTaskKinds; ++kind) {
    if (replayed.task_s[kind] <= 0) continue;
    const double ratio = measured_s[kind] / replayed.task_s[kind];
    profile.tasks[kind].fixed_s *= ratio;
    profile.tasks[kind].unit_s *= ratio;
  }
}

// The hand-over with which the steps take what they took, by the secant through two of them; none
// where they take longer without.
double fit_hand_over(const MeasuredRun& paged, MachineProfile profile) {
  constexpr double kMost_s = 1e-3, kApart_s = 1e-4;  // far more than a thread takes to wake
  const auto left_s = [&](double hand_over_s) {
    profile.hand_over_s = hand_over_s;
    return paged.mean_step_s() - paged.simulate(profile).mean_step_s;
  };
  const double at = profile.hand_over_s;
  const double here_s = left_s(at), further_s = left_s(at + kApart_s);
  if (here_s <= further_s) return at;
  return std::clamp(at + kApart_s * here_s / (here_s - further_s), 0.0, kMost_s);
}

}  // namespace

void fit_paged(const TaskTimes& times, const MeasuredRun& paged, MachineProfile& profile) {
  std::array<double, kTaskKinds> measured_s{};
  for (size_t kind = 0; kind < kTaskKinds; ++kind) {
    for (const CostSample& sample : times.of(static_cast<TaskKind>(kind))) {
      measured_s[kind] += sample.seconds;
    }
  }
  profile.issue.fixed_s =
      paged.issuing_s() / static_cast<double>(paged.simulate(profile).tasks);
  constexpr int kPasses = 4;  // each changes what runs beside the others
  for (int pass = 0; pass < kPasses; ++pass) {
    fit_times(measured_s, paged, profile);
    profile.hand_over_s = fit_hand_over(paged, profile);
  }
  fit_times(measured_s, paged, profile);
}

}  // namespace pagoda
