// A trace shows a person what happened when: spans on lanes and numbers over time, written in the
// JSON of Chrome's tracing (Google, "Trace Event Format"), which ui.perfetto.dev opens.
//
// Code that records gets a pointer to a Trace (nullptr: never traced). While it is off, a place
// that could record costs one relaxed load. It holds a bounded number of events in memory until
// write(); later events are counted and left out.
//
// Threading: span() and counter() on any thread; everything else on the thread that owns the run.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace pagoda {

// A span's name and its arguments.
struct TraceLabel {
  struct Arg {
    const char* name = nullptr;  // a literal
    int64_t value = 0;
  };
  static constexpr int kMostArgs = 6;

  std::string name;  // "expert L3 E12"
  std::array<Arg, kMostArgs> args{};
  int num_args = 0;

  TraceLabel& add(const char* arg, int64_t value);
};

// The argument that counts: a lane whose spans carry it gets a track of its sum over time.
inline constexpr const char* kTraceBytes = "bytes";

class Trace {
 public:
  using Lane = int32_t;
  static constexpr int64_t kMostEvents = 250'000;
  // Most memory an event takes, with its name and while it is written.
  static constexpr int64_t kEventBytes = 256;

  explicit Trace(int64_t most_events = kMostEvents) : most_events_(most_events) {}

  // A row of spans, or a track of numbers. The same names give the same lane.
  Lane lane(const std::string& group, const std::string& name);

  bool on() const { return on_.load(std::memory_order_relaxed); }
  void start() { on_.store(true, std::memory_order_relaxed); }
  void stop() { on_.store(false, std::memory_order_relaxed); }

  // Times of monotonic_us(). Spans of a lane may overlap: they are drawn below each other, so that
  // requests in flight at once are one lane. Ignored while the trace is off.
  void span(Lane lane, int64_t begin_us, int64_t end_us, TraceLabel label);
  // The lane's number is `value` from now on.
  void counter(Lane lane, int64_t value);

  int64_t events() const;      // events that are held
  int64_t cut_events() const;  // events for which there was no room
  int64_t most_bytes() const { return most_events_ * kEventBytes; }

  struct Span {
    int64_t begin_us = 0, end_us = 0;
    TraceLabel label;
  };
  std::vector<Span> spans(Lane lane) const;  // those that are held

  // Replaces the file. Errors of base/output_file.h's OutputFile.
  Status write(const std::string& path) const;

  // A file of several traces: begin_text(), their parts, end_text(), of which the first part is
  // one with first_group = 0. `sink` is given some text at a time, and records nothing.
  struct Part {
    std::string prefix = {};  // of the names of its groups
    int first_group = 0;      // its groups' numbers begin behind this
    int64_t origin_us = 0;    // when the file's time begins, by its clock
    // The file's clock at a time of monotonic_us(); empty: it is that one.
    std::function<int64_t(int64_t)> clock = {};
  };
  using Sink = std::function<Status(const std::string& text)>;
  static std::string begin_text();
  Status write_part(const Part& part, const Sink& sink) const;
  static std::string end_text(int64_t cut_events);
  int64_t origin_us() const { return origin_us_; }

 private:
  friend class TraceWriter;
  struct Event {
    Lane lane = 0;
    bool is_counter = false;
    int64_t begin_us = 0, end_us = 0;  // for a counter both are the time of the change
    int64_t value = 0;                 // a counter's value
    TraceLabel label;                  // a span's label
  };
  struct LaneName {
    std::string group, name;
  };
  void add(Event event);

  const int64_t most_events_;
  const int64_t origin_us_ = monotonic_us();
  std::atomic<bool> on_{false};
  mutable std::mutex mutex_;  // guards the rest
  std::vector<LaneName> lanes_;
  std::deque<Event> events_;  // a deque, since a vector would stop to move its content
  int64_t cut_events_ = 0;
};

// A span of the calling thread, from here to the end of the block.
class TraceScope {
 public:
  TraceScope(Trace* trace, Trace::Lane lane, const char* name);
  ~TraceScope();
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  Trace* trace_;  // nullptr: off when the block began
  Trace::Lane lane_;
  const char* name_;
  int64_t begin_us_ = 0;
};

}  // namespace pagoda
