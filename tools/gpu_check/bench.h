// The benchmarks of gpu_check: times on the GPU by events, warm, of random data, in turns with what
// they are compared to; medians. A file a subject.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <utility>

#include "device/cuda_stream.h"
#include "device/device.h"
#include "kernels/cuda/cuda_ops.h"
#include "tools/gpu_check/arena.h"
#include "tools/gpu_check/library.h"
#include "tools/gpu_check/scores.h"

namespace pagoda::check {

using Work = std::function<void()>;

// What all benchmarks share.
struct Bench {
  Bench(Device& device, Stream& s);
  ~Bench();

  double time_us(const Work& work);
  // Median times of both, after one round to warm up, in turns.
  std::pair<double, double> race(const Work& ours, const Work& theirs);
  double median_us(const Work& work) { return race(work, [] {}).first; }
  bf16* random_bf16(int64_t n, double scale);
  void check(cudaError_t error, const char* call) { check_cuda(error, call, s); }

  Device& device;
  Stream& s;
  cudaStream_t raw;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Library> library;  // nullptr: none
  Arena arena;
  Scores scores;

 private:
  cudaEvent_t begin_, end_;
};

void print_line(const std::string& line);

void bench_experts(Bench& b);
void bench_attention(Bench& b);
void bench_memory(Bench& b);
void bench_copies(Bench& b);

// All of them.
void run_benches(Device& device, Stream& stream);

}  // namespace pagoda::check
