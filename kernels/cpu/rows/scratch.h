// Working memory of kernels: per thread, one buffer per use, grown when needed and kept until the
// thread ends, so that a step allocates nothing. Contents are undefined at each request.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pagoda {

// A buffer is in use from its request until the requesting function returns; uses that nest have
// different names.
enum class Scratch : uint8_t {
  kSharedLeft,    // A made dense or padded before a parallel loop, which only reads it
  kSharedPacked,  // packed B shared by the tiles of a loop
  kSharedSums,    // fp32 sums that outlive one parallel loop
  kPacked,        // one packed B
  kTile,          // fp32 sums of one tile
  kRowA, kRowB, kRowC, kRowD, kRowE,  // rows and small blocks of elementwise kernels
  kGemmWiden, kGemmWork,              // inside gemm
  kCount,
};

// 64-byte aligned, owned by the calling thread.
std::byte* scratch_bytes(Scratch use, int64_t bytes);

inline float* scratch_floats(Scratch use, int64_t count) {
  return reinterpret_cast<float*>(scratch_bytes(use, count * int64_t{sizeof(float)}));
}

// All buffers of the calling thread.
int64_t held_scratch_bytes();

// The most scratch that the kernels of one file ask for: by use on the calling thread, which shares
// it with the others; and all other uses together on every computing thread.
struct ScratchNeed {
  int64_t left_bytes = 0, packed_bytes = 0, sums_bytes = 0;  // kSharedLeft and so on
  int64_t thread_bytes = 0;
};

}  // namespace pagoda
