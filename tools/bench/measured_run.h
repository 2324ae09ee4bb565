// A session whose steps are measured and simulated, and what a simulation must be told of a
// machine: for programs that hold one against the other.
//
// A machine's speed changes by the second and by the minute. So sessions stay open side by side and
// take turns, round after round: what is simulated in a round is told of the machine what the same
// round measured, and what counts in the end is the median over rounds.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "bench/race/timing.h"
#include "plan/forecast/simulator.h"
#include "tests/testing/plan/dry_run.h"
#include "tools/bench/random_token_run.h"
#include "train/task_times.h"

namespace pagoda {

// Over the rounds, of a figure of each.
template <typename Round, typename Figure>
double median(const std::vector<Round>& rounds, const Figure& figure) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(std::invoke(figure, round));
  return quantile(values, 0.5);
}

// Makes the batch of a step.
using BatchSource = std::function<StepBatch(const Session&, std::mt19937&)>;

// A run on random tokens, the same in every run of the program. It times steps from quiet to quiet
// and tells the newest timing. A timing's first step finds an idle drive and another session's
// bytes in the caches: it is replayed, but does not count.
class MeasuredRun {
 public:
  // After a few steps to warm up. `link`: what transfers between its devices take.
  MeasuredRun(const HfFolder& folder, Storage* storage, const SessionOptions& options,
              const std::optional<SlowLink::Speed>& link = std::nullopt);

  // Where batches come from, from here on; random_batch() until then.
  void draw(BatchSource batches) { batches_ = std::move(batches); }
  // Times `steps` steps that count. REQUIRES: steps > 0.
  void measure(int steps);

  const Session& session() const { return run_.session(); }
  // Averages over steps; work between steps does not count.
  double step_s() const { return step_s_; }
  double cpu_s() const { return cpu_s_; }
  // Seconds of each of them, of which step_s() is the average.
  const std::vector<double>& step_seconds() const { return step_seconds_; }
  double issuing_s() const { return issuing_s_; }  // part of step_s, on the thread that issues
  // [device] of a step, how long it computes.
  const std::vector<double>& busy_s() const { return busy_s_; }
  // Transfers and bytes of a step, over all pairs of devices.
  const Link::Count& sent() const { return sent_; }
  int64_t read_bytes() const { return read_bytes_; }
  int64_t written_bytes() const { return written_bytes_; }
  const TaskTimes& times() const { return *times_; }  // of all steps that count
  int64_t steps() const { return std::ssize(routings_) - 1; }
  // Where the timing stood at the end of a step.
  struct StepEnd {
    std::vector<TaskTimes::OfDevice> devices;  // so far
    int64_t at_us = 0;
  };
  const std::vector<StepEnd>& step_ends() const { return step_ends_; }  // of all that count
  // The timing, simulated with the routing it had.
  struct Replayed {
    double step_s = 0;                        // of a step on average
    std::vector<double> step_seconds{};       // of each
    std::vector<double> busy_s{};             // [device] of a step, how long it computes
    std::array<double, kTaskKinds> task_s{};  // part of step_s, by the kind of task
    int64_t tasks = 0;                        // issued in a step
  };
  Replayed simulate(const MachineProfile& profile) const;

 private:
  void step();

  std::unique_ptr<TaskTimes> times_;  // outlives the run
  RandomTokenRun run_;
  std::mt19937 random_{5};
  BatchSource batches_ = random_batch;
  DryRun planned_;   // before the timing
  Residency start_;  // the state when the timing begins
  std::vector<Routing> routings_;
  double step_s_ = 0, cpu_s_ = 0, issuing_s_ = 0;
  std::vector<double> step_seconds_, busy_s_;
  std::vector<StepEnd> step_ends_;
  Link::Count sent_;
  int64_t read_bytes_ = 0, written_bytes_ = 0;
};

// The seconds of a step, simulated on a profile.
using StepSeconds = std::function<double(const MachineProfile&)>;

// What a simulation is told.
struct MeasuredMachine {
  MachineProfile profile;
  double memory_bytes_per_s = 0;  // read and written, of what lies in no cache
  double hand_over_s = 0;  // from the end of a task to the beginning of the next; in their costs
  double paging = 1;  // times what moves of pages add to a simulated step, they do to a real one

  // The predicted seconds of a step, with these corrections.
  double step_s(const StepSeconds& simulate) const;
  // Others use the machine too.
  bool shared() const;
};

// Cores that this process gets, what the memory moves, the drive under pages like those of the run
// (bench/sheet/drive.h), and copies and checks of them on a core, to which the processor time of
// transfers is added: all of a profile but what fits add to it. Takes half a second.
MeasuredMachine measure_machine(const MeasuredRun& run, Storage* storage,
                                const std::string& directory);
// The profile of a run on such devices, by what tasks took on one that was slowed as `reference`.
// `link`: what transfers between devices are made to take; no rate: nothing.
MachineProfile profile_of(const MeasuredMachine& machine, const std::vector<Throttle>& devices,
                          const Throttle& reference, const SlowLink::Speed& link);
// A step of the session's run in which all experts have equally many tokens, once pages have found
// their places.
struct EvenStep {
  double step_s = 0;
  int64_t peak_device_bytes = 0, peak_host_bytes = 0;  // most that pages have in slots
  std::vector<int64_t> peak_on_device = {};            // the same of each
};
EvenStep simulate_even(const Session& session, const MachineProfile& profile);
// A line of the medians of it.
std::string describe_moves(const std::vector<MeasuredMachine>& rounds);

// What measured steps with room for everything tell: the costs of tasks, on how many cores they
// run, how much of the memory's rate updates, gradients and reading experts' weights take, what
// issuing them takes, and, as what these do not explain, what is between one task and the next.
void fit_tasks(const MeasuredRun& resident, MeasuredMachine& machine);

// The value in [0, most] at which `above`, which falls, is zero, by halving; an end where it is so
// nowhere.
double where_zero(double most, const std::function<double(double)>& above);

// What measured steps tell whose pages come and go: what issuing takes then; as what that does not
// explain, how long a thread that may go on waits for its turn while others have all cores, up to a
// slice of the scheduler's; and the factor that carries over what is left. REQUIRES: fit_tasks()
// before.
void fit_paged(const MeasuredRun& paged, MeasuredMachine& machine);

}  // namespace pagoda
