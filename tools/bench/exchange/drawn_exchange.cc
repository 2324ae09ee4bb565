#include "tools/bench/exchange/drawn_exchange.h"

#include <algorithm>
#include <cstdio>
#include <random>

#include "plan/exchange/routed_traffic.h"
#include "tools/bench/random_token_run.h"

namespace pagoda {

SquareMatrix<double> drawn_shares(ExchangeCounts counts, int devices, const RoutingTrace& trace) {
  const int n = devices;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0, 2);
  SquareMatrix<double> shares(n, 1);
  if (counts == ExchangeCounts::kRecorded) {
    const auto experts = static_cast<int>(trace.shape.num_experts);
    ExpertDevices of_experts;
    for (int e = 0; e < experts; ++e) of_experts.push_back(e * n / experts);
    LayerRouting layer;
    for (const LayerRouting& microbatch : trace.steps.back().routing) {
      layer.push_back(microbatch.front());
    }
    shares = need(routed_traffic(layer, of_experts, n));
  }
  double sum = 0;
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      if (counts == ExchangeCounts::kRandom) shares.at(from, to) = uniform(random);
      if (counts == ExchangeCounts::kSkewed) shares.at(from, to) = uniform(random) / (1 + to);
      if (from != to) sum += shares.at(from, to);
    }
  }
  SquareMatrix<double> scaled(n, 0);
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) scaled.at(from, to) = shares.at(from, to) * n * (n - 1) / sum;
  }
  return scaled;
}

SquareMatrix<int64_t> parcel_bytes(const SquareMatrix<double>& shares, int64_t mean) {
  SquareMatrix<int64_t> bytes(shares.size());
  for (int from = 0; from < shares.size(); ++from) {
    for (int to = 0; to < shares.size(); ++to) {
      const double scaled = shares.at(from, to) * static_cast<double>(mean);
      if (from != to) bytes.at(from, to) = align_up(static_cast<int64_t>(scaled), 64);
    }
  }
  return bytes;
}

std::vector<ParcelBytes> parcels_of(const SquareMatrix<int64_t>& bytes) {
  std::vector<ParcelBytes> parcels;
  for (int to = 0; to < bytes.size(); ++to) {
    for (int from = 0; from < bytes.size(); ++from) {
      if (from != to && bytes.at(from, to) > 0) parcels.push_back({from, to, bytes.at(from, to)});
    }
  }
  return parcels;
}

ExchangeLegs legs_in_order(const SquareMatrix<int64_t>& bytes, ParcelOrder order,
                           const ExchangeNodes& nodes) {
  std::vector<ParcelBytes> parcels = parcels_of(bytes);
  std::mt19937 random(11);
  const auto shorter = [](const auto& a, const auto& b) { return a.bytes < b.bytes; };
  if (order == ParcelOrder::kShortest) std::stable_sort(parcels.begin(), parcels.end(), shorter);
  if (order == ParcelOrder::kRandom) std::shuffle(parcels.begin(), parcels.end(), random);
  const ExchangeOrder by = order == ParcelOrder::kHalo     ? ExchangeOrder::kHalo
                           : order == ParcelOrder::kRounds ? ExchangeOrder::kRounds
                                                           : ExchangeOrder::kFlat;
  return exchange_legs(parcels, by, nodes);
}

std::vector<ExchangeLegs> bound_and_orders(const ExchangeLeg& bound,
                                           const SquareMatrix<int64_t>& bytes,
                                           const ExchangeNodes& nodes) {
  std::vector<ExchangeLegs> exchanges = {{bound}};
  for (const auto& [order, name] : kParcelOrders) {
    exchanges.push_back(legs_in_order(bytes, order, nodes));
  }
  return exchanges;
}

std::string size_text(int64_t bytes) {
  return bytes >= kMiB ? strf("%lld MiB", (long long)(bytes / kMiB))
                       : strf("%lld KiB", (long long)(bytes / kKiB));
}

void TimedOrders::print(const char* counts, int64_t mean) const {
  std::printf("  %-8s %8s %7.2f ms", counts, size_text(mean).c_str(), 1e3 * bound_s());
  for (size_t i = 1; i < executed_s.size(); ++i) {
    std::printf("  %7.2f (%5.2f)", 1e3 * executed_s[i], executed_s[i] / bound_s());
  }
  for (const double seconds : simulated_s) std::printf("  %8.2f", 1e3 * seconds);
  std::printf("\n");
  std::fflush(stdout);
}

void LargeParcels::note(int64_t mean, const TimedOrders& timed) {
  if (mean < kMiB) return;
  const double rounds_s = timed.order_s(ParcelOrder::kRounds);
  rounds_.push_back(rounds_s / timed.bound_s());
  shortest_.push_back(timed.order_s(ParcelOrder::kShortest) / rounds_s);
}

void LargeParcels::print() const {
  constexpr double kMost = 1.10;
  if (rounds_.empty()) return;
  const double most = std::ranges::max(rounds_);
  std::printf(
      "  parcels of 1 MiB and more: rounds take %.2f to %.2f x the bound, %s (<= %.2f); shortest "
      "first takes %.2f to %.2f x as long as rounds\n",
      std::ranges::min(rounds_), most, most <= kMost ? "held" : "NOT HELD", kMost,
      std::ranges::min(shortest_), std::ranges::max(shortest_));
}

void TimedOrders::print_heading(const char* simulated) {
  std::printf("  counts    parcel      bound");
  for (const auto& [order, name] : kParcelOrders) std::printf("  %15s", name);
  std::printf("%s\n", simulated);
}

}  // namespace pagoda
