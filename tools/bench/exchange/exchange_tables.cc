// All-to-alls in each order, executed by devices whose network cards take time. Not installed.
//
//   exchange_tables [--rounds N] [--tiny] [--unequal] [--simulated]
//
// Devices are those of tools/bench/exchange/executed_exchange.h.
//
// Orders: flat, HALO, rounds, shortest first (Aurora's SJF) and random, on 4 and 8 nodes of 2
// devices, 10 us within a node, 50 and 500 us between them. Counts: even; drawn at random; skewed,
// where few devices take most; and those of a recorded run's layers (tests/golden). The bound is
// raced in the same round: one message with all bytes that the busiest card has to send or to take.
// Nothing is subtracted. Beside flat, HALO and rounds stands what the simulator has for the same
// legs (tools/bench/exchange/simulated_exchange.h), and at the end at which sizes HALO takes less
// than flat, executed and simulated, and what rounds of large parcels take over the bound. Nodes of
// 8 devices, 2 to 64 of them, are simulated only.
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
#include <string>
#include <vector>

#include "base/bytes.h"
#include "bench/race/timing.h"
#include "parallel/local_link.h"
#include "parallel/slow_link.h"
#include "plan/rounds/exchange_order.h"
#include "plan/rounds/exchange_rounds.h"
#include "plan/rounds/traffic.h"
#include "tests/testing/plan/aurora_baselines.h"
#include "tests/testing/plan/recorded_layers.h"
#include "tools/bench/exchange/drawn_exchange.h"
#include "tools/bench/exchange/executed_exchange.h"
#include "tools/bench/exchange/simulated_exchange.h"
#include "tools/bench/random_token_run.h"

namespace pagoda {
namespace {

using Matrix = SquareMatrix<int64_t>;

constexpr size_t kSimulated = 3;  // the first of kParcelOrders

// One message with all bytes of the card that is busiest by their rate, between two devices whose
// card it is.
ExchangeLeg busiest_card(const Matrix& bytes, const CardNetwork& network) {
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
  return busiest;
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
    std::printf("  %s: HALO takes less than flat at %s; simulated at %s: %s\n", counts,
                text(executed), text(simulated), executed == simulated ? "held" : "NOT HELD");
  }
};

TimedOrders race(const CardNetwork& network, const Matrix& bytes, int rounds) {
  const ExchangeLeg bound = busiest_card(bytes, network);
  const auto& all = bytes.entries();
  ExchangeDevices devices(network.devices(), {0, network.devices()}, make_card_link(network),
                          std::max(bound.bytes, *std::max_element(all.begin(), all.end())));
  const std::vector<ExchangeLegs> exchanges =
      bound_and_orders(bound, bytes, network.exchange_nodes());
  TimedOrders timed;
  timed.executed_s = median_seconds(
      exchanges, rounds, [&](const ExchangeLegs& legs) { return devices.seconds(legs); });
  for (size_t i = 0; i < kSimulated; ++i) {
    timed.simulated_s.push_back(simulated_exchange_s(exchanges[i + 1], network));
  }
  return timed;
}

void table(const CardNetwork& network, const RoutingTrace& trace, int rounds, bool tiny,
           std::vector<double>& errors) {
  std::printf("\n%d nodes x %d devices, %.0f us within, %.0f us between, %.2g and %.2g GB/s\n",
              network.nodes, network.each, 1e6 * network.within_s, 1e6 * network.between_s,
              1e-9 * network.within_bytes_per_s, 1e-9 * network.between_bytes_per_s);
  TimedOrders::print_heading("   simulated: flat, halo, rounds");
  std::map<ExchangeCounts, Crossover> crossovers;
  LargeParcels large;
  for (const auto& [counts, name] : kExchangeCounts) {
    const SquareMatrix<double> parts = drawn_shares(counts, network.devices(), trace);
    for (const int64_t mean : kParcelSizes) {
      if (tiny && mean > 16 * kKiB) break;
      const TimedOrders timed = race(network, parcel_bytes(parts, mean), rounds);
      timed.print(name, mean);
      large.note(mean, timed);
      for (size_t i = 0; i < kSimulated; ++i) {
        errors.push_back(std::abs(timed.simulated_s[i] / timed.order_s(i) - 1));
      }
      Crossover& crossover = crossovers[counts];
      Crossover::add(crossover.executed, mean, timed.order_s(0), timed.order_s(1));
      Crossover::add(crossover.simulated, mean, timed.simulated_s[0], timed.simulated_s[1]);
    }
  }
  for (const auto& [counts, name] : kExchangeCounts) crossovers[counts].print(name);
  large.print();
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
      ExchangeDevices devices(count, {0, count}, cards.link(), 4 * mean);
      const std::vector<double> medians_s = median_seconds(
          {exchange_legs(parcels, ExchangeOrder::kFlat), legs_in_rounds(parcels),
           legs_in_rounds(parcels, cards.rates, {}, 1), legs_in_rounds(parcels, cards.rates)},
          rounds, [&](const ExchangeLegs& legs) { return devices.seconds(legs); });
      std::printf("  %-8s %8s  %8.2f ms %8.2f ms", name, size_text(mean).c_str(), 1e3 * one_s,
                  1e3 * stated_s);
      for (const double median_s : medians_s) {
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
    for (const int64_t bytes : sizes) {
      const auto seconds = [&](ExchangeOrder order) {
        return simulate_even_exchange(network, order, bytes).seconds;
      };
      std::printf("  %8.2f", seconds(ExchangeOrder::kFlat) / seconds(ExchangeOrder::kHalo));
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
