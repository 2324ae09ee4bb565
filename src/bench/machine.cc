#include "bench/machine.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/bytes.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/stop_signal.h"
#include "bench/adam.h"
#include "bench/attention.h"
#include "bench/copy.h"
#include "bench/drive.h"
#include "bench/gemm_roof.h"
#include "bench/memory.h"
#include "bench/room.h"
#include "offload/checksum.h"
#include "offload/scratch_folder.h"
#include "plan/machine_profile.h"

namespace pagoda {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;

// The median of the figure of this name, path and page size ("" and 0: any), in its unit.
Result<double> value_of(const BenchReport& report, const char* name, const std::string& path,
                        int threads = 0) {
  for (const Figure& figure : report.figures) {
    const bool wanted = figure.name == name && (path.empty() || figure.path == path) &&
                        (threads == 0 || figure.threads == threads);
    if (wanted && std::isfinite(figure.value) && figure.value > 0) return figure.value;
  }
  return Status(Exit::kInternal, strf("bench %s has no figure %s", report.bench.c_str(), name));
}

// What an expert's products take, forward and backward: a line through few rows, where its weights
// are read, and many.
class Products {
 public:
  Products(const MachineBench& bench, MachineSheet& sheet) : bench_(bench), sheet_(sheet) {}

  Status measure() {
    const std::unique_ptr<Stream> stream = make_host_stream(
        {"bench", WorkKind::kCompute}, std::make_shared<ThreadPool>(bench_.threads));
    ASSIGN_OR_RETURN(Experts experts,
                     Experts::allocate({kHidden, kFfn, kMostRows}, bench_.bytes));
    std::vector<CostSample> samples;
    for (const int64_t rows : {int64_t{16}, int64_t{128}, int64_t{512}, kMostRows}) {
      experts.run(rows, *stream);
      std::vector<double> seconds;
      for (int round = 0; round < bench_.rounds; ++round) {
        set_status_line(strf("bench machine: products of %lld rows", (long long)rows));
        RETURN_IF_ERROR(stop_status("measuring"));
        const LegTimer timer;
        experts.run(rows, *stream);
        seconds.push_back(timer.finish(0).seconds / static_cast<double>(experts.count()));
      }
      samples.push_back({static_cast<double>(rows), quantile(seconds, 0.5)});
    }
    const Cost cost = fit_cost(samples, 1);
    // 9 d f multiply-adds of a row; weights read twice and a gradient in fp32 summed into.
    const double parameters = 3.0 * kHidden * kFfn;
    sheet_.device.gemm_tflops = 6 * parameters / cost.unit_s / kTera;
    constexpr double kMost = 1e5;  // GB/s: where reading weights hides behind the products
    sheet_.device.weight_gb_s = std::min(kMost, 12 * parameters / cost.fixed_s / kGiga);
    GemmRoof roof(experts, *stream);
    roof.measure(GemmRoof::Part::kMultiply);
    const double peak = roof.rate(GemmRoof::Part::kMultiply) / kTera;
    sheet_.device.peak_tflops = std::max(peak, sheet_.device.gemm_tflops);
    launch(*stream);
    return Status();
  }

 private:
  static constexpr int64_t kHidden = 2048, kFfn = 1024, kMostRows = 1024;

  // From queueing a piece of work to knowing that it has ended.
  void launch(Stream& stream) {
    constexpr int kTimes = 200;
    std::vector<double> seconds;
    for (int i = 0; i < kTimes; ++i) {
      const LegTimer timer;
      stream.enqueue([] {});
      stream.synchronize();
      seconds.push_back(timer.finish(0).seconds);
    }
    sheet_.device.launch_us = quantile(seconds, 0.5) / kMicro;
  }

