// The bounds of one rendering. What takes time is counted in steps, what takes memory in bytes
// made, which are not given back when they are freed; so both are bounded whatever a template does.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace pagoda::jinja {

// A step evaluates one node, or passes over this many bytes.
inline constexpr int64_t kMaxSteps = 10'000'000;
inline constexpr size_t kBytesOfStep = 64;
// The bytes of all strings, lists and dictionaries that are made.
inline constexpr int64_t kMaxMadeBytes = int64_t{256} << 20;
inline constexpr size_t kItemBytes = 64;  // of an element of a list or dictionary

// An error without a place: the template asks for what is not there.
inline Status failed(std::string why) { return Status(Exit::kBadData, std::move(why)); }

struct Bounds {
  int64_t steps = kMaxSteps, made_bytes = kMaxMadeBytes;
};

class Budget {
 public:
  explicit Budget(const Bounds& bounds = {}) : bounds_(bounds), left_(bounds) {}
  const Bounds& left() const { return left_; }

  // Each is kBadData above the bounds, before anything that it asks for is done. Then nothing is
  // left.
  Status spend(size_t steps) {
    if (take(steps, &left_.steps)) return Status();
    return failed(strf("takes more than %lld steps", (long long)bounds_.steps));
  }
  Status pass(size_t bytes) { return spend(1 + bytes / kBytesOfStep); }
  // A name is compared with those of `entries`, most of which differ in their first bytes.
  Status look_up(size_t entries, size_t name_bytes) {
    return spend(entries * (kBytesOfStep + name_bytes) / (16 * kBytesOfStep));
  }
  Status make(size_t bytes) {
    if (take(bytes, &left_.made_bytes)) return pass(bytes);
    return failed(strf("makes more than %lld bytes", (long long)bounds_.made_bytes));
  }
  Status make_items(size_t items) { return make(items * kItemBytes); }
  // An element of a list that is a string: the two of them, and its bytes.
  Status make_text_item(size_t bytes) { return make(2 * kItemBytes + bytes); }

 private:
  static bool take(size_t wanted, int64_t* left) {
    const bool enough = wanted <= static_cast<size_t>(*left);
    *left = enough ? *left - static_cast<int64_t>(wanted) : 0;
    return enough;
  }

  const Bounds bounds_;
  Bounds left_;
};

}  // namespace pagoda::jinja
