#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "device/device.h"

namespace pagoda {

// One loop at a time. A loop is a round: workers wake when `round` changes, do their share, and the
// last one out lets the caller go.
struct ThreadPool::Impl {
  std::vector<NumaNode> nodes;
  std::once_flag refused;  // to keep threads there

  std::mutex turn;  // held for a whole parallel_for: streams take turns

  std::mutex mutex;  // guards everything below
  std::condition_variable start, finished;
  uint64_t round = 0;
  int running = 0;
  bool stop = false;
  int64_t count = 0;
  const std::function<void(int64_t)>* body = nullptr;
  std::vector<std::thread> workers;

  // Also ends those that stand when the system refuses the next one.
  ~Impl() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    start.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  void stay(int worker, int threads) {
    if (threads < 2 || nodes.size() < 2) return;
    const Status stays = stay_on(nodes[node_of_thread(worker, threads, nodes)]);
    if (!stays.ok()) std::call_once(refused, [&] { log_warn(stays.message()); });
  }

  void work(int worker, int threads) {
    stay(worker, threads);
    uint64_t seen = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      start.wait(lock, [&] { return stop || round != seen; });
      if (stop) return;
      seen = round;
      const int64_t n = count;
      const auto& run = *body;
      lock.unlock();
      for (int64_t i = worker; i < n; i += threads) run(i);
      lock.lock();
      if (--running == 0) finished.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads, std::vector<NumaNode> nodes)
    : impl_(std::make_unique<Impl>()) {
  CHECK(threads >= 1);
  impl_->nodes = std::move(nodes);
  for (int w = 1; w < threads; ++w) {
    impl_->workers.emplace_back([this, w, threads] { impl_->work(w, threads); });
  }
}

ThreadPool::~ThreadPool() = default;

int ThreadPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void ThreadPool::stay_as_caller() const { impl_->stay(0, threads()); }

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  const int n = threads();
  if (n == 1 || count <= 1) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  std::lock_guard turn(impl_->turn);
  {
    std::lock_guard lock(impl_->mutex);
    impl_->count = count;
    impl_->body = &body;
    impl_->running = n - 1;
    ++impl_->round;
  }
  impl_->start.notify_all();
  for (int64_t i = 0; i < count; i += n) body(i);
  std::unique_lock lock(impl_->mutex);
  impl_->finished.wait(lock, [this] { return impl_->running == 0; });
}

}  // namespace pagoda
