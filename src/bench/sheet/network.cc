#include "bench/sheet/network.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "bench/sheet/network_race.h"
#include "parallel/launcher.h"

namespace pagoda {
namespace {

constexpr std::array<int64_t, 3> kMessageBytes = {64 * kKiB, kMiB, 16 * kMiB};
constexpr std::array<int64_t, 4> kExchangedBytes = {64 * kKiB, 256 * kKiB, kMiB, 4 * kMiB};

struct Pair {
  int first, second;
};

// Neighbours in a ring.
std::vector<Pair> pairs_of(int size) {
  std::vector<Pair> pairs;
  for (int rank = 0; rank < (size == 2 ? 1 : size); ++rank) {
    pairs.push_back({rank, (rank + 1) % size});
  }
  return pairs;
}

Figure row_of(const char* name, const std::string& path, int64_t message_bytes) {
  Figure row;
  row.name = name;
  row.path = path;
  row.page_bytes = message_bytes;
  return row;
}

// The rounds of a pair.
struct PairRounds {
  Pair pair;
  std::vector<double> ping_us, busy_ping_us;
  struct Race {
    int64_t message_bytes;
    int flows;
    bool both;
    PairedRounds rounds;
  };
  std::vector<Race> races;

  explicit PairRounds(Pair of) : pair(of) {
    const auto add = [&](const char* name, const char* way, int64_t bytes, int flows, bool both) {
      const std::string path = strf("%d %s %d", pair.first, way, pair.second);
      races.push_back({bytes, flows, both, PairedRounds(row_of(name, path, bytes))});
    };
    for (const int64_t bytes : kMessageBytes) {
      add("one way", ">", bytes, 1, false);
      add("both ways", "-", bytes, 1, true);
    }
    add("4 flows", "-", kMiB, NetworkRace::kMostFlows, true);
  }

  Status add_round(NetworkRace& race) {
    ASSIGN_OR_RETURN(const NetworkRace::Pings pings, race.ping(pair.first, pair.second));
    ping_us.push_back(pings.alone_us);
    busy_ping_us.push_back(pings.among_others_us);
    for (Race& one : races) {
      ASSIGN_OR_RETURN(const NetworkRace::Legs legs,
                       race.race(pair.first, pair.second, one.message_bytes, one.flows, one.both));
      one.rounds.add(legs.ours, legs.roof);
    }
    return Status();
  }
  // The rate of the largest messages both ways.
  double gb_s() const { return races[races.size() - 2].rounds.figure().value; }
};

// The rounds of each process with all others; none where what is between two is no network.
struct CardRounds {
  std::vector<PairedRounds> of_ranks;

  explicit CardRounds(const std::vector<Node>& nodes) {
    const auto count = static_cast<int>(nodes.size());
    bool apart = count > 2;
    for (int rank = 0; rank < count; ++rank) apart &= first_on_machine(nodes, rank) == rank;
    for (int rank = 0; apart && rank < count; ++rank) {
      of_ranks.emplace_back(row_of("one to all", strf("%d - all", rank), 0));
    }
  }

  Status add_round(NetworkRace& race) {
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
      ASSIGN_OR_RETURN(const NetworkRace::Legs legs, race.race_all_others(static_cast<int>(rank)));
      of_ranks[rank].add(legs.ours, legs.roof);
    }
    return Status();
  }
};

// The rounds of exchanges between all.
struct ExchangeRounds {
  struct Size {
    int64_t bytes;
    PairedRounds rounds;
    std::vector<double> ours_us, mpis_us;  // of an exchange that waits
  };
  std::vector<Size> sizes;

  ExchangeRounds() {
    for (const int64_t bytes : kExchangedBytes) {
      sizes.push_back({bytes, PairedRounds(row_of("all to all", "all", bytes)), {}, {}});
    }
  }

  Status add_round(NetworkRace& race) {
    for (Size& size : sizes) {
      ASSIGN_OR_RETURN(const NetworkRace::Exchanges found, race.exchange(size.bytes));
      size.rounds.add(found.legs.ours, found.legs.roof);
      size.ours_us.push_back(found.alone_us);
      size.mpis_us.push_back(found.mpi_us);
    }
    return Status();
  }
};

std::string process_text(const std::vector<Node>& nodes) {
  std::string text;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    const std::string link = nodes[rank].link.text();
    text += strf("%s%zu on %s", rank == 0 ? "" : ", ", rank, nodes[rank].host.c_str()) +
            (link.empty() ? "" : " (" + link + ")");
  }
  return text;
}

