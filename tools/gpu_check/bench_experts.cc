// The products of a layer's experts, forward and backward, top-1: beside one dense product of their
// flops, the library's products of experts in a loop and in one call, torch._grouped_mm, and what a
// step does that copies rows, whose experts are pages: groups of row blocks. (Where there is room a
// step reads rows in place.)
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

#include "base/bytes.h"
#include "base/random.h"
#include "tools/gpu_check/bench.h"

namespace pagoda::check {
namespace {

constexpr int64_t kModel = 2048, kInner = 1024, kExperts = 8;  // OLMoE's sizes
constexpr int64_t kEven[] = {512, 1024, 2048, 4096}, kSkewed[] = {64, 128, 256};

// Ops whose products of experts are a library's.
std::unique_ptr<Ops> open_by_library(Bench& b) {
  Result<std::shared_ptr<LibraryProducts>> library = open_library_products(b.s);
  return library.ok() ? make_cuda_ops(b.device, {.experts = library.value()}) : nullptr;
}

class ExpertBench {
 public:
  ExpertBench(Bench& b, int64_t tokens_per_expert, bool skewed);
  // torch_us: of torch._grouped_mm's forward; 0: not there.
  void run(double torch_us);

 private:
  // In place: experts read tokens where they are.
  void forward();
  void backward();
  void locate(const bf16* tokens, const void** rows);
  std::vector<RowsOfWeight> weights(const bf16* w, int64_t elements) const;
  std::vector<RowsOfGradient> gradients(int64_t elements) const;
  void dense_forward();
  void forward_by_expert();
  std::string library_groups();
  void forward_in_groups(int64_t group_blocks);
  double floor_us();
  void compare(const char* what, const Work& ours, const Work& dense, double goal, double least_us,
               double flops, const std::string& others);

