// The CPU as a device: a stream is a thread with a queue (the idea is mlx's scheduler), device
// memory is one anonymous mapping.
#include <sys/mman.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/bytes.h"
#include "base/clock.h"
#include "device/device.h"
#include "device/device_turn.h"
#include "device/past_cache.h"
#include "device/sleep_debt.h"

namespace pagoda {
namespace {

constexpr int64_t kHugePageBytes = 2 * kMiB;

// Anonymous memory at a multiple of `alignment`, itself a multiple of the system's page; null when
// there is none.
std::byte* map_aligned(int64_t bytes, int64_t alignment) {
  const int64_t mapped = bytes + alignment;
  void* data = mmap(nullptr, static_cast<size_t>(mapped), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(data);
  const int64_t place = reinterpret_cast<int64_t>(begin);
  std::byte* aligned = begin + (align_up(place, alignment) - place);
  std::byte* end = aligned + align_up(bytes, kIoAlign);
  if (aligned > begin) munmap(begin, static_cast<size_t>(aligned - begin));
  munmap(end, static_cast<size_t>(begin + mapped - end));
  return aligned;
}

// Makes work take a multiple of its processor time. It sleeps behind pieces of work, not between
// them: a piece finds the caches as the one before has left them, and not as whoever had the core
// meanwhile. What is between pieces that follow one another is work, too. One thread.
class SleepingThrottle {
 public:
  void run(const std::function<void()>& work, double slowness) {
    if (!at_work_) seen_ = Moment::now();
    at_work_ = true;
    work();
    const Moment before = std::exchange(seen_, Moment::now());
    debt_.add_work(slowness, seen_.wall_us - before.wall_us, seen_.cpu_us - before.cpu_us);
  }
  bool at_work() const { return at_work_; }
  // The work is over for now.
  void sleep() {
    at_work_ = false;
    if (debt_.due_us() == 0) return;
    const int64_t asleep_us = monotonic_us();
    std::this_thread::sleep_for(std::chrono::microseconds(debt_.due_us()));
    debt_.add_sleep(monotonic_us() - asleep_us);
  }

 private:
  struct Moment {
    int64_t wall_us = 0, cpu_us = 0;
    static Moment now() { return {monotonic_us(), thread_cpu_us()}; }
  };
  SleepDebt debt_;
  bool at_work_ = false;
  Moment seen_;  // what the thread did until then is counted
};

class HostStream final : public Stream {
 public:
  HostStream(StreamOptions options, std::shared_ptr<ThreadPool> pool)
      : options_(std::move(options)),
        pool_(std::move(pool)),
        lane_(options_.trace ? options_.trace->lane("streams", options_.name) : 0),
        delays_(options_.kind),
        thread_([this] { run(); }) {}

  ~HostStream() override {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  Event record() override {
    Event event = Event::make();
    if (idle()) {  // no thread need wake up to say so
      event.signal();
    } else {
      push({[this, event]() mutable { event.signal(delays_); }});
    }
    return event;
  }

  void wait(const Event& event) override {
    if (event.happened()) return;
    const auto stand = [this, event] {
      if (!event.happened()) stand_still(event);
    };
    push({stand});
  }

  void enqueue(std::function<void()> work) override {
    push({std::move(work), slowness_, options_.turn != nullptr});
  }

  void slow_down(double factor) override {
    CHECK(factor == 1 || pool_->threads() == 1, "other threads' time is not seen");
    slowness_ = factor;
  }

  void copy(void* target, const void* source, int64_t bytes) override {
    if (bytes == 0) return;
    enqueue([=] { copy_past_cache(target, source, bytes); });
  }

  ThreadPool& pool() override { return *pool_; }
  const std::string& name() const override { return options_.name; }

  StreamTime time() const override {
    StreamTime time;
    std::lock_guard lock(mutex_);
    const int64_t now_us = monotonic_us();
    time.idle_us = idle_us_ + (idle_since_us_ >= 0 ? now_us - idle_since_us_ : 0);
    time.waited_us = waited_us_;
    time.busy_us = now_us - made_us_ - time.idle_us - time.all_waits_us();
    return time;
  }

  bool traced() const override { return options_.trace != nullptr && options_.trace->on(); }

  void begin_span(TraceLabel label) override {
    spanning_ = traced();
    if (!spanning_) return;
    enqueue([this, label = std::move(label)]() mutable {
      span_label_ = std::move(label);
      span_begin_us_ = monotonic_us();
    });
  }

  void end_span() override {
    if (!spanning_) return;
    spanning_ = false;
    enqueue([this] {
      options_.trace->span(lane_, span_begin_us_, monotonic_us(), std::move(span_label_));
    });
  }

 private:
  bool idle() const {
    std::lock_guard lock(mutex_);
    return queue_.empty() && idle_since_us_ >= 0;
  }

  struct Queued {
    std::function<void()> work;
    double slowness = 1;  // of work; events are no slower
    bool by_turn = false;
  };

  void push(Queued queued) {
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(std::move(queued));
    }
    changed_.notify_one();
  }

  void run() {
    const bool computes =
        options_.kind == WorkKind::kCompute || options_.kind == WorkKind::kOptimizer;
    if (computes) pool_->stay_as_caller();
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
      if (queue_.empty()) return;
      if (idle_since_us_ >= 0) idle_us_ += monotonic_us() - std::exchange(idle_since_us_, -1);
      Queued next = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      if (next.by_turn) take_turn();
      if (next.slowness > 1) {
        throttle_.run(next.work, next.slowness);
      } else {
        throttle_.sleep();
        next.work();
      }
      next.work = nullptr;  // captured owners go before the next wait
      lock.lock();
      if (queue_.empty() && throttle_.at_work()) {
        lock.unlock();
        throttle_.sleep();
        lock.lock();
      }
      if (!queue_.empty()) continue;
      idle_since_us_ = monotonic_us();
      leave_turn();
    }
  }

  // What follows runs on this stream's thread.
  void take_turn() {
    if (has_turn_) return;
    const int64_t begin_us = monotonic_us();
    options_.turn->take();
    has_turn_ = true;
    stood_still(begin_us, monotonic_us(), Delays(WorkKind::kCompute, begin_us, delays_));
  }

  void leave_turn() {
    if (std::exchange(has_turn_, false)) options_.turn->leave();
  }

  void stand_still(const Event& event) {
    leave_turn();
    const int64_t begin_us = monotonic_us();
    event.wait();
    const int64_t end_us = monotonic_us();
    stood_still(begin_us, end_us, event.followed_by(WorkKind::kWake));
  }

  void stood_still(int64_t begin_us, int64_t end_us, const Delays& cause) {
    delays_ = Delays(options_.kind, end_us, cause);
    std::lock_guard lock(mutex_);
    for (const Delays::Part& part : cause.split(begin_us, end_us)) {
      waited_us_[static_cast<size_t>(part.by)] += part.end_us - part.begin_us;
      if (!traced()) continue;
      options_.trace->span(lane_, part.begin_us, part.end_us,
                           {std::string("wait: ") + work_kind_name(part.by), {}, 0});
    }
  }

  const StreamOptions options_;
  const std::shared_ptr<ThreadPool> pool_;
  const Trace::Lane lane_;
  const int64_t made_us_ = monotonic_us();

  // Issuing thread only.
  bool spanning_ = false;
  double slowness_ = 1;

  // This stream's thread only.
  SleepingThrottle throttle_;
  bool has_turn_ = false;
  Delays delays_;
  TraceLabel span_label_;
  int64_t span_begin_us_ = 0;

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::deque<Queued> queue_;
  bool stop_ = false;
  int64_t idle_since_us_ = made_us_;  // -1: at work
  int64_t idle_us_ = 0;               // before that
  std::array<int64_t, kWorkKinds> waited_us_{};

  std::thread thread_;  // last: starts when the rest exists
};

class HostDevice final : public Device {
 public:
  HostDevice(HostMemory memory, const DeviceOptions& options)
      : memory_(std::move(memory)),
        pool_(std::make_shared<ThreadPool>(options.threads)),
        trace_(options.trace),
        turn_(options.turn) {}

