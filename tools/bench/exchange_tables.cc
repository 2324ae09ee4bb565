// All-to-alls in each order, executed by devices whose network cards take time. Not installed.
//
//   exchange_tables [--rounds N] [--tiny] [--unequal] [--simulated]
//
// Devices are those of tools/bench/executed_exchange.h.
//
// Orders: flat, HALO, rounds, shortest first (Aurora's SJF) and random, on 4 and 8 nodes of 2
// devices, 10 us within a node, 50 and 500 us between them. Counts: even; drawn at random; skewed,
// where few devices take most; and those of a recorded run's layers (tests/golden). The bound is
// raced in the same round: one message with all bytes that the busiest card has to send or to take.
// Nothing is subtracted. Beside flat, HALO and rounds stands what the simulator has for the same
// legs (tools/bench/simulated_exchange.h), and at the end at which sizes HALO takes less than flat,
// executed and simulated. Nodes of 8 devices, 2 to 64 of them, are simulated only.
//
// Then 8 nodes of one device, half or a quarter of which have a card that is 4 times as fast, over
// SlowLink's cards: flat; rounds as if all were equally fast; rounds by rates, with one partner at
// a time; and rounds in which a fast card has several. Rows are even, by the receivers' rates, or
// go from the slow ones to the fast ones and no further, as in zebra. Two bounds stand beside: that
// of one partner at a time (Aurora, appendix B), and the one of Theorem 5.2, which wants several.
//
// Prints medians over N rounds (3). --tiny shows in seconds that the program works; --unequal
// leaves out the nodes of equal cards, --simulated all that is executed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "bench/race/timing.h"
#include "parallel/local_link.h"
#include "parallel/slow_link.h"
#include "plan/exchange/routed_traffic.h"
#include "plan/rounds/exchange_order.h"
#include "plan/rounds/exchange_rounds.h"
#include "plan/rounds/traffic.h"
#include "tests/testing/plan/aurora_baselines.h"
#include "tests/testing/plan/recorded_layers.h"
#include "tools/bench/executed_exchange.h"
#include "tools/bench/random_token_run.h"
#include "tools/bench/simulated_exchange.h"

namespace pagoda {
namespace {

using Matrix = SquareMatrix<int64_t>;

enum class Order { kFlat, kHalo, kRounds, kShortest, kRandom };
constexpr size_t kSimulated = 3;  // the first of these
constexpr std::pair<Order, const char*> kOrders[] = {{Order::kFlat, "flat"},
                                                     {Order::kHalo, "halo"},
                                                     {Order::kRounds, "rounds"},
                                                     {Order::kShortest, "shortest"},
                                                     {Order::kRandom, "random"}};

std::vector<ParcelBytes> parcels_of(const Matrix& bytes) {
  std::vector<ParcelBytes> parcels;
  for (int to = 0; to < bytes.size(); ++to) {
    for (int from = 0; from < bytes.size(); ++from) {
      if (from != to && bytes.at(from, to) > 0) parcels.push_back({from, to, bytes.at(from, to)});
    }
  }
  return parcels;
}

std::vector<ExchangeLeg> legs_of(const Matrix& bytes, Order order, const CardNetwork& network) {
  std::vector<ParcelBytes> parcels = parcels_of(bytes);
  std::mt19937 random(11);
  const auto shorter = [](const auto& a, const auto& b) { return a.bytes < b.bytes; };
  if (order == Order::kShortest) std::stable_sort(parcels.begin(), parcels.end(), shorter);
  if (order == Order::kRandom) std::shuffle(parcels.begin(), parcels.end(), random);
  const ExchangeOrder by = order == Order::kHalo     ? ExchangeOrder::kHalo
                           : order == Order::kRounds ? ExchangeOrder::kRounds
                                                     : ExchangeOrder::kFlat;
  return exchange_legs(parcels, by, network.exchange_nodes());
}

// One message with all bytes of the card that is busiest by their rate, between two devices whose
// card it is.
std::vector<ExchangeLeg> busiest_card(const Matrix& bytes, const CardNetwork& network) {
  ExchangeLeg busiest;
  double most_s = 0;
  const auto consider = [&](int64_t sum, bool within) {
    ExchangeLeg leg{.from = 0, .to = within ? 1 : network.each};
    leg.bytes = sum;
    const double seconds = network.seconds(leg.from, leg.to, sum);
    if (sum == 0 || seconds <= most_s) return;
    most_s = seconds;
    busiest = leg;
  };
  for (int d = 0; d < bytes.size(); ++d) {
    for (const bool within : {false, true}) {
      int64_t sent = 0, taken = 0;
      for (int other = 0; other < bytes.size(); ++other) {
        if (other == d || network.same_node(d, other) != within) continue;
        sent += bytes.at(d, other);
        taken += bytes.at(other, d);
      }
      consider(std::max(sent, taken), within);
    }
  }
  return {busiest};
}

enum class Counts { kEven, kRandom, kSkewed, kRecorded };
constexpr std::pair<Counts, const char*> kCounts[] = {{Counts::kEven, "even"},
                                                      {Counts::kRandom, "random"},
                                                      {Counts::kSkewed, "skewed"},
                                                      {Counts::kRecorded, "recorded"}};

// [from][to] relative, with a mean of 1 off the diagonal.
SquareMatrix<double> shares(Counts counts, const CardNetwork& network, const RoutingTrace& trace) {
  const int n = network.devices();
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0, 2);
  SquareMatrix<double> shares(n, 1);
  if (counts == Counts::kRecorded) {
    const auto experts = static_cast<int>(trace.shape.num_experts);
    ExpertDevices devices;
    for (int e = 0; e < experts; ++e) devices.push_back(e * n / experts);
    LayerRouting layer;
    for (const LayerRouting& microbatch : trace.steps.back().routing) {
      layer.push_back(microbatch.front());
    }
    shares = need(routed_traffic(layer, devices, n));
  }
  double sum = 0;
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      if (counts == Counts::kRandom) shares.at(from, to) = uniform(random);
      if (counts == Counts::kSkewed) shares.at(from, to) = uniform(random) / (1 + to);
      if (from != to) sum += shares.at(from, to);
    }
  }
  SquareMatrix<double> scaled(n, 0);
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) scaled.at(from, to) = shares.at(from, to) * n * (n - 1) / sum;
  }
  return scaled;
}

