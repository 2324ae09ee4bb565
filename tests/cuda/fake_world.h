// What the parts of the made-up CUDA runtime share (fake_cuda.h): the machine, its memory and what
// goes wrong on it. Internal to them.
#pragma once

#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "tests/cuda/fake_cuda.h"

namespace pagoda::fake_cuda {

struct Allocation {
  size_t bytes = 0;
  int gpu = -1;  // whose memory it is; -1: the host's
};

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

World& world();

// The calling thread's GPU.
int& current_gpu();

// What a call returns: what it is made to, or what went wrong before.
cudaError_t outcome(const char* call);
// Returns outcome(), and counts what a success makes or ends.
cudaError_t counted(const char* call, int64_t Counters::*counter);
void uncount(int64_t Counters::*counter);

// The allocation that has the pointer; nullptr: it is pageable. REQUIRES: the world is locked.
const Allocation* find(World& w, const void* pointer);
void protect_device_memory(World& w, int protection);  // the same is required

}  // namespace pagoda::fake_cuda
