// A machine with GPUs for machines without: the calls of the CUDA runtime that src/device makes,
// implemented on the host. Programs that link it before the runtime run everything but kernels.
//
// A stream is a thread with a queue, device memory is host memory under a budget, an event is a
// count. As strict as CUDA may be: copies from or to memory that is not pinned block the caller
// until they are done, an asynchronous error shows at whatever call comes next, and events and
// streams that are not destroyed are counted. Not a model of speed.
//
// Streams, events and memory belong to the GPU that was the thread's current one. Stricter than
// CUDA: every call on a stream needs its GPU to be current, a copy takes no memory of another GPU
// but by a peer copy between peers, and host memory is pinned for all GPUs. Who breaks that dies of
// a failed CHECK.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace pagoda::fake_cuda {

struct Machine {
  int gpus = 1;
  int driver = 13000;  // newest CUDA it knows; 0: there is no driver
  int major = 9, minor = 0;
  int64_t memory_bytes = int64_t{1} << 30;  // of each GPU
  std::vector<int64_t> memories = {};       // [GPU] instead, of the first ones
  int64_t taken_bytes = 0;                  // of each GPU, taken by others
  std::string model = "";                   // of all GPUs; empty: "Fake 0", "Fake 1", ...
  bool peers = true;                        // GPUs may reach each other's memory
  bool peer_copies_work = true;             // else they bring other bytes
  bool waits_for_values = true;             // cuStreamWaitValue32 is there
  bool pins = true;                         // cudaHostRegister works
};

// Replaces the machine, without errors to come, and counts from zero. REQUIRES: nothing is open.
void start(const Machine& machine);

// The call after `calls` further ones of `call` ("cudaMemcpyAsync") fails.
void fail(const std::string& call, cudaError_t error, int calls = 0);
// The next copy fails while it runs, after the call that enqueued it has succeeded.
void fail_next_copy(cudaError_t error);

// Every piece of work first sleeps for up to `most_us`, drawn with `seed`. 0: none does.
void slow_down(uint32_t seed, int most_us);

// Kernels of sessions that start now are the GPU's, emulated
// (kernels/cuda/machine/machine_emulated.h), and not the CPU's. They take memory of their streams
// alone.
void emulate_kernels(bool emulated);

// Until it is called again with false, reading and writing device memory is for copies alone;
// whoever else does it dies of SIGSEGV.
void hide_memory(bool hidden);

struct Counters {
  int64_t copies = 0, copied_bytes = 0;
  std::map<std::pair<int, int>, int64_t> peer_bytes;  // [from, to]
  int64_t unpinned_bytes = 0;  // copied from or to host memory that is not pinned
  int64_t gates = 0;           // waits for a value
  int64_t event_waits = 0;     // waits of a stream for an event
  int64_t allocated_bytes = 0, pinned_bytes = 0;  // now
  int64_t most_allocated_bytes = 0;
  int64_t streams = 0, events = 0;  // now
};
Counters counters();
std::map<std::string, int64_t> calls();  // [call] how many there were; fail() knows these

// Work of another made-up library, in the stream's order.
void enqueue(cudaStream_t stream, std::function<void()> work);

// The GPU whose memory it is; -1: none's.
int gpu_of(const void* memory);
int gpu_of(cudaStream_t stream);

}  // namespace pagoda::fake_cuda
