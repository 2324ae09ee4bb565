// A process whose first thread stands still while its others go on: it lives, and comes no further.
#pragma once

namespace pagoda {

class FrozenThread {
 public:
  // Stops it, as a debugger does. Not ok() where the system forbids that.
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
