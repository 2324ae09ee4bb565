// gpu_check: is this GPU one that Pagoda computes right on, and how fast. Every op of kernels/cuda
// against the CPU's, then ratios side by side with cuBLAS and bare copies.
//
//   gpu_check [--ops]      --ops: without the benchmarks
//
// Exit codes: 0 all ops agree; 1 some do not; 2 wrong arguments; 69 no GPU to check; 72 not enough
// memory on it.
#include <cstdio>
#include <cstring>

#include "device/gpus.h"
#include "kernels/cuda/cuda_ops.h"
#include "tools/gpu_check/bench.h"
#include "tools/gpu_check/counted_library.h"
#include "tools/gpu_check/trial.h"

namespace pagoda::check {
namespace {

constexpr int64_t kArenaBytes = int64_t{3} << 30;
constexpr int64_t kScratchBytes = int64_t{16} << 20;  // the last of these bytes

int failed_with(const Status& status) {
  std::fprintf(stderr, "gpu_check: %s\n", status.message().c_str());
  return static_cast<int>(status.code());
}

// The number of cases that failed.
int try_cases(const char* name, const std::vector<OpCase>& cases, Candidate& candidate) {
  int failed = 0;
  for (const OpCase& c : cases) {
    Trial trial(candidate);
    c.body(trial);
    if (trial.faults().empty()) continue;
    ++failed;
    std::printf("%s\n  %s", c.name.c_str(), trial.faults().c_str());
  }
  std::printf("%-20s %4zu cases, %d failed\n", name, cases.size(), failed);
  std::fflush(stdout);
  return failed;
}

int try_library_attention(Device& device, Candidate candidate) {
  Result<std::shared_ptr<LibraryAttention>> library = open_library_attention(*candidate.stream);
  if (!library.ok()) {
    std::printf("SKIPPED  attention by cuDNN: %s\n", library.status().message().c_str());
    return 0;
  }
  const auto counted = std::make_shared<CountedLibrary>(library.value());
  const auto ops = make_cuda_ops(device, {.attention = counted});
  candidate.ops = ops.get();
  const int failed = try_cases("attention by cuDNN", library_attention_cases(), candidate);
  std::printf("  %s computed %d calls of %d, our kernel the others\n",
              library_attention_name().c_str(), counted->ran, counted->asked);
  return failed;
}

int try_library_products(Device& device, Candidate candidate) {
  Result<std::shared_ptr<LibraryProducts>> library = open_library_products(*candidate.stream);
  if (!library.ok()) {
    std::printf("SKIPPED  products by cuBLAS: %s\n", library.status().message().c_str());
    return 0;
  }
  const auto counted = std::make_shared<CountedProducts>(library.value());
  const auto ops = make_cuda_ops(device, {.experts = counted});
  candidate.ops = ops.get();
  const int failed = try_cases("products by cuBLAS", library_product_cases(), candidate);
  std::printf("  %s computed %d calls\n", library_products_name().c_str(), counted->ran);
  return failed;
}

int try_ops(Device& device, Stream& stream) {
  const auto ops = make_cuda_ops(device, Libraries{});
  Candidate candidate{ops.get(), gpu::adam_update_on_device, &stream, device.arena(),
                      kArenaBytes - kScratchBytes};
  return try_cases("rows", row_cases(), candidate) + try_cases("norms", norm_cases(), candidate) +
         try_cases("linear", linear_cases(), candidate) +
         try_cases("routing", route_cases(), candidate) +
         try_cases("cross-entropy", loss_cases(), candidate) +
         try_cases("attention", attention_cases(), candidate) +
         try_library_attention(device, candidate) +
         try_cases("groups of experts", grouped_cases(), candidate) +
         try_library_products(device, candidate) + try_cases("adam", adam_cases(), candidate);
}

int run(bool bench) {
  const GpuReport report = find_gpus();
  if (report.gpus.empty()) {
    return failed_with(Status(Exit::kUnavailable, "no GPU to check: " + report.missing));
  }
  std::printf("%s, driver for CUDA %s, toolkit %s\n", report.gpus.front().text().c_str(),
              report.driver.c_str(), report.toolkit.c_str());
  DeviceOptions options;
  options.arena_bytes = kArenaBytes;
  Result<std::unique_ptr<Device>> device = open_gpu(report.gpus.front().index, options);
  if (!device.ok()) return failed_with(device.status());
  const auto stream = (*device)->make_stream("check", WorkKind::kOther);
  stream->use_scratch({(*device)->arena() + kArenaBytes - kScratchBytes, size_t{kScratchBytes}});
  const int failed = try_ops(**device, *stream);
  if (bench) run_benches(**device, *stream);
  std::printf("%s\n", failed == 0 ? "PASS: all ops agree with the CPU's"
                                  : strf("FAIL: %d cases", failed).c_str());
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace pagoda::check

int main(int argc, char** argv) {
  const bool only_ops = argc == 2 && std::strcmp(argv[1], "--ops") == 0;
  if (argc > 1 && !only_ops) {
    std::fprintf(stderr, "gpu_check: %s: the only option is --ops\n", argv[argc - 1]);
    return 2;
  }
  return pagoda::check::run(!only_ops);
}
