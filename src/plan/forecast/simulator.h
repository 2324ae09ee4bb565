// Times a step without running it. It has the same residency over the same tasks, streams that wait
// for one another as those of executor, pager and page file do, and a table of durations. It needs
// no clock, device or bytes; equal input gives equal output.
//
//   Simulator simulator(&shape, &pages, profile, all_on_disk(...));
//   walk(schedule, routing, [&](const StepPiece& piece) { simulator.run(piece); });
//   simulator.end_step();
//   const Simulated result = simulator.finish();
//
// Several ranks are simulated under one clock: each has a machine, with a residency, drives, cores
// and a thread that issues. They meet in what they send each other
// (plan/forecast/simulated_network.h).
//
// Two things are left out: a drive may serve requests in another order than first come, first
// served, and tasks that run beside each other disturb each other's caches.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "plan/forecast/simulated_network.h"
#include "plan/forecast/timeline.h"
#include "plan/machine/machine_profile.h"
#include "plan/step/replay.h"
#include "plan/step/step_schedule.h"

namespace pagoda {

struct SimulatedStream {
  std::string name;
  double busy_s = 0;
  double idle_s = 0;  // of the makespan
};

// A task's work, or a part of a transfer for it, as it ran.
struct SimulatedWork {
  int stream = 0;  // index into Simulated::streams
  double start_s = 0, end_s = 0;
  double own_s = 0;   // its duration when nothing slows it
  double cores = 0;   // cores it occupies meanwhile
  bool moves = false;  // it is a transfer; the rest names the task it is for
  TaskKind kind = TaskKind::kEmbed;
  Phase phase = Phase::kForward;
  int32_t layer = -1, expert = -1;
};

// Bytes of pages in slots of rank 0 when a task begins.
struct SimulatedMemory {
  double at_s = 0;
  int64_t device_bytes = 0;  // of device 0
  int64_t host_bytes = 0;
};

// What a rank did.
struct SimulatedRank {
  PageTraffic traffic;
  int64_t sent_bytes = 0;  // to other ranks
  int64_t peak_host_bytes = 0;
};

struct Simulated {
  std::vector<SimulatedWork> works;     // those that took time on a stream, in the order of issue
  std::vector<SimulatedMemory> memory;  // one for each task of rank 0, in the order of issue
  double makespan_s = 0;
  std::vector<double> step_s;  // from the end of one step to the end of the next
  std::vector<SimulatedStream> streams;
  std::vector<SimulatedRank> ranks;
  std::vector<int64_t> peak_device_bytes;  // of slots in use, on each device
};

class Simulator {
 public:
  // The machine of a rank, and what its residency holds at the start.
  struct Machine {
    MachineProfile profile;
    Residency start;
  };

  // `shape` and `pages`, of any rank, are not owned. REQUIRES: a machine for each rank.
  Simulator(const RunShape* shape, const PageTable* pages, std::vector<Machine> machines);
  // The same of a run that one process makes.
  Simulator(const RunShape* shape, const PageTable* pages, const MachineProfile& profile,
            Residency start);

  // Runs the piece's tasks; then the thread that issues them waits for what it must learn after
  // them. `pieces`: that of each rank.
  void run(std::span<const StepPiece* const> pieces);
  void run(const StepPiece& piece) {
    const StepPiece* alone = &piece;
    run({&alone, 1});
  }
  // The threads that issue wait for all tasks so far; a step's time ends here.
  void end_step();

  void discard(PageId page) {
    for (Rank& rank : ranks_) rank.replay.discard(page);
  }

  const Replay& replay(int rank = 0) const { return ranks_[static_cast<size_t>(rank)].replay; }
  // Once, at the end.
  Simulated finish();

 private:
  using Work = Timeline::Work;
  // When the bytes of a slot may be read and overwritten.
  struct SlotState {
    Work ready = Timeline::kNothing;
    std::vector<Work> readers;
  };
  struct Device {
    int upload, download;           // streams
    int processor;                  // a GPU's, which the tasks of all its lanes share
    std::array<int, kLanes> lanes;  // streams; without other devices, only the first
  };
  // What the newest task computes together with the tasks that join it.
  struct Joined {
    std::vector<Work> after;
    std::vector<std::pair<PageUse, int32_t>> uses;  // with their slots
    double seconds = 0;
  };
  struct Rank {
    MachineProfile profile;
    Replay replay;
    DeviceRange devices;
    int number;
    int cores = 0, drive_reads = 0, drive_writes = 0;  // resources
    // Streams; the last two with other ranks.
    int issuing = 0, optimizer = 0, page_reads = 0, page_writes = 0, drive_read = 0;
    int drive_write = 0, checks = 0, arriving = 0, sending = 0;
    std::vector<std::vector<std::vector<SlotState>>> slots = {};  // [class][place][slot]
    std::vector<Work> disk_ready = {};                            // [page]
    Joined joined = {};
    int64_t sent_bytes = 0;
  };

  // What was sent, on its way.
  struct Sent {
    SlotState* source = nullptr;  // nullptr: another rank's
    SimulatedNetwork::Message message = {};
  };

  void add_rank(Machine machine);
  void add_cards(const Rank& rank, const std::string& suffix);
  void run_all(std::span<const StepPiece* const> pieces);
  bool must_wait(const Task& task) const;
  void run(const Task& task);
  void issue(const Task& task);
  Work carry_out(const Move& move);
  Work copy(const Move& move);
  Work fetch(const Move& move, SlotState& slot);
  Work write_back(const Move& move, const SlotState& slot);
  int stream_of(const Task& task) const;
  Work compute(const Task& task, const Cost& cost, const std::vector<Work>& after);
  Sent travel(const Task& send, Work sent, SlotState& source);
  Work expect(const Task& receive);
  void learn(const StepPiece& piece);
  Work routed_at(int64_t layer, int64_t microbatch);
  SlotState& slot_state(PageId page, Place place, int32_t slot);
  static void add_before_overwrite(const SlotState& slot, std::vector<Work>& after);
  Work add(int stream, const Cost& cost, double units, const std::vector<Work>& after);
  Work add(int stream, int resource, double demand, double seconds, std::span<const Work> after,
           double memory = 0);
  void note(Work work, const Cost& cost, double units, bool moves);

  const RunShape& shape_;
  const PageTable& pages_;
  Timeline timeline_;
  SimulatedNetwork network_;
  std::vector<Rank> ranks_;
  std::vector<Device> devices_;
  std::vector<Work> step_ends_;
  Rank* rank_ = nullptr;                                  // whose task is being issued
  const Task* task_ = nullptr;                            // the task that is being issued
  std::map<std::pair<int, int>, std::deque<Sent>> sent_;  // [from, to] and not received yet
  std::vector<Work> routed_;   // [microbatch] its newest kRoute or kRouteReplay
  std::vector<Work> indexed_;  // [device] its newest kIndex
  std::vector<std::pair<Work, SimulatedWork>> noted_;
  std::vector<std::pair<Work, SimulatedMemory>> held_;
};

}  // namespace pagoda
