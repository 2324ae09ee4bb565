// PosixStorage: what the two real storages share. It owns the open bulk files (allocation, locking,
// direct I/O, flushing) and forwards small files to small_files.h; a subclass adds only the way
// transfers are run.
//
// Direct I/O is decided for each file when it is opened: statx(STATX_DIOALIGN) where the kernel
// knows, then a trial read. A file that refuses it is used buffered for its whole life, because
// mixing both kinds of access to one file is undefined in practice.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "offload/storage.h"

namespace pagoda {

struct PosixOptions {
  int64_t lock_wait_ms =
      10000;            // retries on a locked file: a killed io_uring user may still hold it
  std::string access;   // what describe() says of direct I/O in the store's directory
  std::string refused;  // why a better storage is not used, for describe()
};

inline constexpr char kDirectAccess[] = "O_DIRECT";

// kDirectAccess, or "buffered (reason)" for files that would be created in `directory` (or, while
// that does not exist, in its nearest parent). Leaves nothing behind.
std::string probe_direct_io(const std::string& directory);

class PosixStorage : public Storage {
 public:
  Result<int> open(const std::string& path, int64_t bytes, FileUse use) override;
  int64_t length(int handle) override { return file(handle).bytes; }
  void close(int file) override;
  Status sync(int file) override;

  Status write_file(const std::string& path, const std::string& content) override;
  Status reserve_file(const std::string& path, int64_t bytes) override;
  Result<std::string> read_file(const std::string& path, int64_t limit_bytes) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status make_directory(const std::string& path) override;
  Status sync_directory(const std::string& path) override;
  Result<std::vector<std::string>> list_directory(const std::string& path) override;
  Status remove_file(const std::string& path) override;
  Status remove_directory(const std::string& path) override;
  bool exists(const std::string& path) override;
  bool is_directory(const std::string& path) override;

 protected:
  struct BulkFile {
    Descriptor descriptor;
    std::string path;
    int64_t bytes = 0;
    std::mutex mutex;  // guards flushed; held during a flush
    Status flushed;    // the first failed flush; final
  };

  explicit PosixStorage(PosixOptions options) : options_(std::move(options)) {}

  // The open file behind a handle; another handle is a bug. Thread-safe. The file lives until
  // close(), which callers call only when none of its requests is in flight.
  BulkFile& file(int handle);
  // Hooks for a subclass that registers descriptors. Called by the thread in open() or close().
  virtual void opened(int /*handle*/, int /*fd*/) {}
  virtual void closing(int /*handle*/) {}

  const PosixOptions& options() const { return options_; }

 private:
  Status create_file(BulkFile* file);
  Status open_existing(BulkFile* file, FileUse use);
  Status lock(const BulkFile& file, FileUse use);

  const PosixOptions options_;
  std::mutex mutex_;  // guards files_ (the vector; each file guards itself)
  std::vector<std::unique_ptr<BulkFile>> files_;  // by handle; null when closed
};

// open_storage() once probe_direct_io() has said `access`.
Result<std::unique_ptr<Storage>> choose_storage(IoKind kind, const std::string& access);

// Each is defined in the file of its name.
std::unique_ptr<Storage> make_thread_storage(PosixOptions options, int threads);
// kUnavailable with the reason when the system refuses io_uring.
Result<std::unique_ptr<Storage>> make_uring_storage(PosixOptions options);

}  // namespace pagoda
