// machine.cuh on an NVIDIA GPU. The instructions are PTX's (PTX ISA 8: cp.async, ldmatrix, mma);
// those that an architecture lacks trap, and the ops do not launch kernels that need them there.
// Before compute capability 7.5 there is too little to build on.
#pragma once

#include <cuda_runtime.h>

#include "device/cuda_stream.h"
#include "kernels/gpu_scratch.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 750
#error "the kernels take GPUs of compute capability 7.5 and later"
#endif

#define PAGODA_GPU __device__ __forceinline__
#define PAGODA_UNROLL _Pragma("unroll")
#define PAGODA_NO_UNROLL _Pragma("unroll 1")

namespace pagoda::gpu {

PAGODA_GPU int thread_number() { return static_cast<int>(threadIdx.x); }
PAGODA_GPU int warp_number() { return static_cast<int>(threadIdx.x >> 5); }
PAGODA_GPU int lane_number() { return static_cast<int>(threadIdx.x & 31); }
PAGODA_GPU int64_t block_number() { return blockIdx.x; }
PAGODA_GPU unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

PAGODA_GPU void require(bool condition) {
  if (!condition) __trap();
}
PAGODA_GPU void sync_block() { __syncthreads(); }
PAGODA_GPU void sync_warp() { __syncwarp(); }
PAGODA_GPU bool any_in_block(bool condition) { return __syncthreads_or(condition) != 0; }
template <typename T>
PAGODA_GPU T shuffle(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
template <typename T>
PAGODA_GPU T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
PAGODA_GPU uint32_t ballot(bool condition) { return __ballot_sync(0xffffffffu, condition); }

PAGODA_GPU int bits_set(uint32_t word) { return __popc(word); }

PAGODA_GPU uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

PAGODA_GPU void copy_async16(void* shared, const void* global, int bytes) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global)), "r"(bytes)
               : "memory");
#else
  uint4 value = make_uint4(0, 0, 0, 0);
  if (bytes == 16) {
    value = *static_cast<const uint4*>(global);
  } else {
    unsigned char* parts = reinterpret_cast<unsigned char*>(&value);
    for (int i = 0; i < bytes; ++i) parts[i] = static_cast<const unsigned char*>(global)[i];
  }
  *static_cast<uint4*>(shared) = value;
#endif
}
PAGODA_GPU void copy_async16(void* shared, const void* global) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
               "l"(__cvta_generic_to_global(global))
               : "memory");
#else
  *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
#endif
}
PAGODA_GPU void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int kNewest>
PAGODA_GPU void wait_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kNewest) : "memory");
#endif
}

template <bool kTransposed>
PAGODA_GPU void load_matrices(uint32_t (&r)[4], const void* row) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
  }
}

PAGODA_GPU void multiply_add(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 800
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  __trap();
#endif
}

// Before 8.0 two m16n8k8 do this, the only shape on 7.5.
PAGODA_GPU void multiply_add_fp16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ < 800
  PAGODA_UNROLL
  for (int upper = 0; upper < 2; ++upper) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[2 * upper]), "r"(a[2 * upper + 1]), "r"(b[upper]));
  }
#else
  __trap();
#endif
}
PAGODA_GPU uint16_t fp16_bits(float v) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v));
  return bits;
}

template <typename T>
PAGODA_GPU void store_whole(void* target, T value) {
  *static_cast<T*>(target) = value;
}

// NaN becomes 7fff.
PAGODA_GPU uint32_t bf16_pair(float low, float high) {
#if __CUDA_ARCH__ >= 800
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  const auto round = [](float v) {
    const uint32_t w = __float_as_uint(v);
    return (w & 0x7fffffffu) > 0x7f800000u ? 0x7fffu : (w + 0x7fffu + (w >> 16 & 1u)) >> 16;
  };
  return round(low) | round(high) << 16;
#endif
}
PAGODA_GPU float power_of_two_near(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
PAGODA_GPU float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }

PAGODA_GPU uint32_t bits_of(float v) { return __float_as_uint(v); }
PAGODA_GPU float float_of(uint32_t v) { return __uint_as_float(v); }

// The fewest blocks of a kernel that a multiprocessor should have registers for.
template <typename Kernel>
constexpr int blocks_at_once() {
  if constexpr (requires { Kernel::kBlocksAtOnce; }) {
    return Kernel::kBlocksAtOnce;
  } else {
    return 1;
  }
}

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, blocks_at_once<Kernel>())
    run_kernel(const __grid_constant__ Kernel kernel) {
  asm volatile("// shared memory: %0" ::"n"(Kernel::kSharedBytes));  // for tools/kernel_sheet.py
  kernel();
}

class Queue {
 public:
  Queue(Stream& s, const char* op)
      : s_(s), stream_(raw_stream(s)), op_(op), scratch_(s, op) {}

  template <typename Kernel>
  void launch(int64_t blocks, const Kernel& kernel) {
    if (blocks <= 0) return;
    CHECK(blocks <= INT32_MAX, "%s: %lld blocks", op_, static_cast<long long>(blocks));
    if constexpr (Kernel::kSharedBytes > 48 * 1024) {
      check_cuda(cudaFuncSetAttribute(run_kernel<Kernel>,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      Kernel::kSharedBytes),
                 op_, s_);
    }
    run_kernel<Kernel><<<static_cast<unsigned>(blocks), Kernel::kThreads, Kernel::kSharedBytes,
                         stream_>>>(kernel);
    check_cuda(cudaGetLastError(), op_, s_);
  }
  void* allocate(int64_t bytes) { return scratch_.take(bytes); }
  void release(void*) {}
  void zero(void* memory, int64_t bytes) {
    if (bytes == 0) return;
    check_cuda(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream_), op_, s_);
  }

 private:
  Stream& s_;
  cudaStream_t stream_;
  const char* op_;
  OpScratch scratch_;
};

struct Processor {
  bool bf16_cores;  // tensor cores multiply bf16 (compute capability 8.0 and later); else fp16
  int multiprocessors;

  // The processor of the stream's GPU.
  static Processor of(Stream& s) {
    raw_stream(s);  // makes it the thread's
    int device = 0, major = 0, count = 1;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice", s);
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
               "cudaDeviceGetAttribute", s);
    check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device),
               "cudaDeviceGetAttribute", s);
    return {major >= 8, count};
  }
};

}  // namespace pagoda::gpu