  const MachineBench& bench_;
  MachineSheet& sheet_;
};

// 1 / rate is a line over 1 / length: the rate of long sequences, and the length of half of it.
Status measure_attention(const MachineBench& bench, MachineSheet& sheet) {
  AttentionBench attention{bench.rounds, bench.threads, 8, 2, 128, 8192, {256, 1024, 4096}};
  ASSIGN_OR_RETURN(const BenchReport report, run_attention_bench(attention));
  std::vector<CostSample> samples;
  for (const int64_t length : attention.lengths) {
    const std::string path = strf("length %lld", (long long)length);
    ASSIGN_OR_RETURN(const double forward, value_of(report, "forward", path));
    ASSIGN_OR_RETURN(const double backward, value_of(report, "backward", path));
    // A step has 3.5 forwards of backward work and one forward again.
    const double gflops = 4.5 / (2 / forward + 2.5 / backward);
    samples.push_back({1 / static_cast<double>(length), 1 / gflops});
  }
  const Cost line = fit_cost(samples, 1);
  sheet.device.attention_tflops = 1e-3 / std::max(line.fixed_s, 1e-12);
  if (line.fixed_s <= 0) {  // faster and faster: the longest's
    sheet.device.attention_tflops = 1e-3 / samples.back().seconds;
    return Status();
  }
  sheet.device.attention_half_tokens = line.unit_s / line.fixed_s;
  return Status();
}

Status measure_streams(const MachineBench& bench, MachineSheet& sheet) {
  MemoryBench memory;
  memory.rounds = bench.rounds;
  memory.threads = {bench.threads};
  memory.bytes = align_up(bench.bytes, bench.threads * kIoAlign);
  ASSIGN_OR_RETURN(const BenchReport streams, run_memory_bench(memory));
  ASSIGN_OR_RETURN(sheet.device.memory_gb_s, value_of(streams, "triad", "", bench.threads));
  CopyBench copies;
  copies.rounds = bench.rounds;
  copies.page_bytes = {16 * kMiB};
  copies.bytes = align_up(bench.bytes, 2 * kIoAlign);
  ASSIGN_OR_RETURN(const BenchReport copied, run_copy_bench(copies));
  ASSIGN_OR_RETURN(sheet.host.copy_gb_s, value_of(copied, "upload", ""));
  AdamBench adam;
  adam.rounds = bench.rounds;
  adam.threads = bench.threads;
  adam.bytes = 2 * bench.bytes;
  ASSIGN_OR_RETURN(const BenchReport updated, run_adam_bench(adam));
  ASSIGN_OR_RETURN(sheet.host.adam_gb_s, value_of(updated, "fp32", ""));
  return Status();
}

// Of pages that lie in no cache.
Status measure_checksum(const MachineBench& bench, MachineSheet& sheet) {
  ASSIGN_OR_RETURN(const HostMemory pages, HostMemory::allocate(align_up(bench.bytes, kIoAlign)));
  std::fill_n(pages.data(), pages.bytes(), std::byte{1});
  std::vector<double> rates;
  uint32_t sum = 0;
  for (int round = 0; round < bench.rounds; ++round) {
    const LegTimer timer;
    sum += crc32c(pages.data(), pages.bytes());
    rates.push_back(timer.finish(pages.bytes()).gb_per_s());
  }
  CHECK(sum == static_cast<uint32_t>(bench.rounds) * crc32c(pages.data(), pages.bytes()));
  sheet.host.checksum_gb_s = quantile(rates, 0.5);
  return Status();
}

Status measure_disk(const MachineBench& bench, MachineSheet& sheet) {
  constexpr int64_t kPageBytes = 4 * kMiB;
  ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage,
                   open_storage(IoKind::kAuto, bench.directory));
  ScratchFolder scratch(bench.directory, storage.get());
  RETURN_IF_ERROR(scratch.create());
  set_status_line("bench machine: the drive");
  const int pages = static_cast<int>(std::max<int64_t>(4, bench.bytes / kPageBytes));
  ASSIGN_OR_RETURN(const DriveRates rates, measure_drive(storage.get(), scratch.path(), kPageBytes,
                                                         pages, bench.rounds));
  sheet.disk.read_gb_s = rates.read_gb_s;
  sheet.disk.write_gb_s = rates.write_gb_s;
  sheet.disk.half_duplex = rates.half_duplex();
  sheet.disk.latency_us = rates.latency_us;
  std::error_code error;
  const auto space = std::filesystem::space(bench.directory, error);
  if (!error) {
    sheet.disk.size = MemorySize::of_bytes(static_cast<int64_t>(space.available) / kMiB * kMiB);
  }
  return Status();
}

}  // namespace

Result<MachineSheet> measure_machine(const MachineBench& bench) {
  CHECK(bench.rounds > 0 && bench.threads > 0 && bench.bytes > 0);
  RETURN_IF_ERROR(check_available(4 * bench.bytes));
  MachineSheet sheet;
  sheet.machine.name = strf("%s, %d cores", cpu_model().c_str(), usable_cores());
  sheet.machine.source = SheetSource::kMeasured;
  sheet.host.cores = bench.threads;
  sheet.host.memory = MemorySize::of_bytes(machine_memory().usable_bytes() / kMiB * kMiB);
  RETURN_IF_ERROR(Products(bench, sheet).measure());
  RETURN_IF_ERROR(measure_attention(bench, sheet));
  RETURN_IF_ERROR(measure_streams(bench, sheet));
  RETURN_IF_ERROR(measure_checksum(bench, sheet));
  RETURN_IF_ERROR(measure_disk(bench, sheet));
  set_status_line("");
  RETURN_IF_ERROR(sheet.check());
  return sheet;
}

}  // namespace pagoda