Matrix bytes_of(const SquareMatrix<double>& shares, int64_t mean) {
  Matrix bytes(shares.size());
  for (int from = 0; from < shares.size(); ++from) {
    for (int to = 0; to < shares.size(); ++to) {
      const double scaled = shares.at(from, to) * static_cast<double>(mean);
      if (from != to) bytes.at(from, to) = align_up(static_cast<int64_t>(scaled), 64);
    }
  }
  return bytes;
}

std::string size_text(int64_t bytes) {
  return bytes >= kMiB ? strf("%lld MiB", (long long)(bytes / kMiB))
                       : strf("%lld KiB", (long long)(bytes / kKiB));
}

// The sizes at which HALO takes less than flat.
struct Crossover {
  std::string executed, simulated;

  static void add(std::string& sizes, int64_t bytes, double flat_s, double halo_s) {
    if (halo_s < flat_s) sizes += (sizes.empty() ? "" : ", ") + size_text(bytes);
  }
  void print(const char* counts) const {
    const auto text = [](const std::string& sizes) {
      return sizes.empty() ? "no size" : sizes.c_str();
    };
    std::printf("  %s: HALO takes less than flat at %s; simulated at %s\n", counts, text(executed),
                text(simulated));
  }
};

// The medians of a parcel size, and what is simulated of it: [order].
struct Taken {
  double least_s = 0;
  std::vector<double> executed_s, simulated_s;

  void print(const char* counts, int64_t mean) const {
    std::printf("  %-8s %8s %7.2f ms", counts, size_text(mean).c_str(), 1e3 * least_s);
    for (const double seconds : executed_s) {
      std::printf("  %7.2f (%5.2f)", 1e3 * seconds, seconds / least_s);
    }
    for (const double seconds : simulated_s) std::printf("  %8.2f", 1e3 * seconds);
    std::printf("\n");
    std::fflush(stdout);
  }
};

double simulated_s(const CardNetwork& network, const std::vector<ExchangeLeg>& legs) {
  const Cost within = {network.within_s, 1 / network.within_bytes_per_s, 0};
  const Cost between = {network.between_s, 1 / network.between_bytes_per_s, 0};
  return simulated_exchange_s(legs, network.exchange_nodes(), within,
                              std::vector<Cost>(static_cast<size_t>(network.devices()), between));
}

