// The made-up GPUs' streams and events, and what these do.
#include <cuda.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "tests/cuda/fake_world.h"

using namespace pagoda::fake_cuda;  // NOLINT: CUDA's interface is not in a namespace

namespace {

void run_copy(void* target, const void* source, size_t bytes) {
  World& w = world();
  {
    std::lock_guard lock(w.mutex);
    w.counters.copies += 1;
    w.counters.copied_bytes += static_cast<int64_t>(bytes);
    if (w.next_copy != cudaSuccess) {
      w.sticky = std::exchange(w.next_copy, cudaSuccess);
      return;
    }
    if (w.hidden && w.copying++ == 0) protect_device_memory(w, PROT_READ | PROT_WRITE);
  }
  std::memcpy(target, source, bytes);
  std::lock_guard lock(w.mutex);
  if (w.copying > 0 && --w.copying == 0 && w.hidden) protect_device_memory(w, PROT_NONE);
}

void dawdle() {
  World& w = world();
  int us = 0;
  {
    std::lock_guard lock(w.mutex);
    if (w.most_us > 0) us = static_cast<int>(w.random() % static_cast<uint32_t>(w.most_us));
  }
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
}

bool broken() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return w.sticky != cudaSuccess;
}

}  // namespace

struct CUevent_st {
  struct State {
    std::mutex mutex;  // guards the rest
    std::condition_variable changed;
    uint64_t recorded = 0, happened = 0;  // the newest record, and the newest that was reached
    int64_t at_us = 0;

    uint64_t newest() {
      std::lock_guard lock(mutex);
      return recorded;
    }
    void wait(uint64_t record) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return happened >= record; });
    }
    void reach(uint64_t record) {
      {
        std::lock_guard lock(mutex);
        happened = std::max(happened, record);
        at_us = pagoda::monotonic_us();
      }
      changed.notify_all();
    }
  };
  std::shared_ptr<State> state = std::make_shared<State>();  // queued work may outlive the event
  const int gpu = current_gpu();
};

struct CUstream_st {
  CUstream_st() : thread([this] { run(); }) {}
  ~CUstream_st() {
    enqueue(nullptr);
    thread.join();
  }
  void enqueue(std::function<void()> work) {
    {
      std::lock_guard lock(mutex);
      queue.push_back(std::move(work));
    }
    changed.notify_one();
  }
  void run() {
    for (;;) {
      std::function<void()> work;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return !queue.empty(); });
        work = std::move(queue.front());
        queue.pop_front();
      }
      if (!work) return;
      dawdle();
      work();
    }
  }

  const int gpu = current_gpu();
  std::mutex mutex;  // guards the queue
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::thread thread;
};

int pagoda::fake_cuda::gpu_of(cudaStream_t stream) { return stream->gpu; }

void pagoda::fake_cuda::enqueue(cudaStream_t stream, std::function<void()> work) {
  stream->enqueue(std::move(work));
}

namespace {

void require_current(cudaStream_t stream, const char* call) {
  CHECK(stream->gpu == current_gpu(), "%s on a stream of GPU %d while GPU %d is current", call,
        stream->gpu, current_gpu());
}

// It is the stream's GPU's, or the host's.
void require_own(const void* memory, cudaStream_t stream, const char* call) {
  const int gpu = gpu_of(memory);
  CHECK(gpu == -1 || gpu == stream->gpu, "%s of memory of GPU %d on a stream of GPU %d", call, gpu,
        stream->gpu);
}

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  const cudaError_t error = outcome("cuStreamWaitValue32");
  if (error != cudaSuccess) return static_cast<CUresult>(error);
  CHECK(flags == CU_STREAM_WAIT_VALUE_GEQ);
  require_current(stream, "cuStreamWaitValue32");
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    ++w.counters.gates;
    const Allocation* word = find(w, reinterpret_cast<const void*>(address));
    CHECK(word != nullptr && word->gpu < 0, "the word is not in pinned memory");
  }
  stream->enqueue([address, value] {
    const std::atomic_ref<uint32_t> word(*reinterpret_cast<uint32_t*>(address));
    while (static_cast<int32_t>(word.load(std::memory_order_acquire) - value) < 0 && !broken()) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  return CUDA_SUCCESS;
}

bool is_pageable(const void* pointer) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return find(w, pointer) == nullptr;
}

