// SimStorage: Storage in memory, for tests. It completes transfers in a seeded random order after
// seeded random delays on its own thread, injects faults, checks what real disks may not check
// (alignment, overlapping transfers in flight), and can lose power.
//
// One object is one machine: its files outlive the programs that use it. crash() is the power loss:
// from then on every call fails (transfers in flight too). restart() boots the machine: handles and
// locks are gone, files are what survived (sim_disk.h says what may), and the next program begins.
// A clean exit and new start is restart() alone: nothing is lost, as with a killed process.
//
// Every call is numbered (calls()), so that a test can fail call 1, 2, 3, ... until a run is clean.
// exists(), is_directory(), close(), describe() and register_memory() cannot fail and are not
// numbered.
// Threading: as Storage; crash() and restart() from any thread but the storage's own.
#pragma once

#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "offload/chunk.h"
#include "offload/storage.h"
#include "tests/testing/storage/sim_disk.h"

namespace pagoda {

// Kinds of calls, as a bit set.
enum SimCall : uint32_t {
  kSimRead = 1 << 0,
  kSimWrite = 1 << 1,
  kSimOpen = 1 << 2,
  kSimSync = 1 << 3,
  kSimWriteFile = 1 << 4,
  kSimReadFile = 1 << 5,
  kSimRename = 1 << 6,
  kSimMakeDirectory = 1 << 7,
  kSimSyncDirectory = 1 << 8,
  kSimListDirectory = 1 << 9,
  kSimRemove = 1 << 10,
  kSimTransfers = kSimRead | kSimWrite,
  kSimAll = (1 << 11) - 1,
};

struct SimFault {
  enum class Kind : uint8_t {
    kError,      // the call fails with `error`, at every attempt
    kTransient,  // a transfer's first attempt returns `error` (EAGAIN, EINTR, EIO ...)
    kShort,      // a transfer's first attempt moves about half, ending off a block; a small file is
                 // left half written and the call fails
    kZero,       // a transfer's first attempt moves nothing and reports 0 bytes
    kBitFlip,    // a transfer succeeds with one bit wrong
    kStale,      // a write or a sync does nothing and succeeds (lost write, lying flush); a read
                 // returns the content before unflushed writes
    kMisdirected,  // a transfer succeeds at another place of the file
    kDelay,        // the storage stands still for delay_us before a transfer
    kCrash,        // power loss during the call
  };
  Kind kind = Kind::kError;
  uint32_t calls = kSimAll;  // the kinds of calls
  int64_t nth = 0;           // the nth (from 1) such call after inject(), or 0:
  double probability = 0;    // each such call with this probability
  int error = EIO;
  int64_t delay_us = 0;
  uint64_t crash_seed = 0;
};

class SimStorage final : public Storage {
 public:
  // `max_delay_us` bounds the random pause before each completion; 0 for none.
  explicit SimStorage(uint64_t seed, int64_t max_delay_us = 4);
  ~SimStorage() override;

  void inject(const SimFault& fault);
  void clear_faults();
  int64_t calls() const;   // numbered calls so far
  int64_t faults() const;  // injected so far

  void crash(uint64_t seed);
  void restart();  // waits for transfers in flight, whose completions must not wait for this
  bool crashed() const;

  // Changes one bit of a file behind everybody's back (bit rot).
  void flip_bit(const std::string& path, int64_t offset_bytes, int bit);
  // A copy of a file's bytes as a program sees them; empty when absent.
  std::vector<std::byte> contents(const std::string& path) const;
  void set_contents(const std::string& path, const std::vector<std::byte>& bytes);

  void register_memory(std::byte* data, int64_t bytes) override;
  Result<int> open(const std::string& path, int64_t bytes, FileUse use) override;
  int64_t length(int file) override;
  void close(int file) override;
  void submit(IoRequest* request) override;
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
  std::string describe() const override;

 private:
  struct OpenFile {
    SimDisk::NodePointer node;
    std::string path;
    FileUse use = FileUse::kCreate;
    Status flushed;  // first failed flush; final
  };
  // A transfer in flight.
  struct Flight {
    Chunk chunk;
    std::shared_ptr<OpenFile> file;
    std::optional<SimFault> fault;
    bool first_attempt = true;
    bool power_lost = false;
  };
  // How a blocking call begins: its fault if any, and whether it goes on at all.
  struct Entry {
    Status status;
    std::optional<SimFault> fault;
  };

  // All of these with mutex_ held.
  std::optional<SimFault> draw_fault(uint32_t call);
  Entry enter(uint32_t call, const char* what, const std::string& path);
  Status leave(const Entry& entry);
  void crash_locked(uint64_t seed);
  std::shared_ptr<OpenFile> find_file(int handle) const;
  void check_overlap(const IoRequest& request, const OpenFile& file) const;
  int64_t attempt(Flight* flight);
  int64_t move_bytes(Flight* flight, int64_t offset, int64_t bytes, bool stale);
  ChunkState step(Flight* flight);
  uint64_t random();

  void run();

  const uint64_t seed_;
  const int64_t max_delay_us_;
  mutable std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  std::condition_variable idle_;
  SimDisk disk_;
  std::map<int, std::shared_ptr<OpenFile>> files_;
  int next_handle_ = 0;
  std::vector<Flight> flights_;
  int completing_ = 0;  // taken from flights_, completion still running
  struct ArmedFault {
    SimFault fault;
    int64_t seen = 0;
  };
  std::vector<ArmedFault> armed_;
  int64_t calls_ = 0;
  int64_t faults_ = 0;
  uint64_t draws_ = 0;
  bool crashed_ = false;
  bool stop_ = false;
  std::thread thread_;  // last: starts when the rest exists
};

}  // namespace pagoda
