// A process whose first thread stands still while its others go on: it lives, and comes no further.
#pragma once

namespace pagoda {

class FrozenThread {
 public:
  // Whether the system lets a process stop those that it has started: tried on one.
  static bool is_allowed();

  // Stops it, as a debugger does. Not ok() where the system forbids that, or the process has ended.
  explicit FrozenThread(int process);
  ~FrozenThread();  // thaw()
  FrozenThread(const FrozenThread&) = delete;
  FrozenThread& operator=(const FrozenThread&) = delete;

  bool ok() const { return ok_; }
  void thaw();
  // Lets the parent of a process that has been killed know it. Returns whether it was.
  bool is_over();

 private:
  int process_;
  bool ok_ = false;
};

}  // namespace pagoda