cudaError_t entry_point(const char* symbol, void** function,
                        cudaDriverEntryPointQueryResult* answer) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  const bool known = w.machine.waits_for_values && std::strcmp(symbol, "cuStreamWaitValue32") == 0;
  *function = known ? reinterpret_cast<void*>(&wait_value) : nullptr;
  *answer = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int) {
  const cudaError_t error = counted("cudaStreamCreateWithFlags", &Counters::streams);
  if (error == cudaSuccess) *stream = new CUstream_st;
  return error;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  uncount(&Counters::streams);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  CHECK((flags & cudaEventDisableTiming) == 0, "its time is asked for");
  const cudaError_t error = counted("cudaEventCreateWithFlags", &Counters::events);
  if (error == cudaSuccess) *event = new CUevent_st;
  return error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  uncount(&Counters::events);
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const cudaError_t error = outcome("cudaEventRecord");
  if (error != cudaSuccess) return error;
  require_current(stream, "cudaEventRecord");
  CHECK(event->gpu == stream->gpu, "an event of GPU %d is recorded in a stream of GPU %d",
        event->gpu, stream->gpu);
  uint64_t record = 0;
  {
    std::lock_guard lock(event->state->mutex);
    record = ++event->state->recorded;
  }
  stream->enqueue([state = event->state, record] { state->reach(record); });
  return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  event->state->wait(event->state->newest());
  return outcome("cudaEventSynchronize");
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  CHECK(from->gpu == to->gpu, "times of two GPUs are compared");
  const auto at_us = [](CUevent_st& event) {
    std::lock_guard lock(event.state->mutex);
    return event.state->at_us;
  };
  *ms = static_cast<float>(static_cast<double>(at_us(*to) - at_us(*from)) / 1000.0);
  return outcome("cudaEventElapsedTime");
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int) {
  const cudaError_t error = counted("cudaStreamWaitEvent", &Counters::event_waits);
  if (error != cudaSuccess) return error;
  require_current(stream, "cudaStreamWaitEvent");
  stream->enqueue([state = event->state, record = event->state->newest()] { state->wait(record); });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const cudaError_t error = outcome("cudaMemcpyAsync");
  if (error != cudaSuccess) return error;
  require_current(stream, "cudaMemcpyAsync");
  require_own(target, stream, "cudaMemcpyAsync");
  require_own(source, stream, "cudaMemcpyAsync");
  stream->enqueue([=] { run_copy(target, source, bytes); });
  if (!is_pageable(target) && !is_pageable(source)) return cudaSuccess;
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    w.counters.unpinned_bytes += static_cast<int64_t>(bytes);
  }
  CUevent_st done;
  cudaEventRecord(&done, stream);
  return cudaEventSynchronize(&done);
}

cudaError_t cudaMemcpyPeerAsync(void* target, int target_gpu, const void* source, int source_gpu,
                                size_t bytes, cudaStream_t stream) {
  const cudaError_t error = outcome("cudaMemcpyPeerAsync");
  if (error != cudaSuccess) return error;
  require_current(stream, "cudaMemcpyPeerAsync");
  CHECK(gpu_of(target) == target_gpu && gpu_of(source) == source_gpu, "memory is another GPU's");
  CHECK(target_gpu == stream->gpu, "a peer copy in a stream that does not receive it");
  bool works = true;
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    CHECK(w.peer_access.contains({target_gpu, source_gpu}), "GPU %d does not reach GPU %d",
          target_gpu, source_gpu);
    w.counters.peer_bytes[{source_gpu, target_gpu}] += static_cast<int64_t>(bytes);
    works = w.machine.peer_copies_work;
  }
  const size_t copied = works ? bytes : bytes / 2;
  stream->enqueue([=] { run_copy(target, source, copied); });
  return cudaSuccess;
}

#if CUDART_VERSION >= 12050
cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* answer) {
  return entry_point(symbol, function, answer);
}
#else
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long,
                                    cudaDriverEntryPointQueryResult* answer) {
  return entry_point(symbol, function, answer);
}
#endif

}  // extern "C"
