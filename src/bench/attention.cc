#include "bench/attention.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "bench/attention_trial.h"
#include "bench/race/available_memory.h"
#include "bench/race/noise.h"
#include "bench/roofs/tile_products.h"
#include "hardware/machine.h"
#include "kernels/cpu/products/products.h"
#include "kernels/ops.h"
#include "kernels/working_memory.h"

namespace pagoda {
namespace {

constexpr int64_t kTimingOperations = int64_t{1} << 35;  // the least operations of ours in a timing

class AttentionRun {
 public:
  AttentionRun(const AttentionBench& bench, const AttentionTrial& tensors, TileProducts& products,
               Stream& stream)
      : bench_(bench), tensors_(tensors), products_(products), stream_(stream) {}

  // REQUIRES: the stream's threads have computed nothing yet.
  void find_memory(BenchReport& report) const {
    const int64_t before = resident_bytes();
    for (const int64_t length : bench_.lengths) {
      tensors_.forward(length, length, stream_);
      tensors_.backward(length, length, stream_);
      KernelSizes sizes;
      sizes.row_dim = bench_.heads * bench_.head_dim;
      sizes.head_dim = bench_.head_dim;
      sizes.heads = bench_.heads;
      sizes.tokens = sizes.document_len = length;
      report.facts.emplace_back(
          strf("memory_%lld", static_cast<long long>(length)),
          strf("tensors %s; kernels %s resident, at most %s",
               format_bytes(tensors_.shape().bytes(length)).c_str(),
               format_bytes(std::max<int64_t>(0, resident_bytes() - before)).c_str(),
               format_bytes(kernel_working_bytes(sizes, bench_.threads)).c_str()));
    }
  }

  Status race(int64_t length, std::vector<Figure>& figures) const {
    PairedRounds forward(figure_of("forward", length)), backward(figure_of("backward", length));
    const AttentionOperations operations =
        attention_operations(bench_.tokens, length, bench_.heads, bench_.head_dim);
    for (int round = 0; round < bench_.rounds; ++round) {
      set_status_line(strf("bench attention: documents of %lld, round %d of %d",
                           static_cast<long long>(length), round + 1, bench_.rounds));
      RETURN_IF_ERROR(take_turns(round, operations.forward, forward, [&] {
        tensors_.forward(bench_.tokens, length, stream_);
      }));
      RETURN_IF_ERROR(take_turns(round, operations.backward, backward, [&] {
        tensors_.backward(bench_.tokens, length, stream_);
      }));
    }
    figures.push_back(forward.figure());
    figures.push_back(backward.figure());
    return Status();
  }

 private:
  Figure figure_of(const char* name, int64_t length) const {
    Figure figure;
    figure.name = name;
    figure.path = strf("length %lld", static_cast<long long>(length));
    figure.threads = bench_.threads;
    figure.unit = "GFLOP/s";
    return figure;
  }

  template <typename Call>
  Status take_turns(int round, int64_t operations, PairedRounds& race, const Call& call) const {
    const int64_t calls = std::max<int64_t>(1, div_ceil(kTimingOperations, operations));
    Timing timings[2];  // ours, the roof's
    for (int i = 0; i < 2; ++i) {
      RETURN_IF_ERROR(stop_status("measuring"));
      const bool ours = (round + i) % 2 == 0;
      timings[ours ? 0 : 1] =
          ours ? repeat(calls, operations, call) : products_.run(calls * operations);
    }
    race.add(timings[0], timings[1]);
    return Status();
  }

  template <typename Call>
  static Timing repeat(int64_t calls, int64_t operations, const Call& call) {
    const TimingClock timer;
    for (int64_t i = 0; i < calls; ++i) call();
    return timer.finish(calls * operations);
  }

  const AttentionBench& bench_;
  const AttentionTrial& tensors_;
  TileProducts& products_;
  Stream& stream_;
};

}  // namespace

Result<BenchReport> run_attention_bench(const AttentionBench& bench) {
  CHECK(bench.rounds > 0 && bench.threads > 0 && !bench.lengths.empty());
  for (const int64_t length : bench.lengths) CHECK(length > 0 && bench.tokens % length == 0);
  CHECK(std::is_sorted(bench.lengths.begin(), bench.lengths.end()));
  RETURN_IF_ERROR(check_available(bench.tokens * 2 * 2 * bench.head_dim *
                                  (2 * bench.heads + 2 * bench.kv_heads)));
  BenchReport report;
  report.bench = "attention";
  report.facts = {{"processor", cpu_model()},
                  {"kernel", products_kernel()},
                  {"products", cpu_ops_build()},
                  {"heads", strf("%lld of %lld values, keys for %lld, bf16",
                                 static_cast<long long>(bench.heads),
                                 static_cast<long long>(bench.head_dim),
                                 static_cast<long long>(bench.kv_heads))},
                  {"tokens", std::to_string(bench.tokens) + " a call"},
                  {"roof", "the products of its tiles by themselves, on the same threads"}};
  const auto make_stream = [&bench](const char* name) {
    return make_host_stream({name, WorkKind::kCompute},
                            std::make_shared<ThreadPool>(bench.threads));
  };
  const std::unique_ptr<Stream> roof_stream = make_stream("roof"), stream = make_stream("bench");
  ASSIGN_OR_RETURN(TileProducts products, TileProducts::make(bench.head_dim, roof_stream.get()));
  // Written once, so that all of it is resident.
  const AttentionBenchShape shape{bench.heads, bench.kv_heads, bench.head_dim, bench.tokens};
  ASSIGN_OR_RETURN(const HostMemory memory, HostMemory::allocate(shape.bytes(bench.tokens)));
  std::memset(memory.data(), 0, static_cast<size_t>(memory.bytes()));
  fill_values(reinterpret_cast<bf16*>(memory.data()), shape.input_elements());
  const AttentionTrial tensors(shape, memory.data(), cpu_ops());
  const AttentionRun run(bench, tensors, products, *stream);
  run.find_memory(report);
  for (const int64_t length : bench.lengths) {
    RETURN_IF_ERROR(run.race(length, report.figures));
  }
  set_status_line("");
  return report;
}

}  // namespace pagoda
