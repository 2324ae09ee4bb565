// Transfers by io_uring: one ring and one thread that owns it, submits, reaps and runs completions.
// The only file that includes liburing.
//
// Other threads hand requests over through a queue and write to an eventfd. A read of that eventfd
// is always armed in the ring, so the owner sleeps in one place, io_uring_submit_and_wait, for both
// completions and new work (the idea of Seastar's and TigerBeetle's event loops).
//
// Requests are cut into chunks of about 1 MiB; at most kChunks are in flight, fewer than the
// completion queue has entries, so that it cannot overflow. No links and no cancellation are used:
// a transfer that has started ends by itself (docs/reliability.md).
#include <liburing.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <deque>
#include <thread>

#include "base/bytes.h"
#include "base/log.h"
#include "offload/chunk.h"
#include "offload/storage_posix.h"

namespace pagoda {
namespace {

constexpr int kChunks = 64;
constexpr int64_t kChunkBytes = kMiB;
constexpr unsigned kQueueEntries = 2 * kChunks;  // the completion queue has twice as many
constexpr int kRegisteredFiles = 64;             // handles beyond this use plain descriptors
constexpr int64_t kPieceBytes = kGiB;            // the kernel's limit for one registered buffer
constexpr uint64_t kWakeTag = kChunks;           // tags below are chunk numbers

class UringStorage final : public PosixStorage {
 public:
  explicit UringStorage(PosixOptions options) : PosixStorage(std::move(options)) {
    for (int i = kChunks - 1; i >= 0; --i) free_.push_back(i);
  }

  ~UringStorage() override {
    if (thread_.joinable()) {
      {
        std::lock_guard lock(mutex_);
        stop_ = true;
      }
      wake();
      thread_.join();
    }
    if (ring_ok_) io_uring_queue_exit(&ring_);
  }

  // Makes the ring and starts the thread. Once.
  Status start() {
    wake_ = Descriptor(::eventfd(0, EFD_CLOEXEC));
    if (!wake_.ok()) return refused(errno);
    if (const int error = make_ring(); error != 0) return refused(error);
    const std::vector<int> none(kRegisteredFiles, -1);
    files_registered_ = io_uring_register_files(&ring_, none.data(), kRegisteredFiles) == 0;
    thread_ = std::thread([this] { run(); });
    return Status();
  }

  void register_memory(std::byte* data, int64_t bytes) override;
  void submit(IoRequest* request) override;

  std::string describe() const override {
    return strf("io_uring, %s, %d in flight", options().access.c_str(), kChunks);
  }

 private:
  // A request the ring works on. Chunks are cut off its front; it is complete when all were cut and
  // none is in flight. After an error nothing more is cut.
  struct Transfer {
    IoRequest* request = nullptr;
    const BulkFile* file = nullptr;
    int64_t cut_bytes = 0;
    int in_flight = 0;
  };

  static Status refused(int error) {
    return Status(Exit::kUnavailable,
                  strf("io_uring refused (%s; seccomp, kernel.io_uring_disabled or an old kernel); "
                       "use memory.io = threads",
                       error_text(error).c_str()));
  }

  int make_ring();
  void wake();
  void opened(int handle, int fd) override { register_file(handle, fd); }
  void closing(int handle) override { register_file(handle, -1); }
  void register_file(int handle, int fd);

  // Everything below runs on the owner thread only.
  void run();
  bool take_incoming();
  void issue_chunks();
  void issue(int slot);
  void arm_wake();
  void sleep_until_completion();
  void reap();
  void finish_chunk(int slot, int result);
  int registered_buffer(const Chunk& chunk) const;
  io_uring_sqe* next_sqe();

  io_uring ring_ = {};
  bool ring_ok_ = false;
  bool files_registered_ = false;
  bool memory_registered_ = false;
  std::vector<iovec> memory_;  // registered pieces; written while nothing is in flight
  Descriptor wake_;

  std::atomic<int> outstanding_{0};  // requests submitted and not completed
  std::mutex mutex_;  // guards incoming_ and stop_
  std::vector<IoRequest*> incoming_;
  bool stop_ = false;

  // Owner thread only.
  std::deque<Transfer*> waiting_;  // not yet wholly cut into chunks
  Chunk chunks_[kChunks];
  Transfer* transfers_[kChunks] = {};  // [chunk number]
  std::vector<int> free_;              // chunk numbers
  std::vector<int> again_;             // chunk numbers to issue again
  int in_flight_ = 0;                  // chunks the kernel has
  uint64_t wake_count_ = 0;            // where the armed eventfd read puts its value
  bool wake_armed_ = false;

