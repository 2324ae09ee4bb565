// Computes when pieces of work happen that are queued in streams, wait for one another and share
// resources. It is the clock of the simulator and knows nothing of tasks and pages.
//
// A stream does one piece of work after the other, in the order of the calls; a piece begins when
// the piece before it and everything it waits for have ended. A resource has a capacity (cores; a
// drive: 1). Pieces that run at the same time and together demand more than the capacity all run
// slower, in proportion; one that takes two resources runs as the scarcer one lets it. Pieces also
// move bytes of a memory for a part of their time: each machine
// has one. If all running pieces would move more than it can, that part takes longer, and the rest
// does not. A stream that was idle until another stream's piece ended goes on later by the time
// that a thread takes to wake and, where its resource is fully used by others, by a slice: the
// woken thread waits until a running one gives way. Times are seconds. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace pagoda {

class Timeline {
 public:
  using Work = int32_t;
  static constexpr Work kNothing = -1;  // work that has ended
  static constexpr int kNone = -1;      // no stream or no resource

  int add_stream(std::string name);
  int add_resource(double capacity);
  // Sets how long a stream takes to wake, and how long a woken one then waits for a busy resource;
  // 0 until they are set.
  void set_wake(double wake_s, double slice_s) {
    wake_s_ = wake_s;
    slice_s_ = slice_s;
  }

  // Adds work that takes `seconds` when nothing slows it. Meanwhile it takes `demand` of `resource`
  // and the share `memory`, in [0, 1], of what the memory of `machine` can move. Without a stream
  // it waits for `after` only; without a resource only memory slows it.
  Work add(int stream, int resource, double demand, double seconds, std::span<const Work> after,
           double memory = 0, int machine = 0);
  // Makes the work take `demand` of another resource too. REQUIRES: demand > 0.
  void take_too(Work work, int resource, double demand);
  // Makes the work wait for an earlier one too, which must not wait for it.
  void wait_too(Work work, Work earlier);
  // The newest work of the stream, after which everything so far in it has ended.
  Work last(int stream) const { return streams_[stream].last; }

  struct Stream {
    std::string name;
    double busy_s = 0;
    Work last = kNothing;
  };

  // Runs everything. Once, after the last add().
  void run();
  double end_s() const { return now_s_; }
  double end_s(Work work) const { return work == kNothing ? 0 : works_[work].end_s; }
  double start_s(Work work) const { return work == kNothing ? 0 : works_[work].start_s; }
  int stream(Work work) const { return works_[work].stream; }
  const std::vector<Stream>& streams() const { return streams_; }

 private:
  struct Piece {
    struct Use {
      int resource = kNone;
      double demand = 0;
    };
    int stream = kNone;
    std::array<Use, 2> uses;
    double memory = 0, left_s = 0, start_s = 0, end_s = 0;
    int machine = 0;
    double wakes_s = 0;         // left of what it waits, woken, before it begins
    int waits_for = 0;          // pieces that have not ended
    std::vector<Work> follow;   // pieces that wait for this one
  };
  void start(Work work);
  void begin(Work work);
  void finish(Work work);
  bool taken(const Piece& piece) const;
  double share(const Piece& piece) const;
  void count_memory();
  double left_s(const Piece& piece) const;
  void go_on();

  std::vector<Piece> works_;
  std::vector<Stream> streams_;
  std::vector<double> capacity_, demand_;  // [resource]; demand of what runs
  std::vector<double> memory_wanted_;      // [machine]; the same
  std::vector<Work> running_, ready_;
  double now_s_ = 0, wake_s_ = 0, slice_s_ = 0;
  size_t ended_ = 0;
};

}  // namespace pagoda
