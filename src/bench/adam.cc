#include "bench/adam.h"

#include <algorithm>
#include <array>
#include <memory>

#include "base/bytes.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "bench/adam_records.h"
#include "bench/race/available_memory.h"
#include "bench/roofs/adam_stream.h"
#include "device/device.h"
#include "hardware/machine.h"

namespace pagoda {
namespace {

constexpr StateFormat kFormats[] = {StateFormat::kFp32, StateFormat::kBf16, StateFormat::k8Bit};
constexpr size_t kNumFormats = std::size(kFormats);
constexpr int64_t kTimingElements = 64 << 20;  // the fewest elements that a timing updates

Figure figure_of(const char* name, int64_t elements, bool whole, int threads) {
  Figure figure;
  figure.name = name;
  figure.path = whole ? "whole" : "record";
  figure.elements = elements;
  figure.threads = threads;
  return figure;
}

// The races of one size of record: each format against its stream, and against fp32.
class SizeRace {
 public:
  // REQUIRES: memory for `total` elements in every format.
  SizeRace(int64_t elements, int64_t total, const std::array<HostMemory, kNumFormats>& memory,
           ThreadPool& pool)
      : pool_(pool) {
    for (size_t f = 0; f < kNumFormats; ++f) {
      const StateLayout layout(kFormats[f], DType::kBF16, elements);
      records_[f] = std::make_unique<AdamRecords>(layout, total / elements, memory[f].data());
      const char* name = state_format_name(kFormats[f]);
      const bool whole = total == elements;
      races_.emplace_back(figure_of(name, elements, whole, pool.threads()));
      Figure to_fp32 = figure_of((std::string(name) + ":fp32").c_str(), elements, whole,
                                 pool.threads());
      to_fp32.unit = "Gelement/s";
      rivals_.emplace_back(to_fp32);
    }
    passes_ = std::max<int64_t>(1, kTimingElements / records_[0]->elements());
  }

  Status round(int round) {
    std::array<Timing, kNumFormats> updates;
    for (size_t f = 0; f < kNumFormats; ++f) {
      std::array<Timing, 2> timings;  // ours, the stream's
      for (int i = 0; i < 2; ++i) {
        RETURN_IF_ERROR(stop_status("measuring"));
        const bool ours = (round + i) % 2 == 0;
        timings[ours ? 0 : 1] =
            ours ? records_[f]->update(passes_, pool_) : records_[f]->stream(passes_, pool_);
      }
      races_[f].add(timings[0], timings[1]);
      updates[f] = timings[0];
      updates[f].bytes = passes_ * records_[f]->elements();
    }
    for (size_t f = 1; f < kNumFormats; ++f) rivals_[f].add(updates[f], updates[0]);
    return Status();
  }

  void report(std::vector<Figure>& figures) const {
    for (const PairedRounds& race : races_) figures.push_back(race.figure());
    for (size_t f = 1; f < kNumFormats; ++f) figures.push_back(rivals_[f].figure());
  }

 private:
  ThreadPool& pool_;
  std::array<std::unique_ptr<AdamRecords>, kNumFormats> records_;
  std::vector<PairedRounds> races_, rivals_;  // [format]; fp32 against itself stays empty
  int64_t passes_ = 1;
};

// Elements that fit in `bytes`, each in every format.
int64_t elements_in(int64_t bytes) {
  int64_t per_block = 0;
  for (const StateFormat format : kFormats) {
    per_block += AdamRecords::bytes_of(StateLayout(format, DType::kBF16, kIoAlign));
  }
  return bytes / per_block * kIoAlign;
}

}  // namespace

Result<BenchReport> run_adam_bench(const AdamBench& bench) {
  CHECK(bench.rounds > 0 && bench.threads > 0);
  const int64_t total = elements_in(bench.bytes);
  RETURN_IF_ERROR(check_available(bench.bytes));
  BenchReport report;
  report.bench = "adam";
  report.facts = {{"processor", cpu_model()},
                  {"isa", adam_kernels().front().isa},
                  {"arrays", format_bytes(bench.bytes)},
                  {"roof", "a stream of the same arrays, prefetched alike, on the same threads"}};
  std::array<HostMemory, kNumFormats> memory;
  std::vector<int64_t> sizes = {total};
  sizes.insert(sizes.end(), bench.record_elements.begin(), bench.record_elements.end());
  for (size_t f = 0; f < kNumFormats; ++f) {
    int64_t most = 0;
    for (const int64_t size : sizes) {
      const StateLayout layout(kFormats[f], DType::kBF16, size);
      most = std::max(most, total / size * AdamRecords::bytes_of(layout));
    }
    ASSIGN_OR_RETURN(memory[f], HostMemory::allocate(most));
    const StateLayout layout(kFormats[f], DType::kBF16, total);
    report.facts.emplace_back(std::string("bytes_per_element_") + state_format_name(kFormats[f]),
                              strf("%.3f", static_cast<double>(adam_bytes(layout)) /
                                               static_cast<double>(total)));
  }
  ThreadPool pool(bench.threads);
  for (const int64_t elements : sizes) {
    if (elements > total) continue;
    SizeRace race(elements, total, memory, pool);
    for (int round = 0; round < bench.rounds; ++round) {
      set_status_line(strf("bench adam: records of %.2f M, round %d of %d",
                           static_cast<double>(elements) / 1e6, round + 1, bench.rounds));
      RETURN_IF_ERROR(race.round(round));
    }
    race.report(report.figures);
  }
  set_status_line("");
  return report;
}

}  // namespace pagoda