Taken race(const CardNetwork& network, const Matrix& bytes, int rounds) {
  const std::vector<ExchangeLeg> bound = busiest_card(bytes, network);
  const auto& all = bytes.entries();
  ExchangeDevices devices(network.devices(), make_card_link(network),
                          std::max(bound.front().bytes, *std::max_element(all.begin(), all.end())));
  std::vector<std::vector<ExchangeLeg>> orders;
  for (const auto& [order, name] : kOrders) orders.push_back(legs_of(bytes, order, network));
  std::vector<double> bound_s;
  std::vector<std::vector<double>> taken_s(orders.size());
  for (int round = 0; round < rounds; ++round) {
    bound_s.push_back(devices.seconds(bound));
    for (size_t i = 0; i < orders.size(); ++i) taken_s[i].push_back(devices.seconds(orders[i]));
  }
  Taken taken{quantile(bound_s, 0.5), {}, {}};
  for (const std::vector<double>& seconds : taken_s) {
    taken.executed_s.push_back(quantile(seconds, 0.5));
  }
  for (size_t i = 0; i < kSimulated; ++i) {
    taken.simulated_s.push_back(simulated_s(network, orders[i]));
  }
  return taken;
}

void table(const CardNetwork& network, const RoutingTrace& trace, int rounds, bool tiny,
           std::vector<double>& errors) {
  std::printf(
      "\n%d nodes x %d devices, %.0f us within, %.0f us between, %.2g and %.2g GB/s\n"
      "  counts    parcel      bound",
      network.nodes, network.each, 1e6 * network.within_s, 1e6 * network.between_s,
      1e-9 * network.within_bytes_per_s, 1e-9 * network.between_bytes_per_s);
  for (const auto& [order, name] : kOrders) std::printf("  %15s", name);
  std::printf("   simulated: flat, halo, rounds\n");
  std::map<Counts, Crossover> crossovers;
  for (const auto& [counts, name] : kCounts) {
    const SquareMatrix<double> parts = shares(counts, network, trace);
    for (const int64_t mean : {kKiB, 16 * kKiB, 256 * kKiB, kMiB, 4 * kMiB}) {
      if (tiny && mean > 16 * kKiB) break;
      const Taken taken = race(network, bytes_of(parts, mean), rounds);
      taken.print(name, mean);
      for (size_t i = 0; i < kSimulated; ++i) {
        errors.push_back(std::abs(taken.simulated_s[i] / taken.executed_s[i] - 1));
      }
      Crossover& crossover = crossovers[counts];
      Crossover::add(crossover.executed, mean, taken.executed_s[0], taken.executed_s[1]);
      Crossover::add(crossover.simulated, mean, taken.simulated_s[0], taken.simulated_s[1]);
    }
  }
  for (const auto& [counts, name] : kCounts) crossovers[counts].print(name);
}

enum class Rows { kEven, kByRate, kToFast };
constexpr std::pair<Rows, const char*> kRows[] = {
    {Rows::kEven, "even"}, {Rows::kByRate, "by rate"}, {Rows::kToFast, "to fast"}};

// One of so many cards is 4 times as fast.
struct UnequalCards {
  static constexpr double kSlowest = 50e6, kLatencyS = 50e-6;
  UnequalCards(int devices, int one_of) : one_of(one_of) {
    for (int d = 0; d < devices; ++d) rates.push_back(fast(d) ? 4 * kSlowest : kSlowest);
  }
  bool fast(int device) const { return device % one_of == one_of - 1; }
  std::unique_ptr<Link> link() const {
    const SlowLink::Speed speed{.latency_s = kLatencyS,
                                .cards = std::make_shared<NetworkCards>(rates)};
    return std::make_unique<SlowLink>(std::make_unique<LocalLink>(), speed);
  }
  Matrix bytes(Rows rows, int64_t mean) const {
    Matrix bytes(static_cast<int>(rates.size()));
    for (int from = 0; from < bytes.size(); ++from) {
      for (int to = 0; to < bytes.size(); ++to) {
        const bool goes = rows != Rows::kToFast || (!fast(from) && fast(to));
        const int64_t times = rows == Rows::kByRate && fast(to) ? 4 : 1;
        if (from != to && goes) bytes.at(from, to) = times * mean;
      }
    }
    return bytes;
  }

  const int one_of;
  std::vector<double> rates;
};

