// A session whose steps are measured and simulated, and what a simulation must be told of a
// machine: for programs that hold one against the other.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "plan/simulator.h"
#include "tools/bench/random_token_run.h"
#include "train/planned_run.h"
#include "train/task_times.h"

namespace pagoda {

// Cores that this process gets while others use the machine too: all threads at work for a moment.
double cores_to_be_had(int threads);

// The drive under pages of this size: all written, all read, and half of each at once. Sets read,
// write, half_duplex and completion_s, and tells them in a line.
std::string measure_drive(Storage* storage, const std::string& directory, int64_t page_bytes,
                          MachineProfile& profile);

// Bytes of the state of an expert: what moves most.
int64_t state_page_bytes(const PageTable& pages);

// Random tokens, the same in every run of the program; rounds of steps from quiet to quiet.
class MeasuredRun {
 public:
  MeasuredRun(const HfFolder& folder, Storage* storage, const SessionOptions& options);

  void warm_up(std::mt19937& random, int steps);
  // The time of the steps alone counts.
  void measure(std::mt19937& random, int steps);

  const std::vector<double>& step_s() const { return step_s_; }  // as measured
  double mean_step_s() const;
  // The measured steps, simulated with the routing they had: seconds of a step on average, and the
  // most bytes that pages had in slots.
  struct Replayed {
    double mean_step_s = 0;
    int64_t peak_device_bytes = 0, peak_host_bytes = 0;
  };
  Replayed simulate(const MachineProfile& profile) const;

  RandomTokenRun run;

 private:
  struct Round {
    Residency start;
    std::vector<Routing> routings;
  };
  StepResult step(std::mt19937& random, double& seconds);

  PlannedRun planned_;  // after the warm up
  std::vector<Round> rounds_;
  std::vector<double> step_s_;
};

// What steps with room for everything tell: the costs of tasks, which take `cores` cores, and, as
// what these do not explain, that of the thread which issues them waking up when it has waited.
void fit_tasks(const TaskTimes& times, double cores, const MeasuredRun& resident,
               MachineProfile& profile);

}  // namespace pagoda
