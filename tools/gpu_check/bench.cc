#include "tools/gpu_check/bench.h"

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include "base/bytes.h"
#include "base/random.h"
#include "device/cuda_stream.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/expert_ops.h"

namespace pagoda::check {
namespace {

constexpr int64_t kModel = 2048, kInner = 1024;  // OLMoE's sizes
constexpr int64_t kExperts = 8;
constexpr int kRounds = 7;

using Work = std::function<void()>;

// The device's arena before its scratch, given out from its start on.
class Memory {
 public:
  Memory(Device& device, Stream& s)
      : at_(device.arena()), left_(s.scratch().data() - device.arena()) {}
  std::byte* take(int64_t bytes) {
    const int64_t rounded = align_up(bytes, 256);
    CHECK(rounded <= left_, "the benchmark needs more memory");
    std::byte* taken = at_;
    at_ += rounded;
    left_ -= rounded;
    return taken;
  }

 private:
  std::byte* at_;
  int64_t left_;
};

class Bench {
 public:
  Bench(Device& device, Stream& s)
      : s_(s), raw_(raw_stream(s)), ops_(make_cuda_ops(device)),
        experts_(make_cuda_expert_ops(device)), memory_(device, s) {
    check_cuda(cudaEventCreate(&begin_), "cudaEventCreate", s);
    check_cuda(cudaEventCreate(&end_), "cudaEventCreate", s);
    CHECK(cublasCreate(&blas_) == CUBLAS_STATUS_SUCCESS, "cuBLAS does not start");
    CHECK(cublasSetStream(blas_, raw_) == CUBLAS_STATUS_SUCCESS);
  }
  ~Bench() {
    cublasDestroy(blas_);
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  void experts(int64_t tokens_per_expert, bool skewed);
  void attention(int64_t tokens);
  void copies();

 private:
  double time_us(const Work& work) {
    check_cuda(cudaEventRecord(begin_, raw_), "cudaEventRecord", s_);
    work();
    check_cuda(cudaEventRecord(end_, raw_), "cudaEventRecord", s_);
    check_cuda(cudaEventSynchronize(end_), "cudaEventSynchronize", s_);
    float ms = 0.0f;
    check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime", s_);
    return static_cast<double>(ms) * 1e3;
  }
  // Median times of both, after one round to warm up, in turns.
  std::pair<double, double> race(const Work& ours, const Work& theirs) {
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
  void report(const std::string& what, double ratio, double goal, const std::string& more) {
    std::printf("%-44s ratio %.3f  goal %.2f %-8s %s\n", what.c_str(), ratio, goal,
                ratio >= goal ? "met" : "not met", more.c_str());
    std::fflush(stdout);
  }

  bf16* random_bf16(int64_t n, double scale);
  // c (m, n) = a (m, k) b^T, b (n, k): row-major, so cuBLAS sees the transposes.
  void dense(int64_t m, int64_t n, int64_t k, const void* a, const void* b, void* c) {
    const float one = 1.0f, zero = 0.0f;
    const auto i = [](int64_t v) { return static_cast<int>(v); };
    CHECK(cublasGemmEx(blas_, CUBLAS_OP_T, CUBLAS_OP_N, i(n), i(m), i(k), &one, b, CUDA_R_16BF,
                       i(k), a, CUDA_R_16BF, i(k), &zero, c, CUDA_R_16BF, i(n),
                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS);
  }

  Stream& s_;
  cudaStream_t raw_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<ExpertOps> experts_;
  Memory memory_;
  cudaEvent_t begin_, end_;
  cublasHandle_t blas_;
};

// A stretch of random numbers, over and over.
bf16* Bench::random_bf16(int64_t n, double scale) {
  constexpr int64_t kStretch = 1 << 20;
  static std::vector<bf16> stretch;
  stretch.clear();
  for (int64_t i = 0; i < std::min(n, kStretch); ++i) {
    stretch.push_back(bf16_round(static_cast<float>(scale) *
                                 random_normal(7, RandomPurpose::kTest, 2, uint64_t(i))));
  }
  auto* memory = reinterpret_cast<bf16*>(memory_.take(2 * n));
  for (int64_t i = 0; i < n; i += kStretch) {
    s_.copy(memory + i, stretch.data(), 2 * std::min(kStretch, n - i));
  }
  s_.synchronize();
  return memory;
}

// Forward and backward of the experts of a layer, top-1.
void Bench::experts(int64_t tokens_per_expert, bool skewed) {
  const Memory before = memory_;
  const int64_t rows = kExperts * tokens_per_expert;
  std::vector<int32_t> choices;
  for (int64_t i = 0; i < rows; ++i) {
    // Skewed: shares in proportion to 1, 1/2, 1/3 ... of the experts.
    const double u = random_unit(9, RandomPurpose::kTest, 3, uint64_t(i));
    const auto zipf = static_cast<int32_t>(std::pow(double(kExperts) + 1, u)) - 1;
    choices.push_back(skewed ? std::min<int32_t>(zipf, kExperts - 1)
                             : static_cast<int32_t>(i * 5 % kExperts));
  }
  const auto ints = [&](int64_t n) { return reinterpret_cast<int32_t*>(memory_.take(4 * n)); };
  const auto halves = [&](int64_t n) { return memory_.take(2 * n); };
  int32_t *experts = ints(rows), *offsets = ints(kExperts + 1), *index = ints(rows),
          *places = ints(rows);
  s_.copy(experts, choices.data(), 4 * rows);
  const bf16 *x = random_bf16(rows * kModel, 1.0), *dy = random_bf16(rows * kModel, 1.0);
  const bf16* up = random_bf16(kExperts * 2 * kInner * kModel, 0.02);
  const bf16* down = random_bf16(kExperts * kModel * kInner, 0.02);
  std::byte *gate_up = halves(rows * 2 * kInner), *dgate_up = halves(rows * 2 * kInner);
  std::byte *act = halves(rows * kInner), *scaled_act = halves(rows * kInner);
  std::byte *y = halves(rows * kModel), *dact = halves(rows * kInner), *dx = halves(rows * kModel);
  auto* dw = reinterpret_cast<float*>(memory_.take(4 * kExperts * 2 * kInner * kModel));
  const ExpertRows e{offsets, kExperts, rows};
  const Work forward = [&] {
    experts_->reindex(experts, rows, 1, kExperts, offsets, index, places, s_);
    experts_->esmm(DType::kBF16, e, x, index, up, nullptr, kModel, 2 * kInner, DType::kBF16,
                   gate_up, s_);
    ops_->swiglu(DType::kBF16, gate_up, rows, kInner, act, s_);
    experts_->esmm(DType::kBF16, e, act, nullptr, down, nullptr, kInner, kModel, DType::kBF16, y,
                   s_);
  };
  const Work backward = [&] {
    experts_->esfk(DType::kBF16, e, dy, index, act, nullptr, down, kInner, kModel, DType::kBF16,
                   dact, false, dw, nullptr, s_);
    ops_->swiglu_backward(DType::kBF16, gate_up, dact, nullptr, rows, kInner, dgate_up, scaled_act,
                          nullptr, s_);
    experts_->esfk(DType::kBF16, e, dgate_up, nullptr, x, index, up, kModel, 2 * kInner,
                   DType::kBF16, dx, false, dw, nullptr, s_);
  };
  const Work dense_forward = [&] {
    dense(rows, 2 * kInner, kModel, x, up, gate_up);
    dense(rows, kModel, kInner, act, down, y);
  };
  const Work dense_backward = [&] {
    for (int i = 0; i < 2; ++i) dense_forward();
  };
  const double flops = 2.0 * double(rows) * 3 * double(kModel * kInner);
  // What the weights alone take at the speed of a copy inside the device, which reads and writes.
  const int64_t weight_bytes = kExperts * 3 * kModel * kInner * 2;
  std::byte* weights_copy = memory_.take(weight_bytes);
  const Work copy = [&] {
    check_cuda(cudaMemcpyAsync(weights_copy, up, size_t(kExperts * 2 * kInner * kModel * 2),
                               cudaMemcpyDeviceToDevice, raw_), "cudaMemcpyAsync", s_);
  };
  forward();
  const auto [forward_us, dense_us] = race(forward, dense_forward);
  const auto [backward_us, dense_backward_us] = race(backward, dense_backward);
  const double copy_us = race(copy, copy).first;  // of 2/3 of the weights, read and written
  const double floor_us = skewed ? copy_us / 2 * 1.5 : 0.0;
  const std::string name =
      strf("%lld tokens an expert%s", static_cast<long long>(tokens_per_expert),
           skewed ? ", skewed" : "");
  const double goal = skewed ? 0.75 : 0.85;
  report("experts forward, " + name, std::max(dense_us, floor_us) / forward_us, goal,
         strf("%.0f us, %.1f TFLOP/s", forward_us, flops / forward_us * 1e-6));
  report("experts backward, " + name, std::max(dense_backward_us, 2 * floor_us) / backward_us, goal,
         strf("%.0f us, %.1f TFLOP/s", backward_us, 2 * flops / backward_us * 1e-6));
  memory_ = before;
}

// There is no library for attention in the toolkit: compared to a dense product of its flops.
void Bench::attention(int64_t tokens) {
  const Memory before = memory_;
  constexpr int64_t kHeads = 16, kDim = 128;
  const AttentionShape shape{tokens, kHeads, kHeads, kDim, 3 * kHeads * kDim};
  const bf16* qkv = random_bf16(tokens * shape.qkv_stride, 1.0);
  const bf16* dout = random_bf16(tokens * kHeads * kDim, 1.0);
  std::byte* out = memory_.take(2 * tokens * kHeads * kDim);
  std::byte* dqkv = memory_.take(2 * tokens * shape.qkv_stride);
  auto* lse = reinterpret_cast<float*>(memory_.take(4 * tokens * kHeads));
  const int32_t starts[] = {0, static_cast<int32_t>(tokens)};
  const bf16 *k = qkv + kHeads * kDim, *v = k + kHeads * kDim;
  const auto part = [&](int64_t i) { return dqkv + 2 * i * kHeads * kDim; };
  const Work forward = [&] {
    ops_->attention(DType::kBF16, shape, starts, 1, qkv, k, v, out, lse, s_);
  };
  const Work backward = [&] {
    ops_->attention_backward(DType::kBF16, shape, starts, 1, qkv, k, v, out, lse, dout, part(0),
                             part(1), part(2), s_);
  };
  // Causal: half of 4 T^2 d flops a head forward; two products and a half as many back.
  const double flops = 2.0 * double(tokens) * double(tokens) * double(kHeads * kDim);
  const int64_t side = 4096;
  const bf16 *a = random_bf16(side * side, 1.0), *b = random_bf16(side * side, 1.0);
  std::byte* c = memory_.take(2 * side * side);
  const Work product = [&] { dense(side, side, side, a, b, c); };
  const double product_flops = 2.0 * double(side) * double(side) * double(side);
  const auto line = [&](const char* what, const Work& work, double work_flops) {
    const auto [us, product_us] = race(work, product);
    const double rate = work_flops / us, product_rate = product_flops / product_us;
    std::printf("%-44s %.0f us, %.1f TFLOP/s, %.3f of a cuBLAS product's rate\n",
                strf("attention %s, %lld tokens", what, static_cast<long long>(tokens)).c_str(), us,
                rate * 1e-6, rate / product_rate);
  };
  line("forward", forward, flops);
  line("backward", backward, 2.5 * flops);
  memory_ = before;
}

// Both directions at once, our streams' copies against bare ones.
void Bench::copies() {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const Memory before = memory_;
  void* pinned[2];
  for (void*& host : pinned) {
    check_cuda(cudaHostAlloc(&host, kBytes, cudaHostAllocDefault), "cudaHostAlloc", s_);
  }
  std::byte *down = memory_.take(kBytes), *up = memory_.take(kBytes);
  for (int both = 0; both < 2; ++both) {
    cudaStream_t other;
    cudaEvent_t other_end;
    check_cuda(cudaStreamCreate(&other), "cudaStreamCreate", s_);
    check_cuda(cudaEventCreate(&other_end), "cudaEventCreate", s_);
    const auto bare_back = [&] {
      check_cuda(cudaMemcpyAsync(pinned[1], up, kBytes, cudaMemcpyDeviceToHost, other),
                 "cudaMemcpyAsync", s_);
      check_cuda(cudaEventRecord(other_end, other), "cudaEventRecord", s_);
      check_cuda(cudaStreamWaitEvent(raw_, other_end, 0), "cudaStreamWaitEvent", s_);
    };
    const Work ours = [&] {
      s_.copy(down, pinned[0], kBytes);
      if (both != 0) bare_back();
    };
    const Work bare = [&] {
      check_cuda(cudaMemcpyAsync(down, pinned[0], kBytes, cudaMemcpyHostToDevice, raw_),
                 "cudaMemcpyAsync", s_);
      if (both != 0) bare_back();
    };
    const auto [us, bare_us] = race(ours, bare);
    const double bytes = double(kBytes) * (both + 1);
    report(both != 0 ? "copies to and from the device" : "copies to the device", bare_us / us, 0.95,
           strf("%.1f GB/s", bytes / us * 1e-3));
    cudaEventDestroy(other_end);
    cudaStreamDestroy(other);
  }
  for (void* host : pinned) cudaFreeHost(host);
  memory_ = before;
}

}  // namespace

void run_benches(Device& device, Stream& stream) {
  Bench bench(device, stream);
  for (int64_t tokens : {512, 1024, 2048, 4096}) bench.experts(tokens, false);
  for (int64_t tokens : {64, 128, 256}) bench.experts(tokens, true);
  for (int64_t tokens : {2048, 8192}) bench.attention(tokens);
  bench.copies();
}

}  // namespace pagoda::check
