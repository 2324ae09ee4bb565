// All-to-alls in each order between processes, one a node as in a run. Not installed.
//
//   mpirun -n NODES exchange_ranks [--counts NAME] [--rounds N] [--tiny]
//
// A node has two devices, which share its network card. Messages between them stay in the process;
// all others go over MpiLink, so that orders differ by what real processes, MPI and the network
// make of them. Orders and counts are those of exchange_tables
// (tools/bench/exchange/drawn_exchange.h). All nodes begin at a moment that they have agreed on, by
// the clock that processes of one machine share; the time is that until the last device has what is
// for it. The bound is raced in the same round: one message, from a node to another, with all bytes
// that the busiest card has to send or to take. Nothing is subtracted.
//
// Prints medians over N rounds (3), what rounds of large parcels take over the bound, and how many
// bytes went between processes. It fails if these are not as many as the counts say. --tiny shows
// in seconds that the program works.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "parallel/local_link.h"
#include "parallel/mpi_communicator.h"
#include "parallel/mpi_link.h"
#include "parallel/rank_link.h"
#include "plan/rounds/traffic.h"
#include "tests/testing/plan/recorded_layers.h"
#include "tools/bench/exchange/drawn_exchange.h"
#include "tools/bench/random_token_run.h"

namespace pagoda {
namespace {

constexpr int kEach = 2;           // devices of a node
constexpr int64_t kLeadUs = 3000;  // from agreeing on a moment to that moment
constexpr double kDeadlineS = 60;

std::vector<int64_t> gather(Communicator& all, int64_t mine) {
  std::vector<int64_t> values;
  for (const std::string& text : need(all.gather(std::to_string(mine)))) {
    values.push_back(std::stoll(text));
  }
  return values;
}

int64_t largest(const std::vector<int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

// Returns at the moment that all ranks agree on.
int64_t begin_together(Communicator& all) {
  const int64_t begin_us = largest(gather(all, monotonic_us())) + kLeadUs;
  std::this_thread::sleep_for(std::chrono::microseconds(begin_us - monotonic_us()));
  return begin_us;
}

// [node][node] what goes between their cards.
SquareMatrix<double> between_nodes(const SquareMatrix<int64_t>& bytes, std::span<const int> node) {
  SquareMatrix<double> traffic(bytes.size());
  for (const ParcelBytes& of : parcels_of(bytes)) {
    traffic.at(of.from, of.to) = static_cast<double>(of.bytes);
  }
  return placed(traffic, node, node, bytes.size() / kEach);
}

class Nodes {
 public:
  explicit Nodes(MpiCommunicator& all) : all_(all) {
    for (int d = 0; d < all.size() * kEach; ++d) node_.push_back(d / kEach);
  }

  int devices() const { return static_cast<int>(node_.size()); }
  int64_t sent_bytes() const { return sent_bytes_; }  // of all ranks, so far

  TimedOrders race(const SquareMatrix<int64_t>& bytes, int rounds) {
    const SquareMatrix<double> traffic = between_nodes(bytes, node_);
    ExchangeLeg bound{.from = 0, .to = kEach};
    bound.bytes = static_cast<int64_t>(line_bound(traffic));
    const std::vector<ExchangeLegs> exchanges =
        bound_and_orders(bound, bytes, ExchangeNodes(node_, {}, node_));
    open(std::max(bound.bytes, largest(bytes.entries())));
    seconds(exchanges[1]);  // it connects them
    TimedOrders timed;
    timed.executed_s =
        median_seconds(exchanges, rounds, [this](const ExchangeLegs& of) { return seconds(of); });
    int64_t expected = rounds * bound.bytes;
    for (const double sent : sent_by_device(traffic)) {
      expected += (1 + rounds * std::ssize(kParcelOrders)) * static_cast<int64_t>(sent);
    }
    close(expected);
    return timed;
  }

 private:
  void open(int64_t most_bytes) {
    std::vector<LinkEnd> ends;
    for (const int node : node_) ends.push_back({node});
    const int first = all_.rank() * kEach;
    across_ = need(MpiLink::create(all_, std::move(ends), kDeadlineS));
    auto link =
        std::make_unique<RankLink>(std::make_unique<LocalLink>(), across_.get(), first, kEach);
    exchange_ = std::make_unique<ExchangeDevices>(devices(), DeviceRange{first, kEach},
                                                  std::move(link), most_bytes);
  }
  double seconds(const ExchangeLegs& legs) {
    const double mine_s = exchange_->seconds(legs, [this] { return begin_together(all_); });
    need(across_->status());
    return 1e-6 * static_cast<double>(largest(gather(all_, static_cast<int64_t>(1e6 * mine_s))));
  }
  void close(int64_t expected) {
    int64_t mine = 0, sent = 0;
    for (const MpiLink::PeerTraffic& peer : across_->traffic()) mine += peer.sent.bytes;
    for (const int64_t of : gather(all_, mine)) sent += of;
    CHECK(sent == expected, "%lld bytes were sent, not %lld", (long long)sent, (long long)expected);
    sent_bytes_ += sent;
    exchange_.reset();
    across_.reset();
  }

  MpiCommunicator& all_;
  std::vector<int> node_;  // [device]
  std::unique_ptr<MpiLink> across_;
  std::unique_ptr<ExchangeDevices> exchange_;
  int64_t sent_bytes_ = 0;
};

struct Settings {
  std::string counts = "";  // empty: all
  int rounds = 3;
  bool tiny = false;
};

Status run_tables(const Settings& settings) {
  ASSIGN_OR_RETURN(const std::unique_ptr<MpiCommunicator> all, join_processes(kDeadlineS));
  if (all->size() < 2) return Status(Exit::kUsage, "at least two processes have something to send");
  const RoutingTrace trace = golden_routing();
  Nodes nodes(*all);
  const bool prints = all->rank() == 0;
  LargeParcels large;
  if (prints) TimedOrders::print_heading("");
  for (const auto& [counts, name] : kExchangeCounts) {
    if (!settings.counts.empty() && settings.counts != name) continue;
    const SquareMatrix<double> shares = drawn_shares(counts, nodes.devices(), trace);
    for (const int64_t mean : kParcelSizes) {
      if (settings.tiny && mean > 16 * kKiB) break;
      const TimedOrders timed = nodes.race(parcel_bytes(shares, mean), settings.rounds);
      if (prints) timed.print(name, mean);
      large.note(mean, timed);
    }
  }
  if (prints) large.print();
  if (prints) std::printf("sent %lld bytes between processes\n", (long long)nodes.sent_bytes());
  return all->leave();
}

int run_program(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiny") == 0) {
      settings.tiny = true;
      settings.rounds = 1;
    } else if (std::strcmp(argv[i], "--counts") == 0 && i + 1 < argc) {
      settings.counts = argv[++i];
    } else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      settings.rounds = std::max(1, std::atoi(argv[++i]));
    } else {
      std::fprintf(stderr, "usage: exchange_ranks [--counts NAME] [--rounds N] [--tiny]\n");
      return static_cast<int>(Exit::kUsage);
    }
  }
  const auto is_named = [&](const auto& counts) { return settings.counts == counts.second; };
  if (!settings.counts.empty() &&
      std::none_of(std::begin(kExchangeCounts), std::end(kExchangeCounts), is_named)) {
    std::fprintf(stderr, "exchange_ranks: there are no counts \"%s\"\n", settings.counts.c_str());
    return static_cast<int>(Exit::kUsage);
  }
  set_log_quiet(true);
  const Status ended = run_tables(settings);
  if (!ended.ok()) std::fprintf(stderr, "exchange_ranks: %s\n", ended.message().c_str());
  return static_cast<int>(ended.code());
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::run_program(argc, argv); }
