#include "bench/adam.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/stop_signal.h"
#include "bench/adam_stream.h"
#include "bench/noise.h"
#include "bench/room.h"
#include "device/device.h"

namespace pagoda {
namespace {

constexpr StateFormat kFormats[] = {StateFormat::kFp32, StateFormat::kBf16, StateFormat::k8Bit};
constexpr size_t kNumFormats = std::size(kFormats);
constexpr int64_t kLegElements = 64 << 20;  // at least so many are updated in a leg

// Fills with bf16 noise between 2^-7 and 2^-6 in magnitude: no sum or square of it is denormal.
void fill_values(bf16* values, int64_t count) {
  constexpr int64_t kTile = 1 << 19;
  std::vector<bf16> tile(kTile);
  fill_noise(reinterpret_cast<std::byte*>(tile.data()), kTile * 2);
  for (bf16& value : tile) value.bits = static_cast<uint16_t>((value.bits & 0x807fu) | 0x3c00u);
  for (int64_t i = 0; i < count; i += kTile) {
    std::memcpy(values + i, tile.data(), static_cast<size_t>(std::min(kTile, count - i)) * 2);
  }
}

// Records of one size and format that lie behind each other, each its gradient, weights and state.
class Records {
 public:
  Records(const StateLayout& layout, int64_t count, std::byte* memory)
      : layout_(layout), span_{0, layout.num_elements, true}, count_(count), memory_(memory) {
    for (int64_t r = 0; r < count; ++r) {
      fill_values(static_cast<bf16*>(gradient(r)), layout.num_elements);
      fill_values(static_cast<bf16*>(record(r).weights), layout.num_elements);
      std::memset(record(r).state, 0, static_cast<size_t>(layout.bytes));
    }
  }
  static int64_t bytes_of(const StateLayout& layout) {
    return 2 * weights_bytes(layout) + align_up(layout.bytes, kIoAlign);
  }

  Leg update(int64_t passes, ThreadPool& pool) {
    const LegTimer timer;
    for (int64_t pass = 0; pass < passes; ++pass) {
      ++t_;
      for (int64_t r = 0; r < count_; ++r) {
        const AdamStep step = {.lr = 1e-5, .t = t_, .noise_key = static_cast<uint32_t>(t_)};
        CHECK(adam_update(step, record(r), gradient(r), 1.0f, pool));
      }
    }
    return timer.finish(passes * count_ * adam_bytes(layout_));
  }

  Leg stream(int64_t passes, ThreadPool& pool) {
    const int64_t threads = pool.threads();
    const LegTimer timer;
    pool.parallel_for(threads, [&](int64_t t) {
      for (int64_t i = 0; i < passes * count_; ++i) {
        seen_ ^= stream_record(record(i % count_), gradient(i % count_), no_flip_, t, threads);
      }
    });
    return timer.finish(passes * count_ * adam_bytes(layout_));
  }

  int64_t elements() const { return count_ * layout_.num_elements; }

 private:
  static int64_t weights_bytes(const StateLayout& layout) {
    return align_up(layout.num_elements * 2, kIoAlign);
  }
  std::byte* at(int64_t record) const { return memory_ + record * bytes_of(layout_); }
  void* gradient(int64_t record) const { return at(record); }
  AdamRecord record(int64_t r) const {
    std::byte* weights = at(r) + weights_bytes(layout_);
    return {layout_, {&span_, 1}, weights, weights + weights_bytes(layout_)};
  }

  const StateLayout layout_;
  const AdamSpan span_;
  const int64_t count_;
  std::byte* const memory_;
  int64_t t_ = 0;
  std::atomic<uint64_t> no_flip_{0}, seen_{0};  // so that the compiler cannot know them
};

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
      records_[f] = std::make_unique<Records>(layout, total / elements, memory[f].data());
      const char* name = state_format_name(kFormats[f]);
      const bool whole = total == elements;
      races_.emplace_back(figure_of(name, elements, whole, pool.threads()));
      Figure to_fp32 = figure_of((std::string(name) + ":fp32").c_str(), elements, whole,
                                 pool.threads());
      to_fp32.unit = "Gelement/s";
      rivals_.emplace_back(to_fp32);
    }
    passes_ = std::max<int64_t>(1, kLegElements / records_[0]->elements());
  }

  Status round(int round) {
    std::array<Leg, kNumFormats> updates;
    for (size_t f = 0; f < kNumFormats; ++f) {
      std::array<Leg, 2> legs;  // ours, the stream's
      for (int i = 0; i < 2; ++i) {
        RETURN_IF_ERROR(stop_status("measuring"));
        const bool ours = (round + i) % 2 == 0;
        legs[ours ? 0 : 1] =
            ours ? records_[f]->update(passes_, pool_) : records_[f]->stream(passes_, pool_);
      }
      races_[f].add(legs[0], legs[1]);
      updates[f] = legs[0];
      updates[f].bytes = passes_ * records_[f]->elements();
    }
    for (size_t f = 1; f < kNumFormats; ++f) rivals_[f].add(updates[f], updates[0]);
    return Status();
  }

  void report(std::vector<Figure>& figures) const {
    for (const Race& race : races_) figures.push_back(race.figure());
    for (size_t f = 1; f < kNumFormats; ++f) figures.push_back(rivals_[f].figure());
  }

 private:
  ThreadPool& pool_;
  std::array<std::unique_ptr<Records>, kNumFormats> records_;
  std::vector<Race> races_, rivals_;  // [format]; that of fp32 against itself stays empty
  int64_t passes_ = 1;
};

// Elements that fit in `bytes`, each in every format.
int64_t elements_in(int64_t bytes) {
  int64_t per_block = 0;
  for (const StateFormat format : kFormats) {
    per_block += Records::bytes_of(StateLayout(format, DType::kBF16, kIoAlign));
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
      most = std::max(most, total / size * Records::bytes_of(layout));
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
