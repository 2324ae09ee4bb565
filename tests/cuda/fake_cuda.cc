#include "tests/cuda/fake_cuda.h"

#include <cuda.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"

namespace pagoda::fake_cuda {
namespace {

struct Allocation {
  size_t bytes = 0;
  int gpu = -1;  // whose memory it is; -1: the host's
};

thread_local int current_gpu = 0;

// The machine, its memory and what goes wrong on it.
struct World {
  std::mutex mutex;  // guards the rest
  Machine machine;
  std::map<const std::byte*, Allocation> memory;                // of GPUs, and pinned host memory
  std::map<std::string, std::pair<int, cudaError_t>> failures;  // calls to go, error
  cudaError_t next_copy = cudaSuccess;
  cudaError_t sticky = cudaSuccess;
  std::mt19937 random;
  int most_us = 0;
  bool hidden = false;
  int copying = 0;  // copies that need hidden memory now
  Counters counters;
  std::map<std::string, int64_t> calls;
  std::map<int, int64_t> allocated_bytes;     // [GPU] now
  std::set<std::pair<int, int>> peer_access;  // [GPU, whose memory it reaches]

  int64_t bytes_of(int gpu) const {
    const auto listed = static_cast<size_t>(gpu) < machine.memories.size();
    return listed ? machine.memories[static_cast<size_t>(gpu)] : machine.memory_bytes;
  }
};

World& world() {
  static World* const world = new World;  // streams may outlive main's statics
  return *world;
}

// What a call returns: what it is made to, or what went wrong before.
cudaError_t outcome(const char* call) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  ++w.calls[call];
  if (w.sticky != cudaSuccess) return w.sticky;
  const auto found = w.failures.find(call);
  if (found == w.failures.end()) return cudaSuccess;
  if (found->second.first-- > 0) return cudaSuccess;
  const cudaError_t error = found->second.second;
  w.failures.erase(found);
  return error;
}

// Returns outcome(), and counts what a success makes or ends.
cudaError_t counted(const char* call, int64_t Counters::*counter) {
  const cudaError_t error = outcome(call);
  if (error != cudaSuccess) return error;
  World& w = world();
  std::lock_guard lock(w.mutex);
  ++(w.counters.*counter);
  return cudaSuccess;
}

void uncount(int64_t Counters::*counter) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  --(w.counters.*counter);
}

const Allocation* find(World& w, const void* pointer) {
  const auto* place = static_cast<const std::byte*>(pointer);
  auto after = w.memory.upper_bound(place);
  if (after == w.memory.begin()) return nullptr;
  --after;
  return place < after->first + after->second.bytes ? &after->second : nullptr;
}

void protect_device_memory(World& w, int protection) {
  for (const auto& [place, allocation] : w.memory) {
    if (allocation.gpu >= 0) mprotect(const_cast<std::byte*>(place), allocation.bytes, protection);
  }
}

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

void start(const Machine& machine) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  CHECK(w.counters.streams == 0 && w.counters.allocated_bytes == 0, "a GPU is open");
  w.machine = machine;
  w.failures.clear();
  w.next_copy = w.sticky = cudaSuccess;
  w.most_us = 0;
  const int64_t events = w.counters.events, pinned = w.counters.pinned_bytes;
  w.counters = {};
  w.calls.clear();
  w.peer_access.clear();
  w.counters.events = events;
  w.counters.pinned_bytes = pinned;
}

void fail(const std::string& call, cudaError_t error, int calls) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.failures[call] = {calls, error};
}

void fail_next_copy(cudaError_t error) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.next_copy = error;
}

void slow_down(uint32_t seed, int most_us) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.random.seed(seed);
  w.most_us = most_us;
}

void hide_memory(bool hidden) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.hidden = hidden;
  protect_device_memory(w, hidden ? PROT_NONE : PROT_READ | PROT_WRITE);
}

Counters counters() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return w.counters;
}

std::map<std::string, int64_t> calls() {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return w.calls;
}

int gpu_of(const void* memory) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  const Allocation* found = find(w, memory);
  return found == nullptr ? -1 : found->gpu;
}

}  // namespace pagoda::fake_cuda

using namespace pagoda::fake_cuda;  // NOLINT: what follows is CUDA's interface, not in a namespace

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
  const int gpu = current_gpu;
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

  const int gpu = current_gpu;
  std::mutex mutex;  // guards the queue
  std::condition_variable changed;
  std::deque<std::function<void()>> queue;
  std::thread thread;
};

int pagoda::fake_cuda::gpu_of(cudaStream_t stream) { return stream->gpu; }

