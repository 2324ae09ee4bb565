// A network of a test's own, in which processes reach each other by TCP over the loopback interface
// alone, so that a process can be cut off while it and the others live.
#pragma once

#include <cstddef>
#include <vector>

namespace pagoda {

class OwnNetwork {
 public:
  // Takes this thread, and what it starts from here on, to a new network namespace, and tells Open
  // MPI to use nothing else. Needs root and `ip`; ok() is false without.
  OwnNetwork();
  ~OwnNetwork();  // back to where the thread was
  OwnNetwork(const OwnNetwork&) = delete;
  OwnNetwork& operator=(const OwnNetwork&) = delete;

  bool ok() const { return ok_; }
  // From here on nothing passes between process `lost` of `processes` and the others of them: what
  // is sent over their connections, and to what it listens on, is lost without an answer.
  void cut_off(const std::vector<int>& processes, size_t lost) const;

 private:
  int before_ = -1;
  bool ok_ = false;
};

}  // namespace pagoda
