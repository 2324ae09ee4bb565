#include "bench/gemm.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "bench/gemm_experts.h"
#include "bench/gemm_roof.h"
#include "bench/race/available_memory.h"
#include "hardware/machine.h"
#include "kernels/cpu/products/block_kernel.h"
#include "kernels/cpu/products/products.h"
#include "kernels/ops.h"

namespace pagoda {
namespace {

constexpr int64_t kRivalFrom = 16, kRivalTo = 256;  // tokens that the geometric mean is over

struct Rates {
  std::vector<double> multiplies, reads, writes;
  std::vector<std::vector<double>> registers;  // [kernel of block_kernels()] rates
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
        stream_(stream),
        roof_(experts, stream),
        to_roof_(figure_of(name(), tokens, stream.pool().threads())),
        to_library_(figure_of(name() + ":lib", tokens, stream.pool().threads())) {}

  void warm_up() {
    take_turn(kOurs);
    take_turn(kLibrary);
  }

  // Rounds begin with every timing in turn and go to and fro, so that none always follows another.
  Status round(int round, Rates& rates) {
    for (int i = 0; i < kTurns; ++i) {
      RETURN_IF_ERROR(stop_status("measuring"));
      const int turn = (round + i) % kTurns;
      take_turn(round % 2 == 0 ? turn : kTurns - 1 - turn);
    }
    to_roof_.add(ours_, roof_.timing(tokens_));
    if (library_ != nullptr) to_library_.add(ours_, librarys_);
    const std::vector<double> registers = roof_.register_rates();
    rates.registers.resize(registers.size());
    for (size_t i = 0; i < registers.size(); ++i) rates.registers[i].push_back(registers[i]);
    rates.multiplies.push_back(roof_.rate(GemmRoof::Part::kMultiply) / 1e9);
    rates.reads.push_back(roof_.rate(GemmRoof::Part::kRead) / 1e9);
    rates.writes.push_back(roof_.rate(GemmRoof::Part::kWrite) / 1e9);
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
  // Those before are the parts of the roof.
  static constexpr int kOurs = GemmRoof::kParts, kLibrary = kOurs + 1, kTurns = kLibrary + 1;

  void take_turn(int turn) {
    if (turn < kOurs) return roof_.measure(static_cast<GemmRoof::Part>(turn));
    if (turn == kLibrary && library_ == nullptr) return;
    const TimingClock timer;
    turn == kOurs ? experts_.run(tokens_, stream_) : library_->run(stream_);
    (turn == kOurs ? ours_ : librarys_) =
        timer.finish(experts_.count() * experts_.shape().operations(tokens_));
  }

  Experts& experts_;
  LibraryExperts* const library_;
  const int64_t tokens_;
  Stream& stream_;
  GemmRoof roof_;
  Timing ours_, librarys_;
  PairedRounds to_roof_, to_library_;
};

Status race_experts(const GemmBench& bench, int64_t ffn, Stream& stream, Rates& rates,
                    std::vector<double>& ratios, std::vector<Figure>& figures) {
  const int64_t most = *std::max_element(bench.tokens.begin(), bench.tokens.end());
  ASSIGN_OR_RETURN(Experts experts, Experts::allocate({bench.hidden, ffn, most}, bench.bytes));
  for (const int64_t tokens : bench.tokens) {
    ASSIGN_OR_RETURN(const auto library, LibraryExperts::make(experts, tokens, stream));
    ExpertRace race(experts, library.get(), tokens, stream);
    race.warm_up();
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

// "avx512 352 GFLOP/s, avx2 178 GFLOP/s": what the registers of each instruction set reach.
std::string registers_text(const Rates& rates) {
  std::string text;
  for (size_t i = 0; i < rates.registers.size(); ++i) {
    std::vector<double> scaled = rates.registers[i];
    for (double& rate : scaled) rate /= 1e9;
    text += std::string(i == 0 ? "" : ", ") + block_kernels()[i]->name + " " +
            rate_text(scaled, "GFLOP/s");
  }
  return text.empty() ? "none" : text;
}

}  // namespace

int64_t cold_gemm_bytes() {
  constexpr int64_t kLeast = 512 * kMiB;
  return std::max<int64_t>(kLeast, 2 * sysconf(_SC_LEVEL3_CACHE_SIZE));
}

Result<BenchReport> run_gemm_bench(const GemmBench& bench) {
  CHECK(bench.rounds > 0 && bench.threads > 0 && !bench.ffn.empty() && !bench.tokens.empty());
  // Weights, half as much for gradients, and two copies in the library's order.
  RETURN_IF_ERROR(check_available(bench.bytes * 7 / 2));
  BenchReport report;
  report.bench = "gemm";
  const std::unique_ptr<Stream> stream =
      make_host_stream({"bench", WorkKind::kCompute}, std::make_shared<ThreadPool>(bench.threads));
  Rates rates;
  std::vector<double> ratios;
  for (const int64_t ffn : bench.ffn) {
    RETURN_IF_ERROR(race_experts(bench, ffn, *stream, rates, ratios, report.figures));
  }
  set_status_line("");
  report.facts = {
      {"processor", cpu_model()},
      {"kernel", products_kernel()},
      {"products", cpu_ops_build()},
      {"hidden", std::to_string(bench.hidden)},
      {"weights", format_bytes(bench.bytes)},
      {"registers", rate_text(rates.multiplies, "GFLOP/s")},
      {"instructions", registers_text(rates)},
      {"read", rate_text(rates.reads, "GB/s")},
      {"write", rate_text(rates.writes, "GB/s")},
      {"roof", "the slower of the best registers and memory: weights twice, gradient, activations"},
      {"to_library", geometric_mean_text(ratios)}};
  return report;
}

}  // namespace pagoda