namespace {

void require_current(cudaStream_t stream, const char* call) {
  CHECK(stream->gpu == current_gpu, "%s on a stream of GPU %d while GPU %d is current", call,
        stream->gpu, current_gpu);
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

// Budgeted pages of the host's memory, which may be hidden.
void* map_pages(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(data != MAP_FAILED);
  return data;
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

cudaError_t cudaDriverGetVersion(int* version) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  *version = w.machine.driver;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  const cudaError_t error = outcome("cudaGetDeviceCount");
  if (error != cudaSuccess) return error;
  World& w = world();
  std::lock_guard lock(w.mutex);
  *count = 0;
  if (w.machine.driver / 1000 < CUDART_VERSION / 1000) return cudaErrorInsufficientDriver;
  *count = w.machine.gpus;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int index) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  const std::string name =
      w.machine.model.empty() ? pagoda::strf("Fake %d", index) : w.machine.model;
  std::snprintf(properties->name, sizeof(properties->name), "%s", name.c_str());
  properties->major = w.machine.major;
  properties->minor = w.machine.minor;
  properties->totalGlobalMem = static_cast<size_t>(w.bytes_of(index));
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* address, int bytes, int index) {
  std::snprintf(address, static_cast<size_t>(bytes), "0000:%02x:00.0", index + 1);
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int gpu) {
  const cudaError_t error = outcome("cudaSetDevice");
  if (error != cudaSuccess) return error;
  World& w = world();
  std::lock_guard lock(w.mutex);
  if (gpu < 0 || gpu >= w.machine.gpus) return cudaErrorInvalidDevice;
  current_gpu = gpu;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int gpu, int owner) {
  const cudaError_t error = outcome("cudaDeviceCanAccessPeer");
  if (error != cudaSuccess) return error;
  CHECK(gpu != owner, "a GPU is asked whether it is its own peer");
  World& w = world();
  std::lock_guard lock(w.mutex);
  *can = w.machine.peers ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int owner, unsigned int) {
  const cudaError_t error = outcome("cudaDeviceEnablePeerAccess");
  if (error != cudaSuccess) return error;
  World& w = world();
  std::lock_guard lock(w.mutex);
  CHECK(w.machine.peers && owner != current_gpu, "GPUs are no peers");
  const bool is_new = w.peer_access.insert({current_gpu, owner}).second;
  return is_new ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
}

cudaError_t cudaDeviceSynchronize(void) { return outcome("cudaDeviceSynchronize"); }

cudaError_t cudaGetLastError(void) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  return w.sticky;
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    default:
      return "another error";
  }
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    default:
      return "cudaErrorOther";
  }
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* all_bytes) {
  const cudaError_t error = outcome("cudaMemGetInfo");
  if (error != cudaSuccess) return error;
  World& w = world();
  std::lock_guard lock(w.mutex);
  *all_bytes = static_cast<size_t>(w.bytes_of(current_gpu));
  *free_bytes = *all_bytes - static_cast<size_t>(w.machine.taken_bytes) -
                static_cast<size_t>(w.allocated_bytes[current_gpu]);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const cudaError_t error = outcome("cudaMalloc");
  if (error != cudaSuccess) return error;
  size_t free_bytes = 0, all_bytes = 0;
  cudaMemGetInfo(&free_bytes, &all_bytes);
  if (bytes > free_bytes) return cudaErrorMemoryAllocation;
  void* data = map_pages(bytes);
  std::memset(data, 0xff, bytes);  // NaNs, until someone writes
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.memory[static_cast<std::byte*>(data)] = {bytes, current_gpu};
  w.allocated_bytes[current_gpu] += static_cast<int64_t>(bytes);
  w.counters.allocated_bytes += static_cast<int64_t>(bytes);
  w.counters.most_allocated_bytes =
      std::max(w.counters.most_allocated_bytes, w.counters.allocated_bytes);
  *pointer = data;
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  const auto found = w.memory.find(static_cast<std::byte*>(pointer));
  CHECK(found != w.memory.end() && found->second.gpu == current_gpu);
  munmap(pointer, found->second.bytes);
  w.allocated_bytes[current_gpu] -= static_cast<int64_t>(found->second.bytes);
  w.counters.allocated_bytes -= static_cast<int64_t>(found->second.bytes);
  w.memory.erase(found);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  CHECK(gpu_of(pointer) == current_gpu, "cudaMemset of another GPU's memory");
  std::memset(pointer, value, bytes);
  return outcome("cudaMemset");
}

cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  CHECK((flags & cudaHostAllocPortable) != 0, "pinned for one GPU alone");
  const cudaError_t error = outcome("cudaHostAlloc");
  if (error != cudaSuccess) return error;
  *pointer = map_pages(bytes);
  World& w = world();
  std::lock_guard lock(w.mutex);
  w.memory[static_cast<std::byte*>(*pointer)] = {bytes};
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  const auto found = w.memory.find(static_cast<std::byte*>(pointer));
  CHECK(found != w.memory.end() && found->second.gpu < 0);
  munmap(pointer, found->second.bytes);
  w.memory.erase(found);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int flags) {
  CHECK((flags & cudaHostRegisterPortable) != 0, "pinned for one GPU alone");
  const cudaError_t error = outcome("cudaHostRegister");
  if (error != cudaSuccess) return error;
  World& w = world();
  std::lock_guard lock(w.mutex);
  if (!w.machine.pins) return cudaErrorMemoryAllocation;
  CHECK(find(w, pointer) == nullptr, "pinned twice");
  w.memory[static_cast<std::byte*>(pointer)] = {bytes};
  w.counters.pinned_bytes += static_cast<int64_t>(bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  World& w = world();
  std::lock_guard lock(w.mutex);
  const auto found = w.memory.find(static_cast<std::byte*>(pointer));
  CHECK(found != w.memory.end());
  w.counters.pinned_bytes -= static_cast<int64_t>(found->second.bytes);
  w.memory.erase(found);
  return cudaSuccess;
}

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
  {
    World& w = world();
    std::lock_guard lock(w.mutex);
    CHECK(w.peer_access.contains({target_gpu, source_gpu}), "GPU %d does not reach GPU %d",
          target_gpu, source_gpu);
    w.counters.peer_bytes[{source_gpu, target_gpu}] += static_cast<int64_t>(bytes);
  }
  stream->enqueue([=] { run_copy(target, source, bytes); });
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
