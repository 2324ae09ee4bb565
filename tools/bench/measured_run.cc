#include "tools/bench/measured_run.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "base/clock.h"
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

std::string measure_drive(Storage* storage, const std::string& directory, int64_t page_bytes,
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
  return strf("drive: read %.2f GB/s, write %.2f GB/s, both at once %.2f GB/s: %s duplex",
              bytes / median(read_s) * 1e-9, bytes / median(write_s) * 1e-9,
              bytes / median(mixed_s) * 1e-9, profile.half_duplex ? "half" : "full");
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
  const int64_t start = monotonic_us();
  StepResult result = run.step(batch);
  seconds = seconds_since(start);
  return result;
}

void MeasuredRun::warm_up(std::mt19937& random, int steps) {
  double seconds = 0;
  for (int i = 0; i < steps; ++i) {
    planned_.train(step(random, seconds).routing, [](const StepPiece&) {});
  }
}

void MeasuredRun::measure(std::mt19937& random, int steps) {
  run.session().pager().drain();
  rounds_.push_back({run.session().pager().residency(), {}});
  for (int i = 0; i < steps; ++i) {
    step_s_.push_back(0);
    rounds_.back().routings.push_back(step(random, step_s_.back()).routing);
  }
}

double MeasuredRun::mean_step_s() const {
  return std::accumulate(step_s_.begin(), step_s_.end(), 0.0) /
         static_cast<double>(step_s_.size());
}

MeasuredRun::Replayed MeasuredRun::simulate(const MachineProfile& profile) const {
  PlannedRun planned = planned_;
  Replayed replayed;
  for (const Round& round : rounds_) {
    Simulator simulator(&run.session().shape(), &run.session().pages(), profile, round.start);
    for (const Routing& routing : round.routings) {
      planned.train(routing, [&](const StepPiece& piece) { simulator.run(piece); });
      simulator.end_step();
    }
    const Simulated simulated = simulator.finish();
    for (const double step_s : simulated.step_s) {
      replayed.mean_step_s += step_s / static_cast<double>(step_s_.size());
    }
    replayed.peak_device_bytes =
        std::max(replayed.peak_device_bytes, simulated.peak_device_bytes.front());
    replayed.peak_host_bytes = std::max(replayed.peak_host_bytes, simulated.peak_host_bytes);
  }
  return replayed;
}

void fit_tasks(const TaskTimes& times, double cores, const MeasuredRun& resident,
               MachineProfile& profile) {
  for (int kind = 0; kind < kTaskKinds; ++kind) {
    profile.tasks[static_cast<size_t>(kind)] =
        fit_cost(times.of(static_cast<TaskKind>(kind)), cores);
  }
  profile.of(TaskKind::kPrefetch) = profile.of(TaskKind::kBring) = {};
  const RunShape& shape = resident.run.session().shape();
  const auto waits = static_cast<double>(
      std::count(shape.is_moe.begin(), shape.is_moe.end(), uint8_t{1}) + 2);
  const double left_s = resident.mean_step_s() - resident.simulate(profile).mean_step_s;
  profile.wake_up_s = std::max(0.0, left_s / waits);
}

}  // namespace pagoda