  Bench& b_;
  const std::unique_ptr<Ops> by_library_;  // nullptr: there is none
  const int64_t tokens_, rows_;
  const bool skewed_;
  std::vector<int64_t> counts_;
  int32_t *choices_, *index_, *places_;
  const void **x_rows_, **dy_rows_;
  const bf16 *x_, *dy_, *up_, *down_;
  bf16 *gate_up_, *dgate_up_, *act_, *scaled_act_, *y_, *dact_, *dx_, *sorted_;
  float* dw_;
};

ExpertBench::ExpertBench(Bench& b, int64_t tokens_per_expert, bool skewed)
    : b_(b),
      by_library_(open_by_library(b)),
      tokens_(tokens_per_expert),
      rows_(kExperts * tokens_per_expert),
      skewed_(skewed),
      counts_(kExperts, 0) {
  std::vector<int32_t> choices;
  for (int64_t i = 0; i < rows_; ++i) {
    // Skewed: shares in proportion to 1, 1/2, 1/3 ... of the experts.
    const double u = random_unit(9, RandomPurpose::kTest, 3, uint64_t(i));
    const auto zipf = static_cast<int32_t>(std::pow(double(kExperts) + 1, u)) - 1;
    choices.push_back(skewed ? std::min<int32_t>(zipf, kExperts - 1)
                             : static_cast<int32_t>(i * 5 % kExperts));
    ++counts_[size_t(choices.back())];
  }
  Arena& arena = b.arena;
  choices_ = arena.take_as<int32_t>(rows_);
  x_rows_ = arena.take_as<const void*>(rows_);
  dy_rows_ = arena.take_as<const void*>(rows_);
  index_ = arena.take_as<int32_t>(rows_);
  places_ = arena.take_as<int32_t>(rows_);
  b.s.copy(choices_, choices.data(), 4 * rows_);
  x_ = b.random_bf16(rows_ * kModel, 1.0);
  dy_ = b.random_bf16(rows_ * kModel, 1.0);
  up_ = b.random_bf16(kExperts * 2 * kInner * kModel, 0.02);
  down_ = b.random_bf16(kExperts * kModel * kInner, 0.02);
  gate_up_ = arena.take_as<bf16>(rows_ * 2 * kInner);
  dgate_up_ = arena.take_as<bf16>(rows_ * 2 * kInner);
  act_ = arena.take_as<bf16>(rows_ * kInner);
  scaled_act_ = arena.take_as<bf16>(rows_ * kInner);
  y_ = arena.take_as<bf16>(rows_ * kModel);
  dact_ = arena.take_as<bf16>(rows_ * kInner);
  dx_ = arena.take_as<bf16>(rows_ * kModel);
  sorted_ = arena.take_as<bf16>(rows_ * kModel);
  dw_ = arena.take_as<float>(kExperts * 2 * kInner * kModel);
}

static_assert(kExperts <= kMostTogether);

void ExpertBench::locate(const bf16* tokens, const void** rows) {
  const RowRun all{0, 0, rows_};
  b_.ops->locate_rows(DType::kBF16, tokens, index_, {&all, 1}, kModel, rows, b_.s);
}

std::vector<RowsOfWeight> ExpertBench::weights(const bf16* w, int64_t elements) const {
  std::vector<RowsOfWeight> weights;
  int64_t row = 0;
  for (size_t e = 0; e < counts_.size(); row += counts_[e++]) {
    weights.push_back({row, counts_[e], w + static_cast<int64_t>(e) * elements});
  }
  return weights;
}

std::vector<RowsOfGradient> ExpertBench::gradients(int64_t elements) const {
  std::vector<RowsOfGradient> gradients;
  int64_t row = 0;
  for (size_t e = 0; e < counts_.size(); row += counts_[e++]) {
    gradients.push_back({row, counts_[e], dw_ + static_cast<int64_t>(e) * elements});
  }
  return gradients;
}

void ExpertBench::forward() {
  std::vector<int64_t> first(counts_.size(), 0);
  for (size_t e = 1; e < first.size(); ++e) first[e] = first[e - 1] + counts_[e - 1];
  b_.ops->index_rows(choices_, rows_, 1, kExperts, first.data(), index_, places_, b_.s);
  locate(x_, x_rows_);
  b_.ops->grouped_linear(DType::kBF16, InputRows::at(x_rows_), weights(up_, 2 * kInner * kModel),
                         kModel, 2 * kInner, DType::kBF16, gate_up_, b_.s);
  b_.ops->swiglu(DType::kBF16, {}, gate_up_, rows_, kInner, act_, b_.s);
  b_.ops->grouped_linear(DType::kBF16, act_, weights(down_, kInner * kModel), kInner, kModel,
                         DType::kBF16, y_, b_.s);
}

void ExpertBench::backward() {
  locate(dy_, dy_rows_);
  const InputRows x = InputRows::at(x_rows_), dy = InputRows::at(dy_rows_);
  b_.ops->grouped_linear_backward_input(DType::kBF16, dy, weights(down_, kInner * kModel), kInner,
                                        kModel, DType::kBF16, dact_, b_.s);
  b_.ops->grouped_linear_backward_weight(DType::kBF16, dy, act_, gradients(kInner * kModel), kInner,
                                         kModel, b_.s);
  b_.ops->swiglu_backward(DType::kBF16, {}, gate_up_, dact_, nullptr, rows_, kInner, dgate_up_,
                          scaled_act_, nullptr, b_.s);
  b_.ops->grouped_linear_backward_weight(DType::kBF16, dgate_up_, x, gradients(2 * kInner * kModel),
                                         kModel, 2 * kInner, b_.s);
  b_.ops->grouped_linear_backward_input(DType::kBF16, dgate_up_, weights(up_, 2 * kInner * kModel),
                                        kModel, 2 * kInner, DType::kBF16, dx_, b_.s);
}

void ExpertBench::dense_forward() {
  b_.library->multiply(rows_, 2 * kInner, kModel, x_, up_, gate_up_);
  b_.library->multiply(rows_, kModel, kInner, act_, down_, y_);
}

// What one does with a library: tokens sorted by a copy, then a product an expert.
void ExpertBench::forward_by_expert() {
  b_.ops->gather_rows(DType::kBF16, x_, index_, rows_, kModel, sorted_, b_.s);
  int64_t row = 0;
  for (size_t e = 0; e < counts_.size(); row += counts_[e++]) {
    b_.library->multiply(counts_[e], 2 * kInner, kModel, sorted_ + row * kModel,
                         up_ + int64_t(e) * 2 * kInner * kModel, gate_up_ + row * 2 * kInner);
  }
  b_.ops->swiglu(DType::kBF16, {}, gate_up_, rows_, kInner, act_, b_.s);
  row = 0;
  for (size_t e = 0; e < counts_.size(); row += counts_[e++]) {
    b_.library->multiply(counts_[e], kModel, kInner, act_ + row * kInner,
                         down_ + int64_t(e) * kModel * kInner, y_ + row * kModel);
  }
}

// Times the library's grouped call. A step may use one only if an expert has the same bits alone
// and in a group, since budgets decide which are computed together.
std::string ExpertBench::library_groups() {
  if (!by_library_) return "";
  const std::vector<RowsOfWeight> up = weights(up_, 2 * kInner * kModel),
                                  down = weights(down_, kInner * kModel);
  const auto multiply_down = [&](std::span<const RowsOfWeight> experts) {
    by_library_->grouped_linear(DType::kBF16, act_, experts, kInner, kModel, DType::kBF16, y_,
                                b_.s);
  };
  const double us = b_.median_us([&] {
    b_.ops->gather_rows(DType::kBF16, x_, index_, rows_, kModel, sorted_, b_.s);
    by_library_->grouped_linear(DType::kBF16, sorted_, up, kModel, 2 * kInner, DType::kBF16,
                                gate_up_, b_.s);
    b_.ops->swiglu(DType::kBF16, {}, gate_up_, rows_, kInner, act_, b_.s);
    multiply_down(down);
  });
  const auto outputs = [&] {
    std::vector<bf16> y(static_cast<size_t>(rows_ * kModel));
    b_.s.copy(y.data(), y_, std::ssize(y) * int64_t{sizeof(bf16)});
    b_.s.synchronize();
    return y;
  };
  const std::vector<bf16> together = outputs();
  for (const RowsOfWeight& expert : down) multiply_down({&expert, 1});
  const std::vector<bf16> alone = outputs();
  const bool same = std::memcmp(together.data(), alone.data(), together.size() * sizeof(bf16)) == 0;
  return strf(", %s's groups %.0f us (%s bits alone)", library_products_name().c_str(), us,
              same ? "the same" : "OTHER");
}

// Computes like a step that copies rows: at most group_blocks row blocks at a time, whose rows are
// gathered in one place.
void ExpertBench::forward_in_groups(int64_t group_blocks) {
  int64_t begin = 0, row = 0, room = group_blocks;
  std::vector<RowsOfWeight> up, down;
  const auto compute = [&] {
    const RowRun run{begin, 0, row - begin};
    b_.ops->gather_row_runs(DType::kBF16, x_, index_, {&run, 1}, kModel, sorted_, b_.s);
    b_.ops->grouped_linear(DType::kBF16, sorted_, up, kModel, 2 * kInner, DType::kBF16, gate_up_,
                           b_.s);
    b_.ops->swiglu(DType::kBF16, {}, gate_up_, run.count, kInner, act_, b_.s);
    b_.ops->grouped_linear(DType::kBF16, act_, down, kInner, kModel, DType::kBF16, y_, b_.s);
    up.clear();
    down.clear();
    begin = row;
    room = group_blocks;
  };
  for (size_t e = 0; e < counts_.size(); ++e) {
    for (int64_t done = 0; done < counts_[e];) {
      const int64_t n = std::min(room * kRowBlock, counts_[e] - done);
      up.push_back({row - begin, n, up_ + int64_t(e) * 2 * kInner * kModel});
      down.push_back({row - begin, n, down_ + int64_t(e) * kModel * kInner});
      row += n;
      done += n;
      room -= div_ceil(n, kRowBlock);
      if (room == 0) compute();
    }
  }
  if (!up.empty()) compute();
}

// What reading the weights takes at the speed of a copy inside the device, which reads and writes.
double ExpertBench::floor_us() {
  const size_t bytes = size_t(kExperts * 2 * kInner * kModel * 2);  // up's: 2/3 of the weights
  void* target = dw_;
  const double us = b_.median_us([&] {
    b_.check(cudaMemcpyAsync(target, up_, bytes, cudaMemcpyDeviceToDevice, b_.raw),
             "cudaMemcpyAsync");
  });
  return us / 2 * 1.5;
}

void ExpertBench::compare(const char* what, const Work& ours, const Work& dense, double goal,
                          double least_us, double flops, const std::string& others) {
  const std::string name = strf("experts %s, %lld tokens an expert%s", what,
                                static_cast<long long>(tokens_), skewed_ ? ", skewed" : "");
  if (!b_.library) {
    const double us = b_.median_us(ours);
    return print_line(strf("      %-44s %.0f us, %.1f TFLOP/s%s", name.c_str(), us,
                           flops / us * 1e-6, others.c_str()));
  }
  const auto [us, dense_us] = b_.race(ours, dense);
  print_line(b_.scores.at_least(name, std::max(dense_us, least_us) / us, goal,
                                strf("%.0f us, %.1f TFLOP/s, dense %.0f us%s", us,
                                     flops / us * 1e-6, dense_us, others.c_str())));
}

void ExpertBench::run(double torch_us) {
  const double flops = 2.0 * double(rows_) * 3 * double(kModel * kInner);
  const double goal = skewed_ ? 0.75 : 0.85, least_us = skewed_ ? floor_us() : 0.0;
  forward();
  std::string others;
  if (b_.library) {
    others = strf(", by expert %.0f us", b_.median_us([&] { forward_by_expert(); }));
  }
  others += library_groups();
  others += strf(", in groups of 16 row blocks %.0f us, of one %.0f us",
                 b_.median_us([&] { forward_in_groups(16); }),
                 b_.median_us([&] { forward_in_groups(1); }));
  if (torch_us > 0.0) others += strf(", torch %.0f us", torch_us);
  forward();
  compare("forward", [&] { forward(); }, [&] { dense_forward(); }, goal, least_us, flops, others);
  forward();
  const Work dense_backward = [&] {
    for (int i = 0; i < 2; ++i) dense_forward();
  };
  compare("backward", [&] { backward(); }, dense_backward, goal, 2 * least_us, 2 * flops, "");
}

// Times by tokens an expert of another process, which has PyTorch or says that it has not.
std::map<int64_t, double> torch_times() {
  std::string command = strf("timeout 100 python3 %s/grouped_mm.py %lld %lld %lld",
                             PAGODA_GPU_CHECK_DIR, static_cast<long long>(kExperts),
                             static_cast<long long>(kModel), static_cast<long long>(kInner));
  for (int64_t tokens : kEven) command += strf(" %lld", static_cast<long long>(tokens));
  std::map<int64_t, double> times;
  std::FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r");
  if (pipe == nullptr) return times;
  char line[256];
  while (std::fgets(line, sizeof line, pipe) != nullptr) {
    long long tokens = 0;
    double us = 0.0;
    if (std::sscanf(line, "%lld %lf", &tokens, &us) == 2) {
      times[tokens] = us;
    } else {
      std::printf("      torch._grouped_mm is not compared: %s", line);
    }
  }
  if (pclose(pipe) != 0 && times.empty()) print_line("      torch._grouped_mm: not there");
  return times;
}

}  // namespace

void bench_experts(Bench& b) {
  std::map<int64_t, double> torch = torch_times();
  const auto run = [&](int64_t tokens, bool skewed) {
    const Arena before = b.arena;
    ExpertBench(b, tokens, skewed).run(skewed ? 0.0 : torch[tokens]);
    b.arena = before;
  };
  for (int64_t tokens : kEven) run(tokens, false);
  for (int64_t tokens : kSkewed) run(tokens, true);
}

}  // namespace pagoda::check
