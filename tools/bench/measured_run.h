// A session whose steps are measured and simulated, and what a simulation must be told of a
// machine: for programs that hold one against the other.
#pragma once

#include <array>
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

// What the memory moves, read and written, while all threads copy what lies in no cache.
double memory_bytes_per_s(int threads);

// The drive under pages of this size (bench/drive.h), and copies and checks of them on a core. Sets
// read, write, half_duplex, completion_s, upload, download and checksum, to which the processor
// time of transfers is added, each with its share of what the memory moves; tells them in a line.
std::string profile_moves(Storage* storage, const std::string& directory, int64_t page_bytes,
                          double memory_bytes_per_s, MachineProfile& profile);

// Bytes of the state of an expert: what moves most.
int64_t state_page_bytes(const PageTable& pages);

// Random tokens, the same in every run of the program; rounds of steps from quiet to quiet.
class MeasuredRun {
 public:
  MeasuredRun(const HfFolder& folder, Storage* storage, const SessionOptions& options);

  void warm_up(std::mt19937& random, int steps);
  // The time of the steps alone counts, and that of processors meanwhile.
  void measure(std::mt19937& random, int steps);

  // All before is warm-up.
  void forget();

  const std::vector<double>& step_s() const { return step_s_; }  // as measured
  double mean_step_s() const;
  double later_step_s() const;  // on average, without the first step of each round
  double cpu_s() const { return cpu_s_; }            // of all steps measured
  double issuing_s() const { return issuing_s_; }    // of it, on the thread that issues
  // The measured steps, simulated with the routing they had: seconds of a step on average, those of
  // tasks by kind in all steps together, and the most bytes that pages had in slots.
  struct Replayed {
    double mean_step_s = 0;
    std::array<double, kTaskKinds> task_s{};
    int64_t tasks = 0;  // issued
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
  void add(const Simulated& simulated, Replayed& replayed) const;

  PlannedRun planned_;  // after the warm up
  std::vector<Round> rounds_;
  std::vector<double> step_s_;
  double cpu_s_ = 0, issuing_s_ = 0;
};

// What measured steps with room for everything tell: the costs of tasks, on how many cores they
// run, how much of the memory's rate updates, gradients and reading experts' weights take, what
// issuing them takes, and, as what these do not explain, what it takes until the thread that issues
// goes on when it has waited. REQUIRES: profile.cores.
void fit_tasks(const TaskTimes& times, const MeasuredRun& resident, double memory_bytes_per_s,
               MachineProfile& profile);

// What measured steps tell whose pages come and go: what issuing takes then; how much of their time
// the other tasks move memory, from how much longer they take beside copies, checks and updates;
// and, as what these do not explain, how long a thread that may go on waits for its turn while
// others have all cores. REQUIRES: fit_tasks() before.
void fit_paged(const TaskTimes& times, const MeasuredRun& paged, MachineProfile& profile);

}  // namespace pagoda
