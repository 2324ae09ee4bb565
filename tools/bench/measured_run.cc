#include "tools/bench/measured_run.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>

#include "base/bytes.h"
#include "base/clock.h"
#include "bench/race/timing.h"
#include "bench/sheet/drive.h"
#include "device/past_cache.h"
#include "hardware/machine.h"
#include "plan/step/steady_run.h"

namespace pagoda {
namespace {

double seconds_since(int64_t start_us) {
  return 1e-6 * static_cast<double>(monotonic_us() - start_us);
}

// Cores that this process gets while others use the machine too: all threads at work for a moment.
double cores_to_be_had(int threads) {
  constexpr double kMoment_s = 0.1;
  const TimingClock timer;
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
  const Timing timing = timer.finish(0);
  return timing.cpu_seconds / timing.seconds;
}

// What the memory moves, read and written, while all threads copy what lies in no cache.
double memory_rate(int threads) {
  constexpr int64_t kBytes = 64 * kMiB;  // of each thread, read and written
  constexpr int kTrials = 5;
  const HostMemory memory = need(HostMemory::allocate(2 * threads * kBytes));
  std::memset(memory.data(), 1, static_cast<size_t>(memory.bytes()));
  ThreadPool pool(threads);
  std::vector<double> rates;
  for (int i = 0; i < kTrials; ++i) {
    const TimingClock timer;
    pool.parallel_for(threads, [&](int64_t t) {
      std::byte* from = memory.data() + 2 * t * kBytes;
      copy_past_cache(from + kBytes, from, kBytes);
    });
    const double seconds = timer.finish(0).seconds;
    rates.push_back(static_cast<double>(memory.bytes()) / seconds);
  }
  return quantile(rates, 0.5);
}

// Bytes of the state of an expert: what moves most.
int64_t state_page_bytes(const PageTable& pages) {
  int64_t bytes = 0;
  for (const PageTable::Class& c : pages.classes) {
    if (c.kind == PageKind::kState && c.expert) bytes = c.page_bytes;
  }
  return bytes;
}

// How long a thread has a core before Linux lets another have it that waits: 0.75 ms, and as much
// again for each doubling of the cores, up to eight (base_slice_ns in kernel/sched/fair.c).
double slice_s() {
  return 0.75e-3 * std::bit_width(static_cast<unsigned>(std::min(8, usable_cores())));
}

MachineProfile without_moves(MachineProfile profile) {
  for (Cost MachineProfile::*of :
       {&MachineProfile::upload, &MachineProfile::download, &MachineProfile::checksum,
        &MachineProfile::read, &MachineProfile::write}) {
    profile.*of = {0, 0, 0};
  }
  profile.completion_s = 0;
  return profile;
}

}  // namespace

double MeasuredMachine::step_s(const StepSeconds& simulate) const {
  const double still_s = simulate(without_moves(profile));
  return still_s + paging * (simulate(profile) - still_s);
}

bool MeasuredMachine::shared() const { return profile.cores < 0.9 * usable_cores(); }

MeasuredMachine measure_machine(const MeasuredRun& run, Storage* storage,
                                const std::string& directory) {
  constexpr int kPages = 24, kRounds = 3;  // the first writes a new file, which takes longer
  const int64_t page_bytes = state_page_bytes(run.session().pages());
  MeasuredMachine machine;
  MachineProfile& profile = machine.profile;
  profile.cores = cores_to_be_had(usable_cores());
  machine.memory_bytes_per_s = memory_rate(usable_cores());
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
    cost.memory = std::min(1.0, bytes_of_byte / cost.unit_s / machine.memory_bytes_per_s);
  };
  moves(profile.upload, 2);
  moves(profile.download, 2);
  for (Cost* cost : {&profile.checksum, &profile.read, &profile.write}) moves(*cost, 1);
  return machine;
}

MachineProfile profile_of(const MeasuredMachine& machine, const std::vector<Throttle>& devices,
                          const Throttle& reference, const SlowLink::Speed& link) {
  MachineProfile p = machine.profile;
  p.of(TaskKind::kPlaceRows) = p.of(TaskKind::kPackRows) = p.of(TaskKind::kTakeParcel) =
      p.of(TaskKind::kDispatch);
  p.of(TaskKind::kReceive) = {machine.hand_over_s, p.upload.unit_s, 1};
  if (link.bytes_per_s > 0) p.wire = {link.latency_s, 1 / link.bytes_per_s, 0};
  for (const Throttle& throttle : devices) {
    TaskCosts costs = p.tasks;
    for (size_t kind = 0; kind < costs.size(); ++kind) {
      const auto task = static_cast<TaskKind>(kind);
      costs[kind] = costs[kind].slower(throttle.of(task) / reference.of(task));
    }
    p.device_tasks.push_back(costs);
  }
  return p;
}

