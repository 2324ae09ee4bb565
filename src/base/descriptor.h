// Descriptor owns one POSIX file descriptor; with it stands what calls on descriptors share.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace pagoda {

// One read(2) or write(2) moves at most 2 GiB; larger transfers go in parts.
inline constexpr int64_t kMaxTransferBytes = int64_t{1} << 30;

// What the system says of the call that failed last on this thread.
inline std::string last_error() { return std::strerror(errno); }

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() { reset(); }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }
  // Closes now; false (errno set) if the system reported an error, e.g. a late write error on NFS.
  bool reset() {
    const int fd = std::exchange(fd_, -1);
    return fd < 0 || ::close(fd) == 0;
  }

 private:
  int fd_ = -1;
};

}  // namespace pagoda
