// Times a step without running it. It has the same residency over the same tasks, streams that wait
// for one another as those of executor, pager and page file do, and a table of durations. It needs
// no clock, device or bytes; equal input gives equal output.
//
//   Simulator simulator(&shape, &pages, profile, all_on_disk(...));
//   walk(schedule, routing, [&](const StepPiece& piece) { simulator.run(piece); });
//   simulator.end_step();
//   const Simulated result = simulator.finish();
//
// Two things are left out: a drive may serve requests in another order than first come, first
// served, and tasks that run beside each other disturb each other's caches.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

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

// Bytes of pages in slots when a task begins.
struct SimulatedMemory {
  double at_s = 0;
  int64_t device_bytes = 0;  // of device 0
  int64_t host_bytes = 0;
};

struct Simulated {
  std::vector<SimulatedWork> works;     // those that took time on a stream, in the order of issue
  std::vector<SimulatedMemory> memory;  // one for each task, in the order of issue
  double makespan_s = 0;
  std::vector<double> step_s;  // from the end of one step to the end of the next
  std::vector<SimulatedStream> streams;
  PageTraffic traffic;
  std::vector<int64_t> peak_device_bytes;  // of slots in use, on each device
  int64_t peak_host_bytes = 0;
};

class Simulator {
 public:
  // `shape` and `pages` are not owned.
  Simulator(const RunShape* shape, const PageTable* pages, const MachineProfile& profile,
            Residency start);

  // Runs the piece's tasks; then the thread that issues them waits for what it must learn after
  // them.
  void run(const StepPiece& piece);
  void run(const TaskList& tasks);
  // The thread that issues waits for all tasks so far; a step's time ends here.
  void end_step();
  void discard(PageId page) { replay_.discard(page); }

  const Replay& replay() const { return replay_; }
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

  // A wave's rows on their way.
  struct Sent {
    SlotState* source = nullptr;
    Work ready = Timeline::kNothing;
  };

  void run(const Task& task);
  void issue(const Task& task);
  Work carry_out(const Move& move);
  Work copy(const Move& move);
  Work fetch(const Move& move, SlotState& slot);
  Work write_back(const Move& move, const SlotState& slot);
  int stream_of(const Task& task) const;
  Work compute(const Task& task, const Cost& cost, const std::vector<Work>& after);
  Work travel(const Task& send, Work sent);
  SlotState& slot_state(PageId page, Place place, int32_t slot);
  static void add_before_overwrite(const SlotState& slot, std::vector<Work>& after);
  Work add(int stream, const Cost& cost, double units, const std::vector<Work>& after);
  void note(Work work, const Cost& cost, double units, bool moves);

  const RunShape& shape_;
  const PageTable& pages_;
  MachineProfile profile_;
  Replay replay_;
  Timeline timeline_;
  int cores_, drive_reads_, drive_writes_;  // resources
  int issuing_, optimizer_, page_reads_, page_writes_, drive_read_, drive_write_,
      checks_;  // streams
  std::vector<Device> devices_;
  std::vector<std::vector<std::vector<SlotState>>> slots_;  // [class][place][slot]
  std::vector<Work> disk_ready_;                            // [page]
  std::vector<Work> step_ends_;
  const Task* task_ = nullptr;  // the task that is being issued
  Joined joined_;
  std::map<std::pair<int, int>, std::deque<Sent>> sent_;  // [from, to] and not received yet
  std::map<std::pair<int, int>, int> wires_;              // [from, to] streams
  std::vector<Work> routed_;   // [microbatch] its newest kRoute or kRouteReplay
  std::vector<Work> indexed_;  // [device] its newest kIndex
  std::vector<std::pair<Work, SimulatedWork>> noted_;
  std::vector<std::pair<Work, SimulatedMemory>> held_;
};

}  // namespace pagoda
