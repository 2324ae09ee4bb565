#include "offload/storage.h"

#include <filesystem>

#include "device/device.h"
#include "offload/storage_posix.h"

namespace pagoda {

Result<std::unique_ptr<Storage>> open_storage(IoKind kind, const std::string& directory) {
  return choose_storage(kind, probe_direct_io(directory));
}

Result<std::unique_ptr<Storage>> choose_storage(IoKind kind, const std::string& access) {
  PosixOptions options;
  options.access = access;
  // Through the page cache the ring is no better than threads.
  if (kind == IoKind::kUring || (kind == IoKind::kAuto && access == kDirectAccess)) {
    auto uring = make_uring_storage(options);
    if (uring.ok() || kind == IoKind::kUring) return uring;
    options.refused = uring.status().message();
  }
  return make_thread_storage(options, kMostStorageThreads);
}

Status transfer_now(Storage* storage, IoRequest::Op op, int file, int64_t offset, std::byte* data,
                    int64_t bytes) {
  Event done = Event::make();
  IoRequest request;
  request.op = op;
  request.file = file;
  request.offset = offset;
  request.data = data;
  request.bytes = bytes;
  Status status;
  // The callback has its own handle of the event: the waiter may be gone before signal() returns.
  request.done = [&status, done](IoRequest& finished) mutable {
    status = finished.status;
    done.signal();
  };
  storage->submit(&request);
  done.wait();
  return status;
}

Status make_durable_directory(Storage* storage, const std::string& path) {
  std::vector<std::string> missing, parents;
  std::filesystem::path place = std::filesystem::path(path).lexically_normal();
  if (!place.has_filename()) place = place.parent_path();
  while (!storage->exists(place.string())) {
    const std::filesystem::path parent = place.has_parent_path() ? place.parent_path() : ".";
    missing.push_back(place.string());
    parents.push_back(parent.string());
    if (parent == place || parent == ".") break;
    place = parent;
  }
  // From the top, so that whatever is interrupted, a directory that is there has a durable parent.
  for (size_t i = missing.size(); i-- > 0;) {
    RETURN_IF_ERROR(storage->make_directory(missing[i]));
    RETURN_IF_ERROR(storage->sync_directory(parents[i]));
  }
  return missing.empty() ? storage->make_directory(path) : Status();
}

}  // namespace pagoda
