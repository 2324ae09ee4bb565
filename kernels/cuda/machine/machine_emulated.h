// machine.cuh on the host, one block after the other. The threads of a block are fibers of the
// calling thread that run until they must wait for each other. It is stricter than a GPU where that
// finds mistakes: shared memory begins as NaN, asynchronous copies arrive only when they are waited
// for, a collective or barrier that not all threads reach is a failed CHECK, and the order in which
// blocks and warps run can be reversed, so that a missing barrier shows as other bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "device/device.h"
#include "kernels/gpu_scratch.h"

#define PAGODA_GPU inline
#define PAGODA_UNROLL
#define PAGODA_NO_UNROLL

namespace pagoda::emulated {

// The running thread's place in its block, and the memory in which collectives meet.
struct Place {
  int thread = 0;
  int64_t block = 0;
  unsigned char* shared = nullptr;
};
extern thread_local Place place;

inline int thread_number() { return place.thread; }
inline int warp_number() { return place.thread / 32; }
inline int lane_number() { return place.thread % 32; }
inline int64_t block_number() { return place.block; }
inline unsigned char* shared_memory() { return place.shared; }

void require(bool condition);
void sync_block();
inline bool any_in_block(bool condition);

// A lane's contribution to a collective, which all lanes can read after they met.
struct Brought {
  static constexpr int kBytes = 64;
  alignas(16) unsigned char bytes[kBytes];
};
// Leaves `size` bytes for the other lanes and waits for them. Then brought_by(lane) gives their
// bytes, until the next meeting but one.
void meet_warp(const void* data, int size);
const void* brought_by(int lane);
void sync_warp();

template <typename T>
T shuffle(T value, int lane) {
  static_assert(sizeof(T) <= Brought::kBytes && std::is_trivially_copyable_v<T>);
  meet_warp(&value, sizeof value);
  T other;
  std::memcpy(&other, brought_by(lane), sizeof other);
  return other;
}
template <typename T>
T shuffle_xor(T value, int mask) {
  return shuffle(value, lane_number() ^ mask);
}
uint32_t ballot(bool condition);
inline int bits_set(uint32_t word) { return std::popcount(word); }

void copy_async16(void* shared, const void* global, int bytes = 16);
void commit_copies();
void wait_copies_but(int newest);
template <int kNewest>
void wait_copies() {
  wait_copies_but(kNewest);
}

void load_matrices(uint32_t (&r)[4], const void* row, bool transposed);
template <bool kTransposed>
void load_matrices(uint32_t (&r)[4], const void* row) {
  load_matrices(r, row, kTransposed);
}
void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void multiply_add_fp16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
uint16_t fp16_bits(float v);

template <typename T>
void store_whole(void* target, T value) {
  std::memcpy(target, &value, sizeof value);
}
uint32_t bf16_pair(float low, float high);
inline float power_of_two_near(float x) { return std::exp2(x); }
inline float fused(float a, float b, float c) { return std::fma(a, b, c); }

inline uint32_t bits_of(float v) { return std::bit_cast<uint32_t>(v); }
inline float float_of(uint32_t v) { return std::bit_cast<float>(v); }

// Votes of a block; any_in_block is a barrier.
bool vote_in_block(bool condition);
inline bool any_in_block(bool condition) { return vote_in_block(condition); }

// Runs `kernel` in every thread of every block. Blocks and warps go backwards while
// run_backwards(true): a correct kernel cannot tell.
void run_blocks(int64_t blocks, int threads, int shared_bytes,
                const std::function<void()>& kernel);
void run_backwards(bool backwards);

// Whether ops on a stream without scratch take the host's heap, as they do at first. Else such an
// op that wants memory is a failed CHECK, as on a GPU.
void take_heap(bool allowed);

class Queue {
 public:
  Queue(Stream& s, const char* op) : stream_(s), scratch_(s, op) {}
  template <typename Kernel>
  void launch(int64_t blocks, const Kernel& kernel) {
    stream_.enqueue([blocks, kernel] {
      run_blocks(blocks, Kernel::kThreads, Kernel::kSharedBytes, [&kernel] { kernel(); });
    });
  }
  void* allocate(int64_t bytes);  // the memory begins as NaN
  void release(void* memory);
  void zero(void* memory, int64_t bytes) {
    stream_.enqueue([=] {
      if (bytes > 0) std::memset(memory, 0, static_cast<size_t>(bytes));
    });
  }

 private:
  bool takes_heap() const;

  Stream& stream_;
  OpScratch scratch_;
};

struct Processor {
  bool bf16_cores;
  int multiprocessors;
};

}  // namespace pagoda::emulated