EvenStep simulate_even(const Session& session, const MachineProfile& profile) {
  constexpr int kStepsUntilSteady = 4;  // it starts with everything on disk
  const RunShape& shape = session.shape();
  const std::vector<SlotClass>& classes = session.memory().classes;
  const StepPlan plan(shape, session.pages(), {true, session.memory().state_on_device});
  ExpertForecast forecast(shape, session.pages(), classes);
  SteadyRun steady(&plan, SteadyRun::Tokens::kEven, &forecast);
  Simulator simulator(&shape, &session.pages(), profile,
                      all_on_disk(shape, session.pages(), classes));
  for (int i = 0; i < kStepsUntilSteady; ++i) {
    steady.step([&](const StepPiece& piece) { simulator.run(piece); });
    simulator.end_step();
  }
  const Simulated simulated = simulator.finish();
  return {simulated.step_s.back(), simulated.peak_device_bytes.front(),
          simulated.ranks.front().peak_host_bytes, simulated.peak_device_bytes};
}

std::string describe_moves(const std::vector<MeasuredMachine>& rounds) {
  using Machine = MeasuredMachine;
  const auto gb_s = [&](Cost MachineProfile::*of) {
    return median(rounds, [&](const Machine& m) { return 1e-9 / (m.profile.*of).unit_s; });
  };
  const double half = median(rounds, [](const Machine& m) { return m.profile.half_duplex; });
  const double memory = median(rounds, [](const Machine& m) { return m.memory_bytes_per_s; });
  return strf("drive: read %.2f GB/s, write %.2f GB/s, %s duplex; copy %.1f GB/s, checksum %.1f "
              "GB/s; memory %.1f GB/s",
              gb_s(&MachineProfile::read), gb_s(&MachineProfile::write),
              half > 0.5 ? "half" : "full", gb_s(&MachineProfile::upload),
              gb_s(&MachineProfile::checksum), 1e-9 * memory);
}

MeasuredRun::MeasuredRun(const HfFolder& folder, Storage* storage, const SessionOptions& options,
                         const std::optional<SlowLink::Speed>& link)
    : run_(folder, storage, options),
      planned_(session().shape(), session().pages(), session().memory().classes,
               session().memory().state_on_device,
               Ledger(false, 0, std::vector<int64_t>(session().table().records.size(), 0))),
      start_(run_.session().pager().residency()) {
  if (link) run_.session().slow_link(*link);
  measure(1);  // two steps of warm-up
}

void MeasuredRun::step() {
  const StepBatch batch = batches_(run_.session(), random_);
  const int64_t cpu = process_cpu_us(), issuing = thread_cpu_us(), start = monotonic_us();
  routings_.push_back(run_.step(batch).routing);
  step_seconds_.push_back(seconds_since(start));
  step_s_ += step_seconds_.back();
  cpu_s_ += 1e-6 * static_cast<double>(process_cpu_us() - cpu);
  issuing_s_ += 1e-6 * static_cast<double>(thread_cpu_us() - issuing);
}

namespace {

std::vector<double> busy_so_far(const Session& session) {
  std::vector<double> busy_s;
  for (int d = 0; d < session.shape().devices; ++d) {
    busy_s.push_back(1e-6 * static_cast<double>(session.executor().device_time(d).busy_us));
  }
  return busy_s;
}

Link::Count sent_so_far(const Session& session) {
  Link::Count all;
  if (session.link() == nullptr) return all;
  for (const auto& [pair, count] : session.link()->counts()) {
    all.transfers += count.transfers;
    all.bytes += count.bytes;
  }
  return all;
}

}  // namespace

void MeasuredRun::measure(int steps) {
  for (const Routing& routing : routings_) planned_.train(routing, [](const StepPiece&) {});
  routings_.clear();
  Session& session = run_.session();
  session.pager().drain();
  start_ = session.pager().residency();
  step();
  step_s_ = cpu_s_ = issuing_s_ = 0;
  step_seconds_.clear();
  step_ends_.clear();
  auto times = std::make_unique<TaskTimes>(&session.shape());
  session.executor().time_tasks(times.get());
  times_ = std::move(times);
  const Pager::Counters before = session.pager().counters();
  const std::vector<double> busy_before = busy_so_far(session);
  const Link::Count sent_before = sent_so_far(session);
  for (int i = 0; i < steps; ++i) {
    step();
    step_ends_.push_back({times_->devices(), monotonic_us()});
  }
  for (double* seconds : {&step_s_, &cpu_s_, &issuing_s_}) *seconds /= steps;
  const Pager::Counters after = session.pager().counters();
  read_bytes_ = (after.fetch_bytes - before.fetch_bytes) / steps;
  written_bytes_ = (after.write_back_bytes - before.write_back_bytes) / steps;
  busy_s_ = busy_so_far(session);
  for (size_t d = 0; d < busy_s_.size(); ++d) busy_s_[d] = (busy_s_[d] - busy_before[d]) / steps;
  sent_ = sent_so_far(session);
  sent_.transfers = (sent_.transfers - sent_before.transfers) / steps;
  sent_.bytes = (sent_.bytes - sent_before.bytes) / steps;
  session.pager().drain();
}

