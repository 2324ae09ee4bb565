#include "bench/sheet/machine.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/bytes.h"
#include "base/log.h"
#include "base/si_units.h"
#include "base/stop_signal.h"
#include "bench/adam.h"
#include "bench/attention.h"
#include "bench/copy.h"
#include "bench/gemm_roof.h"
#include "bench/memory.h"
#include "bench/race/available_memory.h"
#include "bench/sheet/drive.h"
#include "bench/sheet/gpu_sheet.h"
#include "bench/sheet/machine_fit.h"
#include "hardware/machine.h"
#include "offload/checksum.h"
#include "offload/scratch_folder.h"

namespace pagoda {
namespace {

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

// From queueing a piece of work to knowing that it has ended.
double launch_us(Stream& stream) {
  constexpr int kTimes = 200;
  std::vector<double> seconds;
  for (int i = 0; i < kTimes; ++i) {
    const TimingClock timer;
    stream.enqueue([] {});
    stream.synchronize();
    seconds.push_back(timer.finish(0).seconds);
  }
  return quantile(seconds, 0.5) / kMicro;
}

// What an expert's products take, forward and backward: few rows, where its weights are read, and
// many.
Status measure_products(const MachineBench& bench, MachineSheet& sheet) {
  const std::unique_ptr<Stream> stream = make_host_stream(
      {"bench", WorkKind::kCompute}, std::make_shared<ThreadPool>(bench.threads));
  ASSIGN_OR_RETURN(Experts experts, Experts::allocate(kSheetExperts, bench.bytes));
  std::vector<CostSample> samples;
  for (const int64_t rows : kSheetRows) {
    experts.run(rows, *stream);
    std::vector<double> seconds;
    for (int round = 0; round < bench.rounds; ++round) {
      set_status_line(strf("bench machine: products of %lld rows", (long long)rows));
      RETURN_IF_ERROR(stop_status("measuring"));
      const TimingClock timer;
      experts.run(rows, *stream);
      seconds.push_back(timer.finish(0).seconds / static_cast<double>(experts.count()));
    }
    samples.push_back({static_cast<double>(rows), quantile(seconds, 0.5)});
  }
  fit_products(samples, sheet.device);
  GemmRoof roof(experts, *stream);
  roof.measure(GemmRoof::Part::kMultiply);
  const double peak = roof.rate(GemmRoof::Part::kMultiply) / kTera;
  sheet.device.peak_tflops = std::max(peak, sheet.device.gemm_tflops);
  sheet.device.launch_us = launch_us(*stream);
  return Status();
}

Status measure_attention(const MachineBench& bench, MachineSheet& sheet) {
  const AttentionBenchShape& shape = kSheetAttention;
  const AttentionBench attention{bench.rounds, bench.threads,  shape.heads,
                                 shape.kv_heads, shape.head_dim, shape.tokens,
                                 {kSheetLengths.begin(), kSheetLengths.end()}};
  ASSIGN_OR_RETURN(const BenchReport report, run_attention_bench(attention));
  std::vector<AttentionRates> rates;
  for (const int64_t length : attention.lengths) {
    const std::string path = strf("length %lld", (long long)length);
    ASSIGN_OR_RETURN(const double forward, value_of(report, "forward", path));
    ASSIGN_OR_RETURN(const double backward, value_of(report, "backward", path));
    rates.push_back({length, kGiga * forward, kGiga * backward});
  }
  fit_attention(rates, sheet.device);
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

// Measures the rate of checksums over pages that lie in no cache.
Status measure_checksum(const MachineBench& bench, MachineSheet& sheet) {
  ASSIGN_OR_RETURN(const HostMemory pages, HostMemory::allocate(align_up(bench.bytes, kIoAlign)));
  std::fill_n(pages.data(), pages.bytes(), std::byte{1});
  std::vector<double> rates;
  uint32_t sum = 0;
  for (int round = 0; round < bench.rounds; ++round) {
    const TimingClock timer;
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
  ScratchFolder scratch(bench.directory);
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
  sheet.machine.name = strf("%s, %d cores", cpu_model().c_str(), bench.threads);
  if (bench.gpu) sheet.machine.name = bench.gpu->name + ", " + sheet.machine.name;
  sheet.machine.source = SheetSource::kMeasured;
  sheet.host.cores = bench.threads;
  sheet.host.memory = MemorySize::of_bytes(machine_memory().usable_bytes() / kMiB * kMiB);
  if (!bench.gpu) {
    RETURN_IF_ERROR(measure_products(bench, sheet));
    RETURN_IF_ERROR(measure_attention(bench, sheet));
  }
  RETURN_IF_ERROR(measure_streams(bench, sheet));
  // After the host's copies, in whose place its own go.
  if (bench.gpu) {
    RETURN_IF_ERROR(measure_gpu(*bench.gpu, bench.rounds, bench.threads, bench.bytes, sheet));
  }
  RETURN_IF_ERROR(measure_checksum(bench, sheet));
  RETURN_IF_ERROR(measure_disk(bench, sheet));
  set_status_line("");
  RETURN_IF_ERROR(sheet.check());
  return sheet;
}

}  // namespace pagoda