  std::byte* arena() override { return memory_.data(); }
  int64_t arena_bytes() const override { return memory_.bytes(); }
  std::unique_ptr<Stream> make_stream(const std::string& name, WorkKind kind) override {
    return make_host_stream({name, kind, trace_, kind == WorkKind::kCompute ? turn_ : nullptr},
                            pool_);
  }
  std::string describe() const override {
    return strf("CPU, %d threads, arena %s", pool_->threads(),
                format_bytes(memory_.bytes()).c_str());
  }

 private:
  HostMemory memory_;
  std::shared_ptr<ThreadPool> pool_;
  Trace* trace_;
  std::shared_ptr<DeviceTurn> turn_;
};

}  // namespace

void Stream::copy_from(const Device&, void* target, const void* source, int64_t bytes) {
  copy(target, source, bytes);
}

bool Device::reach(const Device& owner) { return gpu() < 0 && owner.gpu() < 0; }

std::shared_ptr<void> Device::pin(std::byte*, int64_t) { return nullptr; }

Result<std::unique_ptr<Device>> open_host_device(const DeviceOptions& options) {
  auto memory = HostMemory::allocate(options.arena_bytes);
  if (!memory.ok()) {
    return Status(Exit::kDeviceMemory,
                  strf("cannot get %s for the device arena; lower memory.device",
                       format_bytes(options.arena_bytes).c_str()));
  }
  return std::unique_ptr<Device>(std::make_unique<HostDevice>(memory.take(), options));
}

std::unique_ptr<Stream> make_host_stream(StreamOptions options, std::shared_ptr<ThreadPool> pool) {
  return std::make_unique<HostStream>(std::move(options), std::move(pool));
}

Result<HostMemory> HostMemory::allocate(int64_t bytes) {
  HostMemory memory;
  memory.bytes_ = bytes;
  if (bytes == 0) return memory;
  const bool huge = bytes >= kHugePageBytes;
  memory.data_ = map_aligned(bytes, huge ? kHugePageBytes : kIoAlign);
  if (memory.data_ == nullptr) {
    return Status(Exit::kHostMemory, strf("cannot get %s of host memory; lower memory.host",
                                          format_bytes(bytes).c_str()));
  }
  const auto size = static_cast<size_t>(bytes);
  madvise(memory.data_, size, MADV_DONTFORK);  // direct I/O and fork do not mix
  // A drive is given a page as one piece of memory, not as hundreds. Where the system has no huge
  // pages everything works as before.
  if (huge) madvise(memory.data_, size, MADV_HUGEPAGE);
  return memory;
}

HostMemory::~HostMemory() {
  if (data_) munmap(data_, static_cast<size_t>(bytes_));
}

HostMemory::HostMemory(HostMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HostMemory& HostMemory::operator=(HostMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

}  // namespace pagoda