MeasuredRun::Replayed MeasuredRun::simulate(const MachineProfile& profile) const {
  DryRun planned = planned_;
  Replayed replayed;
  Simulator simulator(&session().shape(), &session().pages(), profile, start_);
  for (const Routing& routing : routings_) {
    replayed.tasks = 0;  // the last step's
    planned.train(routing, [&](const StepPiece& piece) {
      simulator.run(piece);
      replayed.tasks += std::ssize(piece.tasks);
    });
    simulator.end_step();
  }
  const Simulated simulated = simulator.finish();
  const double first_s = simulated.step_s.front();
  const double steps = static_cast<double>(simulated.step_s.size()) - 1;
  const auto second = simulated.step_s.begin() + 1;
  replayed.step_seconds.assign(second, simulated.step_s.end());
  replayed.step_s = std::accumulate(second, simulated.step_s.end(), 0.0) / steps;
  for (const SimulatedWork& work : simulated.works) {
    if (work.moves || work.start_s < first_s) continue;
    replayed.task_s[static_cast<size_t>(work.kind)] += (work.end_s - work.start_s) / steps;
  }
  replayed.busy_s.assign(static_cast<size_t>(session().shape().devices), 0);
  for (const SimulatedWork& work : simulated.works) {
    const std::string& stream = simulated.streams[static_cast<size_t>(work.stream)].name;
    int device = 0;
    if (work.start_s < first_s || std::sscanf(stream.c_str(), "compute %d", &device) != 1) continue;
    replayed.busy_s[static_cast<size_t>(device)] += (work.end_s - work.start_s) / steps;
  }
  return replayed;
}

namespace {

// Bytes that a task of the kind moves and does not find in a cache: for each of its units, and for
// each task.
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

// The costs of tasks, each longer by this factor than by itself.
void fit_costs(const MeasuredRun& resident, double more_s, MeasuredMachine& machine) {
  // While a task ran the issuing thread may have had a core too.
  const double computing = 1 - resident.issuing_s() / resident.cpu_s();
  for (int kind = 0; kind < kTaskKinds; ++kind) {
    std::vector<CostSample> samples = resident.times().of(static_cast<TaskKind>(kind));
    const Moved moved = moved_bytes(static_cast<TaskKind>(kind), resident.session().shape());
    double seconds = 0, cpu_s = 0, bytes = 0;
    for (CostSample& sample : samples) {
      seconds += sample.seconds += more_s;
      cpu_s += computing * sample.cpu_s;
      bytes += moved.of_task + moved.of_unit * sample.units;
    }
    Cost& cost = machine.profile.tasks[static_cast<size_t>(kind)];
    cost = fit_cost(samples, 1);
    if (seconds <= 0) continue;
    cost.cores = std::min(cpu_s / seconds, machine.profile.cores);
    cost.memory = std::min(1.0, bytes / seconds / machine.memory_bytes_per_s);
  }
  machine.profile.of(TaskKind::kPrefetch) = machine.profile.of(TaskKind::kUpload) = {};
}

}  // namespace

void fit_tasks(const MeasuredRun& resident, MeasuredMachine& machine) {
  fit_costs(resident, 0, machine);
  const auto tasks = static_cast<double>(resident.simulate(machine.profile).tasks);
  machine.profile.issue = {resident.issuing_s() / tasks, 0, 1};
  const double left_s = resident.step_s() - resident.simulate(machine.profile).step_s;
  machine.hand_over_s = std::max(0.0, left_s / tasks);
  fit_costs(resident, machine.hand_over_s, machine);
}

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

void fit_paged(const MeasuredRun& paged, MeasuredMachine& machine) {
  MachineProfile& profile = machine.profile;
  const StepSeconds simulate = [&](const MachineProfile& p) { return paged.simulate(p).step_s; };
  profile.issue.fixed_s =
      paged.issuing_s() / static_cast<double>(paged.simulate(profile).tasks);
  profile.slice_s = where_zero(slice_s(), [&](double slice_s) {
    profile.slice_s = slice_s;
    return paged.step_s() - simulate(profile);
  });
  const double still_s = simulate(without_moves(profile));
  const double moves_s = simulate(profile) - still_s;
  if (moves_s > 0) machine.paging = std::max(0.0, (paged.step_s() - still_s) / moves_s);
}

}  // namespace pagoda
