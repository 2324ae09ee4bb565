#include "bench/gemm.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/stop_signal.h"
#include "bench/gemm_experts.h"
#include "bench/room.h"
#include "bench/streams.h"
#include "kernels/cpu/block_kernel.h"
#include "kernels/ops.h"

namespace pagoda {
namespace {

constexpr int64_t kLegRows = 4096;      // of all experts of a leg together, at most kLegExperts
constexpr int64_t kLegExperts = 24;
constexpr int64_t kRoofBytes = 64 * kMiB;
constexpr int64_t kRoofRounds = 100000;  // of what registers hold
constexpr int64_t kRivalFrom = 16, kRivalTo = 256;  // tokens that the geometric mean is over

void use(double value) { asm volatile("" : : "x"(value) : "memory"); }

// What the processor and the memory do in this round, each measured on all threads.
class Roof {
 public:
  Roof(const Experts& experts, ThreadPool& pool) {
    const int64_t threads = pool.threads();
    const int64_t weight_bytes = experts.count() * experts.shape().weights() * 2;
    const int64_t share =
        align_up(std::min(kRoofBytes, weight_bytes / 4) / threads, kStreamAlign);
    const LegTimer all;
    multiplies_ = leg(pool, [&](int64_t) { return saturate(); });
    reads_ = leg(pool, [&](int64_t t) {
      use(stream_sum(reinterpret_cast<double*>(experts.weights(0)) + t * share / 8, share));
      return share;
    });
    writes_ = leg(pool, [&](int64_t t) {
      stream_fill(reinterpret_cast<double*>(experts.gradient(0)) + t * share / 8, 0x1p-7, share);
      return share;
    });
    const Leg sum = all.finish(0);
    busy_ = sum.cpu_seconds / sum.seconds;
  }

  // The least time for the products of `count` experts.
  Leg leg_of(const ExpertShape& shape, int64_t tokens, int64_t count) const {
    const auto operations = static_cast<double>(shape.operations(tokens));
    const auto weights = static_cast<double>(shape.weights());
    const auto activations = static_cast<double>(shape.activation_bytes(tokens));
    const double multiplying = multiplies_ > 0 ? operations / multiplies_ : 0;
    const double moved = (2 * 2 * weights + activations) / reads_ + 4 * weights / writes_;
    const double seconds = static_cast<double>(count) * std::max(multiplying, moved);
    return {count * shape.operations(tokens), seconds, busy_ * seconds};
  }

  double multiplies() const { return multiplies_; }
  double reads() const { return reads_; }
  double writes() const { return writes_; }

 private:
  static int64_t saturate() {
    if (block_kernels().empty()) return 0;
    const BlockSession session(*block_kernels().front());
    return session.saturate(kRoofRounds);
  }

  // work(t) on every thread, which returns how much it did; all that in a second.
  template <typename Work>
  static double leg(ThreadPool& pool, Work&& work) {
    std::vector<int64_t> done(static_cast<size_t>(pool.threads()));
    const LegTimer timer;
    pool.parallel_for(pool.threads(), [&](int64_t t) { done[static_cast<size_t>(t)] = work(t); });
    const double seconds = timer.finish(0).seconds;
    double sum = 0;
    for (const int64_t part : done) sum += static_cast<double>(part);
    return sum / seconds;
  }

  double multiplies_ = 0, reads_ = 0, writes_ = 0, busy_ = 0;
};

struct Rates {
  std::vector<double> multiplies, reads, writes;
};

Figure figure_of(const std::string& name, int64_t tokens, int threads) {
  Figure figure;
  figure.name = name;
  figure.path = strf("%lld tokens", static_cast<long long>(tokens));
  figure.threads = threads;
  figure.unit = "GFLOP/s";
  return figure;
}

// The rounds of one f and number of tokens.
class ExpertRace {
 public:
  ExpertRace(Experts& experts, LibraryExperts* library, int64_t tokens, Stream& stream)
      : experts_(experts),
        library_(library),
        tokens_(tokens),
        count_(std::clamp<int64_t>(kLegRows / tokens, 2, kLegExperts)),
        stream_(stream),
        to_roof_(figure_of(name(), tokens, stream.pool().threads())),
        to_library_(figure_of(name() + ":lib", tokens, stream.pool().threads())) {}

