// Delays: what held a point in a stream up, so that a wait for it can be told apart by cause. Work
// of one kind stood still until some moment for work of another kind, which itself had stood still
// until an earlier one, and so on: a chain of the newest last. Whoever waits for the end of the
// chain waits, at each moment, for exactly one of its links; so the parts of a wait add up to it.
//
// Values; a copy is one counted pointer, so that every event can carry its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pagoda {

// What a stream does, and so what others wait for when they wait for it.
enum class WorkKind : uint8_t {
  kCompute,
  kUpload,     // host -> device
  kDownload,   // device -> host
  kFetch,      // disk -> host, checks included
  kWriteBack,  // host -> disk, checksums included
  kOptimizer,
  kWake,   // a thread that may go on does not run yet: all cores are busy
  kOther,  // none of the program's streams
};
inline constexpr int kWorkKinds = 8;

const char* work_kind_name(WorkKind kind);  // "write_back"

class Delays {
 public:
  Delays() = default;  // WorkKind::kOther that stood still for nothing
  // Work that stood still for nothing.
  explicit Delays(WorkKind own);
  // Work that stood still until `since_us` (of monotonic_us()) for what `cause` held up.
  Delays(WorkKind own, int64_t since_us, const Delays& cause);

  struct Part {
    WorkKind by = WorkKind::kOther;
    int64_t begin_us = 0, end_us = 0;
  };
  // [begin_us, end_us) in parts without gaps, the latest first, each with the work that was going
  // on. REQUIRES: what these delays are of happened at end_us.
  std::vector<Part> split(int64_t begin_us, int64_t end_us) const;

 private:
  // Links further back are forgotten: their time counts as that of the oldest that is kept. While a
  // long wait lasts, pages can pass through a few slots many times.
  static constexpr size_t kMostLinks = 32;
  struct Link {
    WorkKind by = WorkKind::kOther;
    int64_t since_us = 0;  // of the oldest link: no matter
  };
  struct Chain {
    std::array<Link, kMostLinks> links;  // the latest first
    size_t count = 0;
    void add(const Link& link);
  };
  std::shared_ptr<const Chain> chain_;  // nullptr: kOther alone
};

// Where a stream's time went since it was made. It adds up whenever the stream stands still.
struct StreamTime {
  int64_t busy_us = 0;                          // work ran
  int64_t idle_us = 0;                          // nothing was queued
  std::array<int64_t, kWorkKinds> waited_us{};  // it stood still in wait(), by whom it waited for

  int64_t all_waits_us() const;
  StreamTime operator-(const StreamTime& before) const;
};

}  // namespace pagoda
