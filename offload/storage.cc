#include "offload/storage.h"

#include "offload/storage_posix.h"

namespace pagoda {
namespace {

// Blocking calls in flight at once; a drive needs few large ones to be busy.
constexpr int kThreads = 4;

}  // namespace

Result<std::unique_ptr<Storage>> open_storage(IoKind kind, const std::string& directory) {
  PosixOptions options;
  options.access = probe_direct_io(directory);
  if (kind != IoKind::kThreads) {
    auto uring = make_uring_storage(options);
    if (uring.ok() || kind == IoKind::kUring) return uring;
    options.refused = uring.status().message();
  }
  return make_thread_storage(options, kThreads);
}

}  // namespace pagoda