  std::thread thread_;
};

int UringStorage::make_ring() {
  // Completions are worked on when the owner enters the kernel anyway; older kernels lack the flag.
  for (const unsigned flags : {unsigned{IORING_SETUP_COOP_TASKRUN}, 0u}) {
    io_uring_params params = {};
    params.flags = flags;
    const int error = -io_uring_queue_init_params(kQueueEntries, &ring_, &params);
    if (error == EINVAL && flags != 0) continue;
    if (error != 0) return error;
    ring_ok_ = true;
    CHECK(params.cq_entries > kChunks + 1);
    // Linux 5.13: registering memory no longer waits for the armed eventfd read to end.
    return (params.features & IORING_FEAT_RSRC_TAGS) != 0 ? 0 : ENOSYS;
  }
  return EINVAL;
}

void UringStorage::wake() {
  const uint64_t one = 1;
  ssize_t n;
  do {
    n = ::write(wake_.get(), &one, sizeof one);
  } while (n < 0 && errno == EINTR);
  CHECK(n == sizeof one, "eventfd: %s", error_text(errno).c_str());
}

void UringStorage::register_file(int handle, int fd) {
  if (!files_registered_ || handle >= kRegisteredFiles) return;
  const int updated = io_uring_register_files_update(&ring_, static_cast<unsigned>(handle), &fd, 1);
  CHECK(updated == 1, "registering a file: %s", error_text(-updated).c_str());
}

void UringStorage::register_memory(std::byte* data, int64_t bytes) {
  std::lock_guard lock(mutex_);
  CHECK(outstanding_ == 0, "memory is registered while %d requests are in flight",
        outstanding_.load());
  if (memory_registered_) CHECK(io_uring_unregister_buffers(&ring_) == 0);
  memory_registered_ = false;
  memory_.clear();
  if (bytes == 0) return;
  for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    memory_.push_back({data + begin, static_cast<size_t>(std::min(kPieceBytes, bytes - begin))});
  }
  const int error =
      -io_uring_register_buffers(&ring_, memory_.data(), static_cast<unsigned>(memory_.size()));
  memory_registered_ = error == 0;
  if (error == 0) return;
  log_warn(
      strf("io_uring: %s of buffers not registered (%s): transfers cost more CPU time; raise "
           "the locked-memory limit (ulimit -l)",
           format_bytes(bytes).c_str(), error_text(error).c_str()));
}

void UringStorage::submit(IoRequest* request) {
  check_request(*request, file(request->file).bytes);
  request->status = Status();
  ++outstanding_;
  bool first;
  {
    std::lock_guard lock(mutex_);
    first = incoming_.empty();
    incoming_.push_back(request);
  }
  if (first) wake();  // the owner empties the queue whenever it wakes
}

void UringStorage::run() {
  for (;;) {
    const bool stop = take_incoming();
    if (!stop && !wake_armed_) arm_wake();
    issue_chunks();
    if (stop && in_flight_ == 0 && waiting_.empty() && !wake_armed_) return;
    sleep_until_completion();
    reap();
  }
}

// Returns whether to stop; the queue is empty then, and completions still to run may fill it again.
bool UringStorage::take_incoming() {
  std::vector<IoRequest*> requests;
  bool stop;
  {
    std::lock_guard lock(mutex_);
    requests.swap(incoming_);
    stop = stop_;
  }
  for (IoRequest* request : requests) {
    waiting_.push_back(new Transfer{request, &file(request->file)});  // deleted in finish_chunk()
  }
  return stop;
}

void UringStorage::arm_wake() {
  io_uring_sqe* sqe = next_sqe();
  io_uring_prep_read(sqe, wake_.get(), &wake_count_, sizeof wake_count_, 0);
  io_uring_sqe_set_data64(sqe, kWakeTag);
  wake_armed_ = true;
}

void UringStorage::issue_chunks() {
  for (const int slot : again_) issue(slot);
  again_.clear();
  while (!waiting_.empty() && !free_.empty()) {
    Transfer* transfer = waiting_.front();
    IoRequest* request = transfer->request;
    const int slot = free_.back();
    free_.pop_back();
    const int64_t bytes = next_chunk_bytes(request->bytes - transfer->cut_bytes, kChunkBytes);
    chunks_[slot] = make_chunk(request, transfer->cut_bytes, bytes);
    transfers_[slot] = transfer;
    transfer->cut_bytes += bytes;
    ++transfer->in_flight;
    if (transfer->cut_bytes == request->bytes) waiting_.pop_front();
    issue(slot);
  }
}

void UringStorage::issue(int slot) {
  const Chunk& chunk = chunks_[slot];
  const bool read = chunk.request->op == IoRequest::Op::kRead;
  const bool fixed_file = files_registered_ && chunk.request->file < kRegisteredFiles;
  const int fd = fixed_file ? chunk.request->file : transfers_[slot]->file->descriptor.get();
  const auto bytes = static_cast<unsigned>(chunk.bytes);
  const auto offset = static_cast<uint64_t>(chunk.offset);
  const int buffer = registered_buffer(chunk);
  io_uring_sqe* sqe = next_sqe();
  if (buffer >= 0) {
    if (read) io_uring_prep_read_fixed(sqe, fd, chunk.data, bytes, offset, buffer);
    if (!read) io_uring_prep_write_fixed(sqe, fd, chunk.data, bytes, offset, buffer);
  } else {
    if (read) io_uring_prep_read(sqe, fd, chunk.data, bytes, offset);
    if (!read) io_uring_prep_write(sqe, fd, chunk.data, bytes, offset);
  }
  if (fixed_file) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(sqe, static_cast<uint64_t>(slot));
  ++in_flight_;
}

// The registered piece that holds the whole chunk, or -1.
int UringStorage::registered_buffer(const Chunk& chunk) const {
  if (!memory_registered_) return -1;
  for (size_t i = 0; i < memory_.size(); ++i) {
    const auto* begin = static_cast<const std::byte*>(memory_[i].iov_base);
    const std::byte* end = begin + memory_[i].iov_len;
    if (chunk.data >= begin && chunk.data + chunk.bytes <= end) return static_cast<int>(i);
  }
  return -1;
}

io_uring_sqe* UringStorage::next_sqe() {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
  CHECK(sqe != nullptr, "the submission queue holds every chunk and the wake-up");
  return sqe;
}

void UringStorage::sleep_until_completion() {
  const int result = io_uring_submit_and_wait(&ring_, 1);
  if (result >= 0 || result == -EINTR) return;
  CHECK(result == -EAGAIN || result == -EBUSY, "io_uring_enter: %s", error_text(-result).c_str());
  // The kernel is short of memory: nothing to wait on, so wait a little.
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void UringStorage::reap() {
  CHECK(*ring_.cq.koverflow == 0, "the completion queue overflowed");
  io_uring_cqe* cqes[kQueueEntries];
  const unsigned count = io_uring_peek_batch_cqe(&ring_, cqes, kQueueEntries);
  struct Completion {
    uint64_t tag;
    int result;
  };
  Completion completions[kQueueEntries];
  for (unsigned i = 0; i < count; ++i) completions[i] = {cqes[i]->user_data, cqes[i]->res};
  io_uring_cq_advance(&ring_, count);
  for (unsigned i = 0; i < count; ++i) {
    if (completions[i].tag == kWakeTag) {
      wake_armed_ = false;
    } else {
      finish_chunk(static_cast<int>(completions[i].tag), completions[i].result);
    }
  }
}

void UringStorage::finish_chunk(int slot, int result) {
  --in_flight_;
  Transfer* transfer = transfers_[slot];
  IoRequest* request = transfer->request;
  const ChunkState state = advance(&chunks_[slot], result, transfer->file->path);
  if (state == ChunkState::kAgain) {
    again_.push_back(slot);
    return;
  }
  free_.push_back(slot);
  --transfer->in_flight;
  if (state == ChunkState::kFailed && transfer->cut_bytes < request->bytes) {
    transfer->cut_bytes = request->bytes;
    std::erase(waiting_, transfer);
  }
  if (transfer->in_flight > 0 || transfer->cut_bytes < request->bytes) return;
  delete transfer;
  --outstanding_;
  complete(request);
}

}  // namespace

Result<std::unique_ptr<Storage>> make_uring_storage(PosixOptions options) {
  auto storage = std::make_unique<UringStorage>(std::move(options));
  RETURN_IF_ERROR(storage->start());
  return std::unique_ptr<Storage>(std::move(storage));
}

}  // namespace pagoda
