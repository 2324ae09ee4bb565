#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "device/device.h"

namespace pagoda {

namespace {

// About what it takes to put a thread to sleep and to wake it on a virtual machine.
constexpr int64_t kWatchUs = 50;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Watches for an event for as long as sleeping and waking would take, and no longer: that costs at
// most twice the time of a wait whose length is known (Karlin, Manasse, McGeoch and Owicki 1994).
template <typename Happened>
bool watch(Happened&& happened) {
  if (happened()) return true;
  for (const int64_t end = monotonic_us() + kWatchUs; monotonic_us() < end;) {
    for (int i = 0; i < 16; ++i) {
      if (happened()) return true;
      pause();
    }
  }
  return false;
}

}  // namespace

// One loop at a time. A loop is a round: workers start when `round` changes, do their share, and
// the last one out lets the caller go. Whoever waits watches a little before it sleeps, since
// within a kernel one loop follows another.
struct ThreadPool::Impl {
  std::vector<NumaNode> nodes;
  std::once_flag refused;  // to keep threads there

  std::mutex turn;  // held for a whole parallel_for: streams take turns

  // Changed under the mutex, so that none who then sleeps misses it; watched without.
  std::atomic<uint64_t> round{0};
  std::atomic<int> running{0};  // workers in this round

  std::mutex mutex;  // guards what follows
  std::condition_variable start, finished;
  bool stop = false;
  // The work of this round: written before `round` changes, read after a worker has seen the
  // change.
  int64_t count = 0;
  const std::function<void(int64_t)>* body = nullptr;
  std::vector<std::thread> workers;

  // Also ends the threads that were started before the system refused the next one.
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
    while (next_round(seen)) {
      for (int64_t i = worker; i < count; i += threads) (*body)(i);
      leave_round();
    }
  }

  // False: there will be none.
  bool next_round(uint64_t& seen) {
    const auto begun = [&] { return round.load(std::memory_order_acquire) != seen; };
    if (!watch(begun)) {
      std::unique_lock lock(mutex);
      start.wait(lock, [&] { return stop || begun(); });
      if (!begun()) return false;
    }
    ++seen;
    return true;
  }

  void leave_round() {
    std::lock_guard lock(mutex);
    if (running.fetch_sub(1, std::memory_order_acq_rel) == 1) finished.notify_one();
  }

  void begin_round(int64_t n, const std::function<void(int64_t)>& work) {
    {
      std::lock_guard lock(mutex);
      count = n;
      body = &work;
      running.store(static_cast<int>(workers.size()), std::memory_order_relaxed);
      round.fetch_add(1, std::memory_order_release);
    }
    start.notify_all();
  }

  void end_round() {
    const auto ended = [&] { return running.load(std::memory_order_acquire) == 0; };
    if (watch(ended)) return;
    std::unique_lock lock(mutex);
    finished.wait(lock, ended);
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
  impl_->begin_round(count, body);
  for (int64_t i = 0; i < count; i += n) body(i);
  impl_->end_round();
}

}  // namespace pagoda
