#include "bench/sheet/gpu_sheet.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/si_units.h"
#include "base/stop_signal.h"
#include "bench/adam_records.h"
#include "bench/race/noise.h"
#include "bench/race/timing.h"
#include "bench/roofs/adam_stream.h"
#include "bench/roofs/tile_products.h"
#include "bench/sheet/machine_fit.h"
#include "kernels/gpu_adam.h"
#include "kernels/gpu_ops.h"
#include "kernels/gpu_scratch.h"
#include "preview/this_machine.h"

namespace pagoda {
namespace {

constexpr int64_t kPageBytes = 16 * kMiB;
constexpr int64_t kRecordElements = 5 << 20;

class GpuSheet {
 public:
  GpuSheet(std::unique_ptr<Device> device, int rounds, int64_t bytes)
      : device_(std::move(device)),
        ops_(make_gpu_ops(*device_)),
        stream_(device_->make_stream("bench", WorkKind::kCompute)),
        rounds_(rounds),
        bytes_(bytes) {
    const int64_t scratch = scratch_bytes();
    stream_->use_scratch({device_->arena() + device_->arena_bytes() - scratch,
                          static_cast<size_t>(scratch)});
  }

  static int64_t arena_bytes(int64_t bytes);
  static int64_t scratch_bytes();  // at the arena's end
  Status measure(MachineSheet& sheet);

