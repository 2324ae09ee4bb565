#include "bench/attention.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/stop_signal.h"
#include "bench/noise.h"
#include "bench/room.h"
#include "bench/tile_products.h"
#include "kernels/cpu/products.h"
#include "kernels/ops.h"
#include "kernels/working_memory.h"

namespace pagoda {
namespace {

constexpr int64_t kLegOperations = int64_t{1} << 35;  // of ours in a leg, at least

// What attention reads and writes for some tokens; written once, so that all of it is resident.
class Tensors {
 public:
  static Result<Tensors> allocate(const AttentionBench& bench) {
    Tensors t(bench);
    ASSIGN_OR_RETURN(t.memory_, HostMemory::allocate(t.bytes(bench.tokens)));
    std::memset(t.memory_.data(), 0, static_cast<size_t>(t.memory_.bytes()));
    fill_values(t.qkv(), bench.tokens * t.stride_);
    fill_values(t.dout(), bench.tokens * t.width_);
    return t;
  }

  void forward(int64_t tokens, int64_t document_len, Stream& stream) const {
    const std::vector<int32_t> start = documents(tokens, document_len);
    cpu_ops().attention(DType::kBF16, shape(tokens), start.data(), std::ssize(start) - 1, qkv(),
                        qkv() + width_, qkv() + width_ + kv_width_, out(), lse(), stream);
    stream.synchronize();
  }
  // REQUIRES: forward() of the same documents before.
  void backward(int64_t tokens, int64_t document_len, Stream& stream) const {
    const std::vector<int32_t> start = documents(tokens, document_len);
    cpu_ops().attention_backward(
        DType::kBF16, shape(tokens), start.data(), std::ssize(start) - 1, qkv(), qkv() + width_,
        qkv() + width_ + kv_width_, out(), lse(), dout(), dqkv(), dqkv() + width_,
        dqkv() + width_ + kv_width_, stream);
    stream.synchronize();
  }

  // Of all tensors for so many tokens.
  int64_t bytes(int64_t tokens) const {
    return tokens * (2 * (2 * stride_ + 2 * width_) + 4 * bench_.heads);
  }

 private:
  explicit Tensors(const AttentionBench& bench)
      : bench_(bench),
        width_(bench.heads * bench.head_dim),
        kv_width_(bench.kv_heads * bench.head_dim),
        stride_(width_ + 2 * kv_width_) {}
  AttentionShape shape(int64_t tokens) const {
    return {tokens, bench_.heads, bench_.kv_heads, bench_.head_dim, stride_};
  }
  static std::vector<int32_t> documents(int64_t tokens, int64_t document_len) {
    std::vector<int32_t> start;
    for (int64_t t = 0; t <= tokens; t += document_len) start.push_back(static_cast<int32_t>(t));
    return start;
  }
  bf16* qkv() const { return reinterpret_cast<bf16*>(memory_.data()); }
  bf16* dqkv() const { return qkv() + bench_.tokens * stride_; }
  bf16* out() const { return dqkv() + bench_.tokens * stride_; }
  bf16* dout() const { return out() + bench_.tokens * width_; }
  float* lse() const { return reinterpret_cast<float*>(dout() + bench_.tokens * width_); }

  AttentionBench bench_;
  int64_t width_, kv_width_, stride_;  // of a token: queries, keys, all three
  HostMemory memory_;
};

class AttentionRun {
 public:
  AttentionRun(const AttentionBench& bench, const Tensors& tensors, TileProducts& products,
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
               format_bytes(tensors_.bytes(length)).c_str(),
               format_bytes(std::max<int64_t>(0, resident_bytes() - before)).c_str(),
               format_bytes(kernel_working_bytes(sizes, bench_.threads)).c_str()));
    }
  }

  Status race(int64_t length, std::vector<Figure>& figures) const {
    Race forward(figure_of("forward", length)), backward(figure_of("backward", length));
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
  Status take_turns(int round, int64_t operations, Race& race, const Call& call) const {
    const int64_t calls = std::max<int64_t>(1, div_ceil(kLegOperations, operations));
    Leg legs[2];  // ours, the roof's
    for (int i = 0; i < 2; ++i) {
      RETURN_IF_ERROR(stop_status("measuring"));
      const bool ours = (round + i) % 2 == 0;
      legs[ours ? 0 : 1] = ours ? repeat(calls, operations, call)
                                : products_.run(calls * operations);
    }
    race.add(legs[0], legs[1]);
    return Status();
  }

  template <typename Call>
  static Leg repeat(int64_t calls, int64_t operations, const Call& call) {
    const LegTimer timer;
    for (int64_t i = 0; i < calls; ++i) call();
    return timer.finish(calls * operations);
  }

  const AttentionBench& bench_;
  const Tensors& tensors_;
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
  ASSIGN_OR_RETURN(const Tensors tensors, Tensors::allocate(bench));
  const AttentionRun run(bench, tensors, products, *stream);
  run.find_memory(report);
  for (const int64_t length : bench.lengths) {
    RETURN_IF_ERROR(run.race(length, report.figures));
  }
  set_status_line("");
  return report;
}

}  // namespace pagoda
