// How much memory each device of a run may take: the same for each, or what it has. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"

namespace pagoda {

class DeviceBudget {
 public:
  DeviceBudget(int64_t each = 0) : bytes_{each} {}  // of any number of devices
  // [device] REQUIRES: not empty. One alone is that of each device.
  DeviceBudget(std::vector<int64_t> bytes) : bytes_(std::move(bytes)) { CHECK(!bytes_.empty()); }

  int64_t of(int device) const {
    if (bytes_.size() == 1) return bytes_.front();
    CHECK(device >= 0 && static_cast<size_t>(device) < bytes_.size());
    return bytes_[static_cast<size_t>(device)];
  }
  int64_t least() const { return *std::min_element(bytes_.begin(), bytes_.end()); }
  int64_t most() const { return *std::max_element(bytes_.begin(), bytes_.end()); }
  int64_t sum(int devices) const {
    int64_t sum = 0;
    for (int d = 0; d < devices; ++d) sum += of(d);
    return sum;
  }
  DeviceBudget& operator+=(int64_t more) {  // of each device
    for (int64_t& bytes : bytes_) bytes += more;
    return *this;
  }
  DeviceBudget part(double share) const {  // of each device
    DeviceBudget part = *this;
    for (int64_t& bytes : part.bytes_) {
      bytes = static_cast<int64_t>(share * static_cast<double>(bytes));
    }
    return part;
  }

 private:
  std::vector<int64_t> bytes_;
};

}  // namespace pagoda
