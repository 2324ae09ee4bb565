// Storage: the one seam for everything that touches a file system. Two implementations: io_uring
// with O_DIRECT (storage_uring.cc) and threads with pread/pwrite (storage_threads.cc); tests have a
// third, simulated in memory with seeded faults, delays, completion order and loss of unsynced
// writes (tests/testing/storage). Bulk data goes through submit(); manifests and other small files
// through the blocking calls. Nothing else in the program may open, write, rename or sync files of
// a run's store or checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace pagoda {

// One bulk transfer. Plain data, owned by the caller, which keeps it and its buffer alive and
// untouched until `done` has run.
struct IoRequest {
  enum class Op : uint8_t { kRead, kWrite };
  Op op = Op::kRead;
  int file = -1;              // from Storage::open
  int64_t offset = 0;         // bytes, multiple of kIoAlign
  std::byte* data = nullptr;  // kIoAlign-aligned
  int64_t bytes = 0;          // multiple of kIoAlign
  // Outcome, valid when done runs: ok means exactly `bytes` bytes were moved. Short transfers,
  // EINTR and EAGAIN are requeued inside; the end of the file before `bytes` is an error.
  Status status;
  // Called once per submit, on a thread of the storage, which it must not block for long. It may
  // destroy the request, signal events and call submit().
  std::function<void(IoRequest&)> done;
};

// What a bulk file is opened for.
enum class FileUse : uint8_t {
  kCreate,  // to make it
  kUpdate,  // to go on with it
  kRead,    // to look at it only; it may lie where nothing can be written
};

class Storage {
 public:
  // Waits for requests in flight.
  virtual ~Storage() = default;

  // Registers memory that requests will use from now on, in place of what was registered before;
  // (nullptr, 0) only forgets it. A hint (io_uring registered buffers): refused registrations only
  // cost speed. REQUIRES: no transfer in flight.
  virtual void register_memory(std::byte* data, int64_t bytes) = 0;

  // Opens a bulk file of `bytes` bytes; kAnyLength is for one that exists, whatever its length. A
  // new one is fully allocated on disk, so that later writes cannot run out of space (kCannotCreate
  // names need and free space); one to update is synced before anything is read. Takes a lock on it
  // (kCannotCreate, "in use", after up to 10 s of retries), which readers share with each other.
  // Returns a file handle.
  virtual Result<int> open(const std::string& path, int64_t bytes, FileUse use) = 0;
  static constexpr int64_t kAnyLength = 0;
  // Bytes of an open bulk file, when it was opened. Any thread.
  virtual int64_t length(int file) = 0;
  virtual void close(int file) = 0;

  // Starts a transfer; never blocks on the disk. Any thread.
  virtual void submit(IoRequest* request) = 0;
  // Flushes completed writes of `file` to stable storage; kIoError also if its path does not lead
  // to it any more. An error of a flush is final: the file must not be trusted to hold unsynced
  // writes any more, and later syncs of it fail too. Blocks. Any thread.
  virtual Status sync(int file) = 0;

  // Small files and directories. All block; paths are ordinary paths. A link as the last name of
  // one is followed by make_directory() and sync_directory() only.
  virtual Status write_file(const std::string& path, const std::string& content) = 0;  // flushed
  // Allocates room on disk for write_file() of up to `bytes` bytes, making the file if there is
  // none and leaving its content; kCannotCreate where there is no room. A file system that cannot
  // allocate is believed to have it.
  virtual Status reserve_file(const std::string& path, int64_t bytes) = 0;
  virtual Result<std::string> read_file(const std::string& path, int64_t limit_bytes) = 0;
  virtual Status rename(const std::string& from, const std::string& to) = 0;  // replaces a file
  virtual Status make_directory(const std::string& path) = 0;  // with parents, 0700; ok if there
  virtual Status sync_directory(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> list_directory(const std::string& path) = 0;  // sorted
  virtual Status remove_file(const std::string& path) = 0;     // ok if absent
  // Removes the files in it too; ok if absent. A link, or anything but a directory, stays:
  // kBadData.
  virtual Status remove_directory(const std::string& path) = 0;
  // False only if there surely is nothing of this name, not even a dangling link. True if the name
  // cannot be looked up.
  virtual bool exists(const std::string& path) = 0;
  // False only if the name surely is no directory: nothing, a file or a link.
  virtual bool is_directory(const std::string& path) = 0;

  // "io_uring, O_DIRECT, 64 in flight" or the reason for less.
  virtual std::string describe() const = 0;
};

// One transfer, waited for. `data` and `bytes` as IoRequest wants them.
Status transfer_now(Storage* storage, IoRequest::Op op, int file, int64_t offset, std::byte* data,
                    int64_t bytes);

// make_directory() that power loss cannot undo: every parent that gains an entry is flushed.
Status make_durable_directory(Storage* storage, const std::string& path);

// The threads of the thread storage (io_uring has one), each with one blocking call in flight: a
// few large calls keep a drive busy.
inline constexpr int kMostStorageThreads = 4;

enum class IoKind : uint8_t { kAuto, kUring, kThreads };

// Opens the real storage. kAuto prefers io_uring and falls back to threads, with the reason in
// describe(), where io_uring or O_DIRECT is refused; kUring fails with kUnavailable where io_uring
// is refused. `directory` is where the store will live: O_DIRECT and its alignment are probed there
// (statx STATX_DIOALIGN, then a trial), never assumed.
Result<std::unique_ptr<Storage>> open_storage(IoKind kind, const std::string& directory);

}  // namespace pagoda
