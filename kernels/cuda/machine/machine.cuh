// The parts of a machine that kernels use, under one set of names with two implementations: the GPU
// (machine_gpu.cuh, when nvcc compiles) and an emulation on the host (machine_emulated.h, when the
// C++ compiler does). Kernels and the ops that launch them are written once, in .cu files; the
// build compiles these twice, so that index arithmetic, barriers and numbers are tested without a
// GPU. Code stands in namespace PAGODA_MACHINE, which is `gpu` or `emulated`.
//
// A kernel is a struct: its fields are its arguments, operator() is what a thread does, kThreads
// its block, kSharedBytes its shared memory:
//
//   struct Fill {
//     static constexpr int kThreads = 256, kSharedBytes = 0;
//     float* x; int64_t n;
//     PAGODA_GPU void operator()() const {
//       const int64_t i = block_number() * kThreads + thread_number();
//       if (i < n) x[i] = 0.0f;
//     }
//   };
//   Queue(s, "fill").launch(div_ceil(n, Fill::kThreads), Fill{x, n});
//
// Collectives (sync, shuffle, ballot, load_matrices, multiply_add) are for all lanes of a warp at
// once. Both machines offer:
//
//   thread_number() warp_number() lane_number() block_number() shared_memory()
//   sync_block() sync_warp() any_in_block(condition)
//   shuffle(value, lane) shuffle_xor(value, mask) ballot(condition) bits_set(word)
//   copy_async16(shared, global, bytes): bytes <= 16 of 16, zeros behind; without `bytes` all 16.
//     commit_copies(); wait_copies<N>(): all but the newest N commits have arrived, for the thread
//     that asked
//   load_matrices<transposed>(r, row): four 8x8 matrices of 16-bit elements (PTX ldmatrix.x4): the
//     lanes' addresses are those of their rows, eight lanes a matrix
//   multiply_add(c, a, b): c += a b of bf16 m16n8k16 (PTX mma.sync), sums in fp32; what processors
//     before 8.0 lack. multiply_add_fp16(c, a, b): the same of fp16; for those alone
//   store_whole(target, value): at once, where target is aligned for it
//   fp16_bits(value), bf16_pair(low, high): rounded to nearest, ties to even
//   power_of_two_near(x): 2^x with a relative error below 2^-21
//   fused(a, b, c): a b + c, rounded once
//   require(condition): traps
//   Queue(stream, op): launch(blocks, kernel), allocate(bytes) from the stream's scratch,
//     release(memory), zero(memory, bytes): asynchronous, in the stream's order; an error ends the
//     program naming op and stream
//   Processor: what the device has
#pragma once

#include <cstdint>

#include "base/bytes.h"
#include "base/dtype.h"
#include "device/device.h"
#include "kernels/cuda/machine/reindex.h"

#if defined(__CUDACC__)
#define PAGODA_MACHINE gpu
#include "kernels/cuda/machine/machine_gpu.cuh"
#else
#define PAGODA_MACHINE emulated
#include "kernels/cuda/machine/machine_emulated.h"
#endif

namespace pagoda::PAGODA_MACHINE {

inline constexpr int kWarp = 32;

// Memory in a stream's order: work that is launched while this object lives may use it.
template <typename T>
class Temporary {
 public:
  Temporary(Queue& queue, int64_t n)
      : queue_(queue), data_(static_cast<T*>(
            queue.allocate((n > 0 ? n : 1) * static_cast<int64_t>(sizeof(T))))) {}
  ~Temporary() { queue_.release(data_); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  T* get() const { return data_; }

 private:
  Queue& queue_;
  T* data_;
};

// Writes numbers of the host to device memory as arguments of kernels: unlike a copy from pageable
// memory this never waits for the device.
struct WriteWords {
  static constexpr int kThreads = 256, kSharedBytes = 0, kWords = 896;
  int32_t* target;
  int count;
  int32_t words[kWords];
  PAGODA_GPU void operator()() const {
    for (int i = thread_number(); i < count; i += kThreads) target[i] = words[i];
  }
};

// Writes n values of T, whose size is a multiple of 4, to device memory.
template <typename T>
void upload(Queue& queue, T* target, const T* source, int64_t n) {
  static_assert(sizeof(T) % 4 == 0);
  const int64_t words = n * static_cast<int64_t>(sizeof(T) / 4);
  for (int64_t at = 0; at < words; at += WriteWords::kWords) {
    WriteWords write;
    const int64_t left = words - at;
    write.count = static_cast<int>(left < WriteWords::kWords ? left : WriteWords::kWords);
    write.target = reinterpret_cast<int32_t*>(target) + at;
    __builtin_memcpy(write.words, reinterpret_cast<const char*>(source) + 4 * at,
                     static_cast<size_t>(write.count) * 4);
    queue.launch(1, write);
  }
}

}  // namespace pagoda::PAGODA_MACHINE