 private:
  Status products(MachineSheet::Device& sheet);
  Status attention(MachineSheet::Device& sheet);
  Status streams(MachineSheet& sheet);
  Status updates(MachineSheet::Device& sheet);
  void launches(MachineSheet::Device& sheet);
  Result<double> both_ways_s(const HostMemory& host);
  // The median of the rounds' seconds, after one more that warms up. `work` waits for its end.
  Result<double> seconds_of(const std::function<void()>& work) const;
  Status fill(int64_t bytes);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Stream> stream_;
  const int rounds_;
  const int64_t bytes_;
};

int64_t GpuSheet::scratch_bytes() {
  return gpu_scratch_bytes({.tokens = kSheetAttention.tokens,
                            .heads = kSheetAttention.heads,
                            .head_dim = kSheetAttention.head_dim,
                            .spans = 1});
}

int64_t GpuSheet::arena_bytes(int64_t bytes) {
  const int64_t experts = Experts::count_in(kSheetExperts, bytes);
  const StateLayout record(StateFormat::kFp32, DType::kBF16, kRecordElements);
  return align_up(std::max({Experts::bytes_of(kSheetExperts, experts),
                            kSheetAttention.bytes(kSheetAttention.tokens), 2 * bytes,
                            AdamRecords::bytes_of(record) + kIoAlign}),
                  2 * kPageBytes) +
         scratch_bytes();
}

Result<double> GpuSheet::seconds_of(const std::function<void()>& work) const {
  work();
  std::vector<double> seconds;
  for (int round = 0; round < rounds_; ++round) {
    RETURN_IF_ERROR(stop_status("measuring"));
    const TimingClock timer;
    work();
    seconds.push_back(timer.finish(0).seconds);
  }
  // The clock counts microseconds.
  return std::max(quantile(seconds, 0.5), kMicro);
}

// Values at the beginning of the arena.
Status GpuSheet::fill(int64_t bytes) {
  ASSIGN_OR_RETURN(const HostMemory values, HostMemory::allocate(std::min(bytes, kPageBytes)));
  fill_values(reinterpret_cast<bf16*>(values.data()), values.bytes() / 2);
  for (int64_t at = 0; at < bytes; at += values.bytes()) {
    stream_->copy(device_->arena() + at, values.data(), std::min(values.bytes(), bytes - at));
  }
  stream_->synchronize();
  return Status();
}

Status GpuSheet::products(MachineSheet::Device& sheet) {
  const int64_t count = Experts::count_in(kSheetExperts, bytes_);
  RETURN_IF_ERROR(fill(Experts::bytes_of(kSheetExperts, count)));
  Experts experts(kSheetExperts, count, device_->arena(), *ops_);
  std::vector<CostSample> samples;
  for (const int64_t rows : kSheetRows) {
    set_status_line(strf("bench machine: products of %lld rows on the GPU", (long long)rows));
    ASSIGN_OR_RETURN(const double seconds, seconds_of([&] { experts.run(rows, *stream_); }));
    samples.push_back({static_cast<double>(rows), seconds / static_cast<double>(count)});
  }
  fit_products(samples, sheet);
  return Status();
}

Status GpuSheet::attention(MachineSheet::Device& sheet) {
  RETURN_IF_ERROR(fill(2 * kSheetAttention.input_elements()));
  const AttentionTrial tensors(kSheetAttention, device_->arena(), *ops_);
  const int64_t tokens = kSheetAttention.tokens;
  std::vector<AttentionRates> rates;
  for (const int64_t length : kSheetLengths) {
    set_status_line(strf("bench machine: attention of %lld tokens on the GPU", (long long)length));
    const AttentionOperations operations =
        attention_operations(tokens, length, kSheetAttention.heads, kSheetAttention.head_dim);
    ASSIGN_OR_RETURN(const double forward_s,
                     seconds_of([&] { tensors.forward(tokens, length, *stream_); }));
    ASSIGN_OR_RETURN(const double backward_s,
                     seconds_of([&] { tensors.backward(tokens, length, *stream_); }));
    rates.push_back({length, static_cast<double>(operations.forward) / forward_s,
                     static_cast<double>(operations.backward) / backward_s});
  }
  fit_attention(rates, sheet);
  return Status();
}

// Pages up and as many down at once, on streams of their own, from pinned memory and to it.
Result<double> GpuSheet::both_ways_s(const HostMemory& host) {
  const std::unique_ptr<Stream> up = device_->make_stream("upload", WorkKind::kUpload);
  const std::unique_ptr<Stream> down = device_->make_stream("download", WorkKind::kDownload);
  const int64_t half = host.bytes() / 2;
  return seconds_of([&] {
    for (int64_t at = 0; at < half; at += kPageBytes) {
      const int64_t bytes = std::min(kPageBytes, half - at);
      up->copy(device_->arena() + at, host.data() + at, bytes);
      down->copy(host.data() + half + at, device_->arena() + half + at, bytes);
    }
    up->synchronize();
    down->synchronize();
  });
}

Status GpuSheet::streams(MachineSheet& sheet) {
  set_status_line("bench machine: copies within the GPU, to it and from it");
  std::byte* arena = device_->arena();
  ASSIGN_OR_RETURN(const double within_s, seconds_of([&] {
    stream_->copy(arena + bytes_, arena, bytes_);
    stream_->synchronize();
  }));
  sheet.device.memory_gb_s = 2 * static_cast<double>(bytes_) / within_s / kGiga;
  ASSIGN_OR_RETURN(const HostMemory host, HostMemory::allocate(2 * bytes_));
  fill_noise(host.data(), host.bytes());
  const std::shared_ptr<void> pinned = device_->pin(host.data(), host.bytes());
  ASSIGN_OR_RETURN(const double seconds, both_ways_s(host));
  sheet.host.copy_gb_s = static_cast<double>(bytes_) / seconds / kGiga;
  return Status();
}

// One record, larger than caches, again and again.
Status GpuSheet::updates(MachineSheet::Device& sheet) {
  set_status_line("bench machine: updates on the GPU");
  const StateLayout layout(StateFormat::kFp32, DType::kBF16, kRecordElements);
  const int64_t values = align_up(2 * kRecordElements, kIoAlign);  // of gradient, and of weights
  RETURN_IF_ERROR(fill(2 * values));
  const AdamSpan span{0, kRecordElements, true};
  std::byte* state = device_->arena() + 2 * values;
  const AdamRecord record{layout, {&span, 1}, device_->arena() + values, state};
  auto* finite = reinterpret_cast<int32_t*>(state + align_up(layout.bytes, kIoAlign));
  ops_->fill_zero(state, layout.bytes, *stream_);
  int64_t t = 0;
  constexpr int kTimes = 8;  // queued behind each other
  ASSIGN_OR_RETURN(const double seconds, seconds_of([&] {
    for (int i = 0; i < kTimes; ++i) {
      const AdamStep step = {.lr = 1e-5, .t = ++t};
      gpu_adam(step, record, device_->arena(), 1.0f, finite, *stream_);
    }
    stream_->synchronize();
  }));
  sheet.adam_gb_s = kTimes * static_cast<double>(adam_bytes(layout)) / seconds / kGiga;
  return Status();
}

// Kernels with next to nothing to do, queued behind each other.
void GpuSheet::launches(MachineSheet::Device& sheet) {
  constexpr int kTimes = 1000;
  stream_->synchronize();
  const TimingClock timer;
  for (int i = 0; i < kTimes; ++i) ops_->fill_zero(device_->arena(), 64, *stream_);
  stream_->synchronize();
  sheet.launch_us = timer.finish(0).seconds / kTimes / kMicro;
}

Status GpuSheet::measure(MachineSheet& sheet) {
  RETURN_IF_ERROR(products(sheet.device));
  RETURN_IF_ERROR(attention(sheet.device));
  RETURN_IF_ERROR(streams(sheet));
  RETURN_IF_ERROR(updates(sheet.device));
  launches(sheet.device);
  sheet.device.peak_tflops = std::max(sheet.device.peak_tflops, sheet.device.gemm_tflops);
  return Status();
}

}  // namespace

Status measure_gpu(const Gpu& gpu, int rounds, int threads, int64_t bytes, MachineSheet& sheet) {
  sheet.device = {};
  sheet.device.kind = Processor::kGpu;
  sheet.device.memory = MemorySize::of_bytes(gpu.memory_bytes);
  sheet.device.peak_tflops = this_machine_sheet({gpu}).device.peak_tflops;
  const int64_t page_aligned = align_up(bytes, kIoAlign);
  DeviceOptions options;
  options.arena_bytes = GpuSheet::arena_bytes(page_aligned);
  options.threads = threads;
  ASSIGN_OR_RETURN(std::unique_ptr<Device> device, open_gpu(gpu.index, options));
  return GpuSheet(std::move(device), rounds, page_aligned).measure(sheet);
}

}  // namespace pagoda
