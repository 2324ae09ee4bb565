#include "tools/gpu_check/bench.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "base/random.h"

namespace pagoda::check {
namespace {

constexpr int kRounds = 7;

}  // namespace

Bench::Bench(Device& on, Stream& stream)
    : device(on),
      s(stream),
      raw(raw_stream(stream)),
      ops(make_cuda_ops(on, Libraries{})),
      library(open_library(stream)),
      arena(on, stream) {
  check(cudaEventCreate(&begin_), "cudaEventCreate");
  check(cudaEventCreate(&end_), "cudaEventCreate");
}

Bench::~Bench() {
  cudaEventDestroy(begin_);
  cudaEventDestroy(end_);
}

double Bench::time_us(const Work& work) {
  check(cudaEventRecord(begin_, raw), "cudaEventRecord");
  work();
  check(cudaEventRecord(end_, raw), "cudaEventRecord");
  check(cudaEventSynchronize(end_), "cudaEventSynchronize");
  float ms = 0.0f;
  check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
  return static_cast<double>(ms) * 1e3;
}

std::pair<double, double> Bench::race(const Work& ours, const Work& theirs) {
  std::vector<double> a, b;
  for (int i = 0; i <= kRounds; ++i) {
    const double us = time_us(ours), other_us = time_us(theirs);
    if (i == 0) continue;
    a.push_back(us);
    b.push_back(other_us);
  }
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return {a[kRounds / 2], b[kRounds / 2]};
}

// A stretch of random numbers, over and over.
bf16* Bench::random_bf16(int64_t n, double scale) {
  constexpr int64_t kStretch = 1 << 20;
  std::vector<bf16> stretch;
  for (int64_t i = 0; i < std::min(n, kStretch); ++i) {
    stretch.push_back(bf16_round(static_cast<float>(scale) *
                                 random_normal(7, RandomPurpose::kTest, 2, uint64_t(i))));
  }
  bf16* memory = arena.take_as<bf16>(n);
  for (int64_t i = 0; i < n; i += kStretch) {
    s.copy(memory + i, stretch.data(), 2 * std::min(kStretch, n - i));
  }
  s.synchronize();
  return memory;
}

void print_line(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

void run_benches(Device& device, Stream& stream) {
  Bench bench(device, stream);
  if (!bench.library) print_line("no cuBLAS in this toolkit: what is compared to it is not rated");
  for (const auto part : {bench_experts, bench_attention, bench_memory, bench_copies}) {
    const Arena before = bench.arena;
    part(bench);
    bench.arena = before;
  }
  print_line(bench.scores.summary());
}

}  // namespace pagoda::check
