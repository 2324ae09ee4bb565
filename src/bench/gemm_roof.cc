#include "bench/gemm_roof.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "bench/roofs/streams.h"
#include "kernels/cpu/products/block_kernel.h"

namespace pagoda {
namespace {

constexpr double kLeastSeconds = 0.05;
constexpr int64_t kRegisterRounds = 10000;

int64_t saturate(const BlockKernel& kernel) {
  const BlockSession session(kernel);
  return session.saturate(kRegisterRounds);
}

double rate_of(const Timing& timing) {
  return timing.seconds > 0 ? static_cast<double>(timing.bytes) / timing.seconds : 0;
}

// `passes` times work(thread), which returns how much it did, on every thread.
template <typename Work>
Timing repeat(ThreadPool& pool, int64_t passes, const Work& work) {
  std::vector<int64_t> done(static_cast<size_t>(pool.threads()));
  const TimingClock timer;
  pool.parallel_for(pool.threads(), [&](int64_t t) {
    int64_t sum = 0;
    for (int64_t i = 0; i < passes; ++i) sum += work(t);
    done[static_cast<size_t>(t)] = sum;
  });
  return timer.finish(std::accumulate(done.begin(), done.end(), int64_t{0}));
}

// The passes of the last timing say how many the next one needs; the first is the warm-up.
template <typename Work>
Timing measured_timing(Stream& stream, const Work& work) {
  Timing timing;
  stream.enqueue([&] {
    int64_t passes = 1;
    timing = repeat(stream.pool(), passes, work);
    do {
      const double more = 1.2 * kLeastSeconds / timing.seconds;
      passes = static_cast<int64_t>(std::ceil(static_cast<double>(passes) * more));
      timing = repeat(stream.pool(), passes, work);
    } while (timing.seconds < kLeastSeconds);
  });
  stream.synchronize();
  return timing;
}

}  // namespace

void GemmRoof::measure(Part part) {
  Timing& timing = timings_[static_cast<size_t>(part)];
  const int64_t threads = stream_.pool().threads();
  const auto share_of = [threads](int64_t bytes) {
    return bytes / threads / kStreamAlign * kStreamAlign;
  };
  if (part == Part::kMultiply) {
    registers_.clear();
    timing = Timing();
    for (const BlockKernel* kernel : block_kernels()) {
      registers_.push_back(measured_timing(stream_, [&](int64_t) { return saturate(*kernel); }));
      if (rate_of(registers_.back()) > rate_of(timing)) timing = registers_.back();
    }
  } else if (part == Part::kRead) {
    const int64_t share = share_of(experts_.weight_bytes());
    const std::byte* all = reinterpret_cast<const std::byte*>(experts_.weights(0));
    timing = measured_timing(stream_, [&](int64_t t) {
      use_result(stream_sum(reinterpret_cast<const double*>(all + t * share), share));
      return share;
    });
  } else {
    const int64_t share = share_of(experts_.gradient_bytes());
    std::byte* all = reinterpret_cast<std::byte*>(experts_.gradient(0));
    timing = measured_timing(stream_, [&](int64_t t) {
      stream_fill(reinterpret_cast<double*>(all + t * share), 0x1p-7, share);
      return share;
    });
  }
}

double GemmRoof::rate(Part part) const { return rate_of(timings_[static_cast<size_t>(part)]); }

std::vector<double> GemmRoof::register_rates() const {
  std::vector<double> rates;
  for (const Timing& timing : registers_) rates.push_back(rate_of(timing));
  return rates;
}

Timing GemmRoof::timing(int64_t tokens) const {
  const ExpertShape& shape = experts_.shape();
  const int64_t operations = shape.operations(tokens);
  const auto weights = static_cast<double>(shape.weights());
  const auto activations = static_cast<double>(shape.activation_bytes(tokens));
  const double registers = rate(Part::kMultiply);
  const double multiplying = registers > 0 ? static_cast<double>(operations) / registers : 0;
  const double moving = (2 * 2 * weights + activations) / rate(Part::kRead) +
                        4 * weights / rate(Part::kWrite);
  const double seconds =
      static_cast<double>(experts_.count()) * std::max(multiplying, moving);
  Timing all;
  for (const Timing& part : timings_) {
    all.seconds += part.seconds;
    all.cpu_seconds += part.cpu_seconds;
  }
  return {experts_.count() * operations, seconds, seconds * all.cpu_seconds / all.seconds};
}

}  // namespace pagoda