std::string exchange_text(const ExchangeRounds& all) {
  std::string text;
  for (const ExchangeRounds::Size& size : all.sizes) {
    text += strf("%s%s %.0f and %.0f us", text.empty() ? "" : ", ",
                 format_bytes(size.bytes).c_str(), quantile(size.ours_us, 0.5),
                 quantile(size.mpis_us, 0.5));
  }
  return text;
}

NetworkFound found_in(const std::vector<PairRounds>& pairs, const CardRounds& cards,
                      const ExchangeRounds& exchanges, const std::vector<Node>& nodes) {
  NetworkFound found;
  std::vector<double> latencies, busy_latencies, rates;
  for (const PairRounds& pair : pairs) {
    latencies.push_back(quantile(pair.ping_us, 0.5));
    busy_latencies.push_back(quantile(pair.busy_ping_us, 0.5));
    rates.push_back(pair.gb_s());
    for (const PairRounds::Race& race : pair.races) {
      found.report.figures.push_back(race.rounds.figure());
    }
  }
  std::vector<double> card_gb_s;
  for (const PairedRounds& of_rank : cards.of_ranks) {
    found.report.figures.push_back(of_rank.figure());
    card_gb_s.push_back(found.report.figures.back().value);
  }
  found.card_gb_s = unequal_cards(card_gb_s);
  for (const ExchangeRounds::Size& size : exchanges.sizes) {
    found.report.figures.push_back(size.rounds.figure());
  }
  found.latency_us = quantile(latencies, 0.5);
  found.gb_s = quantile(rates, 0.5);
  if (nodes.size() > 2) found.gb_s = std::min(found.gb_s, found.report.figures.back().value);
  found.report.bench = "network";
  found.report.facts = {
      {"processes", process_text(nodes)},
      {"mpi", mpi_library() + ", started by " + read_launch().launcher},
      {"latency", strf("%.2f us for %lld bytes, half of a round trip; the slowest pair has %.2f "
                       "us, %.2f us beside large messages",
                       found.latency_us, (long long)NetworkRace::kPingBytes,
                       quantile(latencies, 1), quantile(busy_latencies, 1))},
      {"exchange", "one behind the other, ours and MPI's: " + exchange_text(exchanges)},
      {"roof", "all to all: MPI_Alltoallv, where ours are issued at once; else the slower card, "
               "or memcpy on one thread within a machine or if a card does not report its "
               "speed"}};
  return found;
}

}  // namespace

std::vector<double> unequal_cards(std::span<const double> gb_s) {
  constexpr double kUnequal = 1.25;
  std::vector<double> ascending(gb_s.begin(), gb_s.end());
  std::sort(ascending.begin(), ascending.end());
  std::map<double, double> taken_for;
  double slower = 0;
  for (const double rate : ascending) {
    if (rate >= kUnequal * slower) slower = rate;
    taken_for[rate] = slower;
  }
  if (ascending.empty() || slower == ascending.front()) return {};
  std::vector<double> rates;
  for (const double rate : gb_s) rates.push_back(taken_for[rate]);
  return rates;
}

Result<NetworkFound> run_network_bench(MpiCommunicator& all, const std::vector<Node>& nodes,
                                       int rounds) {
  CHECK(rounds > 0);
  ASSIGN_OR_RETURN(const std::unique_ptr<NetworkRace> race, NetworkRace::create(all, nodes));
  std::vector<PairRounds> pairs;
  for (const Pair& pair : pairs_of(all.size())) pairs.emplace_back(pair);
  CardRounds cards(nodes);
  ExchangeRounds exchanges;
  for (int round = 0; round < rounds; ++round) {
    set_status_line(strf("bench: the network, round %d of %d", round + 1, rounds));
    RETURN_IF_ERROR(agree(all, stop_status("measuring")));
    for (PairRounds& pair : pairs) RETURN_IF_ERROR(pair.add_round(*race));
    RETURN_IF_ERROR(cards.add_round(*race));
    RETURN_IF_ERROR(exchanges.add_round(*race));
  }
  set_status_line("");
  return found_in(pairs, cards, exchanges, nodes);
}

}  // namespace pagoda