void unequal_table(int count, int one_of, int rounds, bool tiny) {
  const UnequalCards cards(count, one_of);
  std::printf(
      "\n%d nodes, one of %d with a card of %.2g GB/s, else %.2g; %.0f us\n"
      "  rows      parcel   one partner    stated         flat      as equal      by rates"
      "       several\n",
      count, one_of, 4e-9 * UnequalCards::kSlowest, 1e-9 * UnequalCards::kSlowest,
      1e6 * UnequalCards::kLatencyS);
  for (const auto& [rows, name] : kRows) {
    for (const int64_t mean : {16 * kKiB, 256 * kKiB, kMiB}) {
      if (tiny && mean > 16 * kKiB) break;
      const Matrix bytes = cards.bytes(rows, mean);
      const std::vector<ParcelBytes> parcels = parcels_of(bytes);
      SquareMatrix<double> traffic(count);
      for (const ParcelBytes& of : parcels) {
        traffic.at(of.from, of.to) = static_cast<double>(of.bytes);
      }
      const double one_s = line_bound(need(link_seconds(traffic, cards.rates)));
      const double stated_s = concurrent_bound_s(traffic, cards.rates);
      const std::vector<ExchangeLeg> orders[] = {
          exchange_legs(parcels, ExchangeOrder::kFlat), legs_in_rounds(parcels),
          legs_in_rounds(parcels, cards.rates, {}, 1), legs_in_rounds(parcels, cards.rates)};
      ExchangeDevices devices(count, cards.link(), 4 * mean);
      std::vector<std::vector<double>> taken_s(std::size(orders));
      for (int round = 0; round < rounds; ++round) {
        for (size_t i = 0; i < taken_s.size(); ++i) {
          taken_s[i].push_back(devices.seconds(orders[i]));
        }
      }
      std::printf("  %-8s %8s  %8.2f ms %8.2f ms", name, size_text(mean).c_str(), 1e3 * one_s,
                  1e3 * stated_s);
      for (const std::vector<double>& seconds : taken_s) {
        const double median_s = quantile(seconds, 0.5);
        std::printf("  %6.1f (%4.2f)", 1e3 * median_s, median_s / stated_s);
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
}

// Where flat takes as many times as long as HALO, by the simulator alone, for even counts.
void simulated(bool tiny) {
  std::printf(
      "\nSimulated: flat over HALO, 8 devices a node, 10 us within, 50 us between\n"
      "  nodes");
  const std::vector<int64_t> sizes = {kKiB, 16 * kKiB, 256 * kKiB, kMiB};
  for (const int64_t bytes : sizes) std::printf("  %8s", size_text(bytes).c_str());
  std::printf("\n");
  for (const int nodes : {2, 4, 8, 16, 32, 64}) {
    if (tiny && nodes > 4) break;
    CardNetwork network;
    network.nodes = nodes;
    network.each = 8;
    std::printf("  %5d", nodes);
    for (const int64_t mean : sizes) {
      const Matrix bytes = bytes_of(SquareMatrix<double>(network.devices(), 1), mean);
      const auto seconds = [&](Order order) {
        return simulated_s(network, legs_of(bytes, order, network));
      };
      std::printf("  %8.2f", seconds(Order::kFlat) / seconds(Order::kHalo));
      std::fflush(stdout);
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  using namespace pagoda;
  int rounds = 3;
  bool tiny = false, unequal = false, only_simulated = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiny") == 0) {
      tiny = true;
    } else if (std::strcmp(argv[i], "--unequal") == 0) {
      unequal = true;
    } else if (std::strcmp(argv[i], "--simulated") == 0) {
      only_simulated = true;
    } else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr,
                   "usage: exchange_tables [--rounds N] [--tiny] [--unequal] [--simulated]\n");
      return 2;
    }
  }
  if (tiny) rounds = 1;
  if (only_simulated) {
    simulated(tiny);
    return 0;
  }
  const RoutingTrace trace = golden_routing();
  std::vector<double> errors;
  for (const int nodes : unequal ? std::vector<int>() : std::vector{4, 8}) {
    for (const double between_s : {50e-6, 500e-6}) {
      CardNetwork network;
      network.nodes = nodes;
      network.between_s = between_s;
      table(network, trace, std::max(1, rounds), tiny, errors);
      if (tiny) break;
    }
    if (tiny) break;
  }
  for (const int one_of : {2, 4}) unequal_table(8, one_of, std::max(1, rounds), tiny);
  if (!errors.empty()) {
    std::printf("\nsizes of %zu errors of simulated times: median %.0f %%, ninth decile %.0f %%\n",
                errors.size(), 100 * quantile(errors, 0.5), 100 * quantile(errors, 0.9));
  }
  if (!unequal) simulated(tiny);
}
