// Device, Stream and Event say where tensors live and in which order work on them happens.
//
// A Device is one memory budget plus the right to make streams. Its memory is one arena, allocated
// when the device is opened and never grown: what does not fit is refused before the run starts.
//
// A Stream is a FIFO of work: each piece starts when the piece before it has ended. On the host
// device a stream is a thread with a queue, so that every ordering bug of a GPU can show without
// one. A stream has ONE issuing thread: only that thread may call its methods.
//
// An Event marks a point in a stream, or an outside happening such as a finished disk read. Events
// are the only way to order work across streams. They are cheap shared handles; a default
// constructed Event counts as having happened.
//
// Kernels run inside streams; on the host device they split their work with Stream::pool().
//
// A function that starts a thread (for a pool or a stream) throws std::system_error when the system
// refuses it, and leaves nothing behind; callers that can clean up turn that into
// threads_refused().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/trace.h"
#include "device/delays.h"
#include "hardware/numa.h"

namespace pagoda {

class DeviceTurn;

class Event {
 public:
  Event() = default;
  // Makes an event that is signalled by hand (disk I/O). Call signal() exactly once, from any
  // thread. `delays` tell what held it up.
  static Event make();
  void signal(const Delays& delays = Delays());
  bool happened() const;
  // Blocks the calling thread until the event has happened. Any thread.
  void wait() const;
  // Runs `then` once the event has happened: at once when it already has, else on the signalling
  // thread, which it must not block.
  void when_happened(std::function<void()> then) const;
  // The delays of `own` work that could begin when this happened. REQUIRES: it has happened.
  Delays followed_by(WorkKind own) const;

  struct State;

 private:
  friend Event when_all(const std::vector<Event>& events);
  std::shared_ptr<State> state_;
};

// Returns an event that happens when all of `events` have. Its delays are those of the last one.
Event when_all(const std::vector<Event>& events);

// A fixed set of worker threads for data-parallel loops inside one kernel. Idle workers sleep. On a
// machine of several NUMA nodes workers stay on their nodes, in contiguous runs (base/numa.h). A
// pool of one thread, its caller, does not.
class ThreadPool {
 public:
  explicit ThreadPool(int threads, std::vector<NumaNode> nodes = numa_nodes());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;
  // Keeps the calling thread on worker 0's node, for threads that mostly call parallel_for, such as
  // a stream's.
  void stay_as_caller() const;
  // Runs body(i) for every i in [0, count), i to worker i % threads (the caller is worker 0), and
  // returns when all are done. The partition is static, but a kernel must not let its result depend
  // on it: tiles are chosen from shapes alone and each tile is computed by one thread. Not
  // reentrant: body must not call parallel_for. Calls from several streams take turns.
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A stream's name, the kind of its work, and the trace it goes to (nullptr: none).
struct StreamOptions {
  std::string name;
  WorkKind kind = WorkKind::kOther;
  Trace* trace = nullptr;  // not owned
  // Not null: it works by turns with other streams of the host (device/device_turn.h).
  std::shared_ptr<DeviceTurn> turn = nullptr;
};

class Device;

class Stream {
 public:
  virtual ~Stream() = default;  // finishes queued work first
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // The event happens when everything enqueued so far has ended.
  virtual Event record() = 0;
  // Work enqueued later starts only after `event` has happened.
  virtual void wait(const Event& event) = 0;
  // Runs `work` on a host thread, in order. It must not throw and must not wait for later work of
  // the same stream.
  virtual void enqueue(std::function<void()> work) = 0;
  // Copies `bytes` from `source` to `target`, in order; both stay valid until then.
  // With 0 bytes nothing is read or written, and both may be null.
  virtual void copy(void* target, const void* source, int64_t bytes) = 0;
  // Copies from the arena of `owner`, which this stream's device reaches (Device::reach), to the
  // arena of this stream's device.
  virtual void copy_from(const Device& owner, void* target, const void* source, int64_t bytes);
  // Blocks until everything enqueued has ended.
  void synchronize() { record().wait(); }
  // From now on what is enqueued takes `factor` times as long as its thread computes. The thread
  // sleeps for the rest before it goes on to what is not slowed, events among it, and before it is
  // idle. Only the host's streams do; REQUIRES: a pool of one thread, 1 <= factor.
  virtual void slow_down(double factor) { CHECK(factor == 1); }

  // Gives the stream device memory that its kernels use while they run, each op from its start on
  // (kernels/gpu_scratch.h). Call it before the first op. Ops of the CPU need none.
  void use_scratch(std::span<std::byte> scratch) { scratch_ = scratch; }
  std::span<std::byte> scratch() const { return scratch_; }

  // The loop workers for work that is enqueued on this stream.
  virtual ThreadPool& pool() = 0;
  virtual const std::string& name() const = 0;
  virtual StreamTime time() const = 0;  // any thread

  // While the stream's trace is on, the work enqueued between begin_span() and end_span() is one
  // span of its lane, from the start of the first piece to the end of the last. Do not call wait()
  // in between: waits are spans of their own, one for each kind of work that was waited for.
  // traced() says whether labels are wanted; on a GPU they always are, since errors and profilers
  // show them.
  virtual bool traced() const = 0;
  virtual void begin_span(TraceLabel label) = 0;
  virtual void end_span() = 0;

 protected:
  Stream() = default;

 private:
  std::span<std::byte> scratch_;
};

struct DeviceOptions {
  int64_t arena_bytes = 0;  // the whole memory budget of the device
  int threads = 1;          // threads of the streams' pool; on the host device they compute
  Trace* trace = nullptr;   // trace of its streams; not owned
  // Not null: its computing streams have it, on the host device, and take turns with those of other
  // devices that are the same hardware.
  std::shared_ptr<DeviceTurn> turn = nullptr;
};

class Device {
 public:
  virtual ~Device() = default;
  // arena_bytes long, zeros at first; kIoAlign-aligned on the host device, to 256 bytes on a GPU.
  // Only work on this device's streams may read and write it; on the host device, anyone.
  virtual std::byte* arena() = 0;
  virtual int64_t arena_bytes() const = 0;
  // Page-locks host memory so that streams copy from and to it directly, until the handle is
  // dropped; drop it before the memory is freed. If the system refuses, warns once and returns
  // nullptr; copies still work, but slower. The host device does not need it.
  virtual std::shared_ptr<void> pin(std::byte* data, int64_t bytes);
  virtual std::unique_ptr<Stream> make_stream(const std::string& name, WorkKind kind) = 0;
  // Whether streams of this device may copy from the arena of `owner`, which is not owned and lives
  // as long: on the host always, on a GPU where the two are peers. Makes it so. Call it before such
  // copies, not during.
  virtual bool reach(const Device& owner);
  virtual int gpu() const { return -1; }  // CUDA's number of a GPU; -1: this is none
  virtual std::string describe() const = 0;

 protected:
  Device() = default;
};

// The CPU as a device: anonymous memory as its arena (touched on use), threads as streams.
// Fails with kDeviceMemory when the arena cannot be had.
Result<std::unique_ptr<Device>> open_host_device(const DeviceOptions& options);

// A stream that is not bound to a device, for optimizer and disk work on the host.
std::unique_ptr<Stream> make_host_stream(StreamOptions options, std::shared_ptr<ThreadPool> pool);

// Page-aligned anonymous host memory, touched on use and returned to the system on destruction.
// From 2 MiB on it is in huge pages if the system has them.
class HostMemory {
 public:
  HostMemory() = default;
  static Result<HostMemory> allocate(int64_t bytes);
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory& operator=(HostMemory&& other) noexcept;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace pagoda
