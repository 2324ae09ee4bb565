// Delays tell what held up a point in a stream, so that a wait for it can be divided by cause. Work
// of one kind stood still until some moment for work of another kind, which had itself stood still
// until an earlier moment, and so on: a chain with the newest link last. A wait for the end of the
// chain is at each moment a wait for exactly one link, so the parts of a wait add up to it.
//
// Delays are values; a copy is one counted pointer, so that every event can carry its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pagoda {

// The kind of work that a stream does, which others wait for when they wait for the stream.
enum class WorkKind : uint8_t {
  kCompute,
  kUpload,     // host -> device
  kDownload,   // device -> host
  kFetch,      // disk -> host, checks included
  kWriteBack,  // host -> disk, checksums included
  kOptimizer,
  kLink,   // device -> device
  kWake,   // a woken thread does not run yet, since all cores are busy
  kOther,  // work outside of the program's streams
};
inline constexpr int kWorkKinds = 9;

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
  // Splits [begin_us, end_us) into parts without gaps, the latest first, each with the work that
  // was going on. REQUIRES: the point that these delays belong to happened at end_us.
  std::vector<Part> split(int64_t begin_us, int64_t end_us) const;

 private:
  // The chain's limit: older links are forgotten, and their time counts as that of the oldest link
  // that is kept. During a long wait pages may pass through a few slots many times.
  static constexpr size_t kMostLinks = 32;
  struct Link {
    WorkKind by = WorkKind::kOther;
    int64_t since_us = 0;  // unused in the oldest link
  };
  struct Chain {
    std::array<Link, kMostLinks> links;  // the latest first
    size_t count = 0;
    void add(const Link& link);
  };
  std::shared_ptr<const Chain> chain_;  // nullptr: kOther alone
};

// How a stream has spent its time since it was made. The parts add up whenever it stands still.
struct StreamTime {
  int64_t busy_us = 0;                          // work ran
  int64_t idle_us = 0;                          // nothing was queued
  std::array<int64_t, kWorkKinds> waited_us{};  // it stood still in wait(), by the kind of work it
                                                // waited for

  int64_t all_waits_us() const;
  StreamTime operator-(const StreamTime& before) const;
};

}  // namespace pagoda
