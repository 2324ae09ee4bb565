// Transfers by blocking pread and pwrite on a few threads: works on every Linux, also where
// io_uring is forbidden.
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <deque>
#include <thread>

#include "base/bytes.h"
#include "offload/chunk.h"
#include "offload/storage_posix.h"

namespace pagoda {
namespace {

// One system call moves about this much: large enough to keep a drive busy from one thread.
constexpr int64_t kCallBytes = 16 * kMiB;

class ThreadStorage final : public PosixStorage {
 public:
  // Delegates, so that the destructor ends what stands when a thread is refused.
  ThreadStorage(PosixOptions options, int threads) : ThreadStorage(std::move(options)) {
    for (int i = 0; i < threads; ++i) workers_.emplace_back([this] { work(); });
  }

  ~ThreadStorage() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void register_memory(std::byte* /*data*/, int64_t /*bytes*/) override {}

  void submit(IoRequest* request) override {
    check_request(*request, file(request->file).bytes);
    request->status = Status();
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(request);
    }
    changed_.notify_one();
  }

  std::string describe() const override {
    std::string text = strf("%zu threads, %s", workers_.size(), options().access.c_str());
    if (!options().refused.empty()) text += "; " + options().refused;
    return text;
  }

 private:
  explicit ThreadStorage(PosixOptions options) : PosixStorage(std::move(options)) {}

  // Ends when told to stop and nothing is queued; a completion that submits more runs on a thread
  // that will look at the queue again, so nothing is left behind.
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      IoRequest* request = queue_.front();
      queue_.pop_front();
      lock.unlock();
      transfer(request);
      complete(request);
      lock.lock();
    }
  }

  void transfer(IoRequest* request) {
    const BulkFile& bulk = file(request->file);
    int64_t bytes = 0;
    for (int64_t begin = 0; begin < request->bytes; begin += bytes) {
      bytes = next_chunk_bytes(request->bytes - begin, kCallBytes);
      Chunk chunk = make_chunk(request, begin, bytes);
      ChunkState state;
      do {
        state = advance(&chunk, call(chunk, bulk.descriptor.get()), bulk.path);
      } while (state == ChunkState::kAgain);
      if (state == ChunkState::kFailed) return;
    }
  }

  static int64_t call(const Chunk& chunk, int fd) {
    const size_t bytes = static_cast<size_t>(chunk.bytes);
    const ssize_t moved = chunk.request->op == IoRequest::Op::kRead
                              ? ::pread(fd, chunk.data, bytes, chunk.offset)
                              : ::pwrite(fd, chunk.data, bytes, chunk.offset);
    return moved < 0 ? -errno : moved;
  }

  std::mutex mutex_;  // guards queue_ and stop_
  std::condition_variable changed_;
  std::deque<IoRequest*> queue_;
  bool stop_ = false;
  std::vector<std::thread> workers_;  // last: start when the rest exists
};

}  // namespace

std::unique_ptr<Storage> make_thread_storage(PosixOptions options, int threads) {
  return std::make_unique<ThreadStorage>(std::move(options), threads);
}

}  // namespace pagoda