  Status round(int round, Rates& rates) {
    const Roof roof(experts_, stream_.pool());
    Leg legs[2];  // ours, the library's
    for (int i = 0; i < 2; ++i) {
      RETURN_IF_ERROR(stop_status("measuring"));
      const bool ours = (round + i) % 2 == 0;
      if (ours || library_ != nullptr) legs[ours ? 0 : 1] = leg(ours);
    }
    to_roof_.add(legs[0], roof.leg_of(experts_.shape(), tokens_, count_));
    if (library_ != nullptr) to_library_.add(legs[0], legs[1]);
    rates.multiplies.push_back(roof.multiplies() / 1e9);
    rates.reads.push_back(roof.reads() / 1e9);
    rates.writes.push_back(roof.writes() / 1e9);
    return Status();
  }

  // Returns how many times the library's rate ours is; 0 without one.
  double report(std::vector<Figure>& figures) const {
    figures.push_back(to_roof_.figure());
    if (library_ == nullptr) return 0;
    figures.push_back(to_library_.figure());
    return figures.back().ratio;
  }

 private:
  std::string name() const {
    return strf("f %lld", static_cast<long long>(experts_.shape().ffn));
  }
  Leg leg(bool ours) {
    const LegTimer timer;
    for (int64_t i = 0; i < count_; ++i) {
      ours ? experts_.run(tokens_, stream_) : library_->run(stream_.pool());
    }
    return timer.finish(count_ * experts_.shape().operations(tokens_));
  }

  Experts& experts_;
  LibraryExperts* const library_;
  const int64_t tokens_, count_;
  Stream& stream_;
  Race to_roof_, to_library_;
};

Status race_experts(const GemmBench& bench, int64_t ffn, Stream& stream, Rates& rates,
                    std::vector<double>& ratios, std::vector<Figure>& figures) {
  const int64_t most = *std::max_element(bench.tokens.begin(), bench.tokens.end());
  ASSIGN_OR_RETURN(Experts experts, Experts::allocate({bench.hidden, ffn, most}, bench.bytes));
  for (const int64_t tokens : bench.tokens) {
    ASSIGN_OR_RETURN(const auto library, LibraryExperts::make(experts, tokens, stream.pool()));
    ExpertRace race(experts, library.get(), tokens, stream);
    for (int round = 0; round < bench.rounds; ++round) {
      set_status_line(strf("bench gemm: f %lld, %lld tokens, round %d of %d",
                           static_cast<long long>(ffn), static_cast<long long>(tokens), round + 1,
                           bench.rounds));
      RETURN_IF_ERROR(race.round(round, rates));
    }
    const double ratio = race.report(figures);
    if (ratio > 0 && tokens >= kRivalFrom && tokens <= kRivalTo) ratios.push_back(ratio);
  }
  return Status();
}

std::string geometric_mean_text(const std::vector<double>& ratios) {
  if (ratios.empty()) return "not measured: no library";
  double logs = 0;
  for (const double ratio : ratios) logs += std::log(ratio);
  return strf("%.2f", std::exp(logs / static_cast<double>(ratios.size())));
}

std::string rate_text(const std::vector<double>& rates, const char* unit) {
  return strf("%.4g %s", quantile(rates, 0.5), unit);
}

}  // namespace

Result<BenchReport> run_gemm_bench(const GemmBench& bench) {
  CHECK(bench.rounds > 0 && bench.threads > 0 && !bench.ffn.empty() && !bench.tokens.empty());
  // Weights, half as much for gradients, and two copies in the library's order.
  RETURN_IF_ERROR(check_available(bench.bytes * 7 / 2));
  BenchReport report;
  report.bench = "gemm";
  const std::unique_ptr<Stream> stream =
      make_host_stream({"bench"}, std::make_shared<ThreadPool>(bench.threads));
  Rates rates;
  std::vector<double> ratios;
  for (const int64_t ffn : bench.ffn) {
    RETURN_IF_ERROR(race_experts(bench, ffn, *stream, rates, ratios, report.figures));
  }
  set_status_line("");
  report.facts = {
      {"processor", cpu_model()},
      {"products", cpu_ops_build()},
      {"hidden", std::to_string(bench.hidden)},
      {"weights", format_bytes(bench.bytes)},
      {"registers", rate_text(rates.multiplies, "GFLOP/s")},
      {"read", rate_text(rates.reads, "GB/s")},
      {"write", rate_text(rates.writes, "GB/s")},
      {"roof", "the slower of registers and memory: weights twice, gradient, activations"},
      {"to_library", geometric_mean_text(ratios)}};
  return report;
}

}  // namespace pagoda
