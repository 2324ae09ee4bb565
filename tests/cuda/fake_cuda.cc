// The made-up machine, its GPUs and their memory.
#include <sys/mman.h>

#include <cstring>

#include "base/check.h"
#include "tests/cuda/fake_world.h"

namespace pagoda::fake_cuda {

World& world() {
  static World* const world = new World;  // streams may outlive main's statics
  return *world;
}

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

int& current_gpu() {
  thread_local int gpu = 0;
  return gpu;
}

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

namespace {

// Budgeted pages of the host's memory, which may be hidden.
void* map_pages(size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(data != MAP_FAILED);
  return data;
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
  current_gpu() = gpu;
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
  CHECK(w.machine.peers && owner != current_gpu(), "GPUs are no peers");
  const bool is_new = w.peer_access.insert({current_gpu(), owner}).second;
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
  *all_bytes = static_cast<size_t>(w.bytes_of(current_gpu()));
  *free_bytes = *all_bytes - static_cast<size_t>(w.machine.taken_bytes) -
                static_cast<size_t>(w.allocated_bytes[current_gpu()]);
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
  w.memory[static_cast<std::byte*>(data)] = {bytes, current_gpu()};
  w.allocated_bytes[current_gpu()] += static_cast<int64_t>(bytes);
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
  CHECK(found != w.memory.end() && found->second.gpu == current_gpu());
  munmap(pointer, found->second.bytes);
  w.allocated_bytes[current_gpu()] -= static_cast<int64_t>(found->second.bytes);
  w.counters.allocated_bytes -= static_cast<int64_t>(found->second.bytes);
  w.memory.erase(found);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* pointer, int value, size_t bytes) {
  CHECK(gpu_of(pointer) == current_gpu(), "cudaMemset of another GPU's memory");
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

}  // extern "C"
