// All-to-alls in each order, executed by devices whose network cards take time. Not installed.
//
//   exchange_tables [--rounds N] [--tiny] [--unequal]
//
// A device is two streams, as in a run: one sends, one receives, each one thing after the other
// (plan/rounds/exchange_order.h says in which order). It has a card for its own node and one for
// the others. A card sends one message at a time and takes one at a time; a message keeps the cards
// of both ends for its latency and its bytes, as tests/testing/plan/hierarchical_exchange.h counts
// them.
//
// Orders: flat, HALO, rounds, shortest first (Aurora's SJF) and random, on 4 and 8 nodes of 2
// devices, 10 us within a node, 50 and 500 us between them. Counts: even; drawn at random; skewed,
// where few devices take most; and those of a recorded run's layers (tests/golden). The bound is
// raced in the same round: one message with all bytes that the busiest card has to send or to take.
// Nothing is subtracted. For even counts the planned times of flat and HALO stand beside, and for
// 16 to 64 nodes only these.
//
// Then 8 nodes of one device, half or a quarter of which have a card that is 4 times as fast, over
// SlowLink's cards: flat; rounds as if all were equally fast; rounds by rates, with one partner at
// a time; and rounds in which a fast card has several. Rows are even, by the receivers' rates, or
// go from the slow ones to the fast ones and no further, as in zebra. Two bounds stand beside: that
// of one partner at a time (Aurora, appendix B), and the one of Theorem 5.2, which wants several.
//
// Prints medians over N rounds (3). --tiny shows in seconds that the program works; --unequal
// leaves out the nodes of equal cards.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
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
#include "tests/testing/plan/hierarchical_exchange.h"
#include "tests/testing/plan/recorded_layers.h"
#include "tools/bench/random_token_run.h"

namespace pagoda {
namespace {

using Matrix = SquareMatrix<int64_t>;

struct Network {
  int nodes = 4, each = 2;
  double within_s = 10e-6, between_s = 50e-6;  // latencies
  double within_bytes_per_s = 250e6, between_bytes_per_s = 50e6;

  int devices() const { return nodes * each; }
  bool same_node(int a, int b) const { return a / each == b / each; }
  double seconds(int from, int to, int64_t bytes) const {
    const bool within = same_node(from, to);
    return (within ? within_s : between_s) +
           static_cast<double>(bytes) / (within ? within_bytes_per_s : between_bytes_per_s);
  }
  ExchangeNodes exchange_nodes() const {
    std::vector<int> node;
    for (int d = 0; d < devices(); ++d) node.push_back(d / each);
    return ExchangeNodes(std::move(node));
  }
  ClusterProfile profile() const {
    ClusterProfile cluster;
    cluster.nodes = cluster.nodes_per_switch = nodes;
    cluster.devices_per_node = each;
    cluster.in_node = {within_s, 1 / within_bytes_per_s, 0};
    cluster.in_switch = cluster.between_switches = {between_s, 1 / between_bytes_per_s, 0};
    return cluster;
  }
};

std::unique_ptr<Stream> make_stream(const std::string& name) {
  return make_host_stream({name, WorkKind::kOther, nullptr}, std::make_shared<ThreadPool>(1));
}

class Cards : public Link {
 public:
  explicit Cards(const Network& network) : network_(network) {
    for (int i = 0; i < 2 * network.devices(); ++i) {
      sending_.push_back(make_stream(strf("card %d", i)));
    }
    taken_.resize(sending_.size());
  }
  ~Cards() override { sending_.clear(); }

  Event send(const Transfer& transfer, const std::byte* source, Stream& lane) override {
    Stream& card = *sending_[card_of(transfer.from, transfer)];
    Event& taken = taken_[card_of(transfer.to, transfer)];
    const double seconds = network_.seconds(transfer.from, transfer.to, transfer.bytes);
    card.wait(lane.record());
    card.wait(taken);
    card.enqueue(
        [seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
    taken = card.record();
    return inner_.send(transfer, source, card);
  }
  void receive(const Transfer& transfer, std::byte* target, Stream& lane,
               const TraceLabel& label) override {
    inner_.receive(transfer, target, lane, label);
  }
  Status status() const override { return inner_.status(); }
  const Counts& counts() const override { return inner_.counts(); }

 private:
  size_t card_of(int device, const Transfer& transfer) const {
    return static_cast<size_t>(2 * device + network_.same_node(transfer.from, transfer.to));
  }

  Network network_;
  LocalLink inner_;
  // [2 * device + whether it is the node's] when the newest message that the card takes has come.
  // It takes them in the order in which they are received, as a lane of a run does
  // (MpiLink::receive).
  std::vector<Event> taken_;
  std::vector<std::unique_ptr<Stream>> sending_;
};

// Carries out an all-to-all's legs. What comes is read by nobody, so all of it has one place.
class Devices {
 public:
  Devices(int count, std::unique_ptr<Link> link, int64_t most_bytes)
      : count_(count), link_(std::move(link)) {
    const auto devices = static_cast<size_t>(count);
    source_.resize(static_cast<size_t>(most_bytes), std::byte{1});
    for (size_t d = 0; d < devices; ++d) {
      out_.push_back(make_stream(strf("out %zu", d)));
      for (int lane = 0; lane < kMostCardLanes; ++lane) {
        in_.push_back(make_stream(strf("in %zu lane %d", d, lane)));
      }
      target_.emplace_back(source_.size());
    }
    gathered_.resize(devices);
    passing_.resize(devices * devices);
    numbers_.assign(devices * devices, 0);
  }
  // They end before what they copy.
  ~Devices() {
    for (auto& stream : out_) stream->synchronize();
    for (auto& stream : in_) stream->synchronize();
  }

  double seconds(const std::vector<ExchangeLeg>& legs) {
    Event open = Event::make();
    for (auto& stream : out_) stream->wait(open);
    std::vector<Event> arrived(passing_.size());
    for (const ExchangeLeg& leg : legs) issue(leg, arrived);
    const TimingClock timer;
    open.signal();
    for (auto& stream : in_) stream->synchronize();
    return timer.finish(0).seconds;
  }

 private:
  size_t pair(int a, int b) const { return static_cast<size_t>(a * count_ + b); }
  Stream& in(int device, int lane = 0) const {
    return *in_[static_cast<size_t>(device * kMostCardLanes + lane)];
  }
  Event carry(const ExchangeLeg& leg, const std::byte* from, std::byte* to) {
    Transfer transfer{.number = numbers_[pair(leg.from, leg.to)]++, .from = leg.from, .to = leg.to};
    transfer.bytes = leg.bytes;
    const Event sent = link_->send(transfer, from, *out_[static_cast<size_t>(leg.from)]);
    link_->receive(transfer, to, in(leg.to, leg.lane), {});
    return sent;
  }
  void issue(const ExchangeLeg& leg, std::vector<Event>& arrived) {
    const auto from = static_cast<size_t>(leg.from), to = static_cast<size_t>(leg.to);
    std::byte* target = target_[to].data();
    switch (leg.kind) {
      case ExchangeLeg::Kind::kStraight:
        carry(leg, source_.data(), target);
        return;
      case ExchangeLeg::Kind::kGathered: {
        std::vector<std::byte>& message = gathered_[from][leg.to];
        std::vector<std::byte>& there = passing_[pair(leg.to, leg.from)];
        message.resize(static_cast<size_t>(leg.bytes));
        there.resize(message.size());
        int64_t end = leg.bytes;
        for (size_t i = leg.gathered.size(); i-- > 0; end = leg.gathered[i].first_byte) {
          const int64_t first = leg.gathered[i].first_byte;
          out_[from]->copy(message.data() + first, source_.data(), end - first);
        }
        carry(leg, message.data(), there.data());
        arrived[pair(leg.to, leg.from)] = in(leg.to).record();
        return;
      }
      case ExchangeLeg::Kind::kPassedOn: {
        const std::byte* there = passing_[pair(leg.from, leg.sender)].data() + leg.first_byte;
        if (leg.from == leg.to) return in(leg.to).copy(target, there, leg.bytes);
        out_[from]->wait(arrived[pair(leg.from, leg.sender)]);
        carry(leg, there, target);
      }
    }
  }

  const int count_;
  std::vector<std::byte> source_;
  std::vector<std::vector<std::byte>> target_;                   // [device]
  std::vector<std::map<int, std::vector<std::byte>>> gathered_;  // [device][to]
  std::vector<std::vector<std::byte>> passing_;                  // [to][from]
  std::vector<int64_t> numbers_;                                 // [from][to]
  std::unique_ptr<Link> link_;
  std::vector<std::unique_ptr<Stream>> out_, in_;  // [device]; [device, lane]
};

enum class Order { kFlat, kHalo, kRounds, kShortest, kRandom };
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

std::vector<ExchangeLeg> legs_of(const Matrix& bytes, Order order, const Network& network) {
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
std::vector<ExchangeLeg> busiest_card(const Matrix& bytes, const Network& network) {
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
SquareMatrix<double> shares(Counts counts, const Network& network, const RoutingTrace& trace) {
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

void table(const Network& network, const RoutingTrace& trace, int rounds, bool tiny) {
  std::printf(
      "\n%d nodes x %d devices, %.0f us within, %.0f us between, %.2g and %.2g GB/s\n"
      "  counts    parcel      bound",
      network.nodes, network.each, 1e6 * network.within_s, 1e6 * network.between_s,
      1e-9 * network.within_bytes_per_s, 1e-9 * network.between_bytes_per_s);
  for (const auto& [order, name] : kOrders) std::printf("  %15s", name);
  std::printf("   planned flat   halo\n");
  for (const auto& [counts, counts_name] : kCounts) {
    const SquareMatrix<double> parts = shares(counts, network, trace);
    for (const int64_t mean : {kKiB, 16 * kKiB, 256 * kKiB, kMiB, 4 * kMiB}) {
      if (tiny && mean > 16 * kKiB) break;
      const Matrix bytes = bytes_of(parts, mean);
      const std::vector<ExchangeLeg> bound = busiest_card(bytes, network);
      const auto& all = bytes.entries();
      Devices devices(network.devices(), std::make_unique<Cards>(network),
                      std::max(bound.front().bytes, *std::max_element(all.begin(), all.end())));
      std::vector<double> bound_s;
      std::vector<std::vector<double>> taken_s(std::size(kOrders));
      for (int round = 0; round < rounds; ++round) {
        bound_s.push_back(devices.seconds(bound));
        for (size_t i = 0; i < taken_s.size(); ++i) {
          taken_s[i].push_back(devices.seconds(legs_of(bytes, kOrders[i].first, network)));
        }
      }
      const double least_s = quantile(bound_s, 0.5);
      std::printf("  %-8s %8s %7.2f ms", counts_name, size_text(mean).c_str(), 1e3 * least_s);
      for (const std::vector<double>& seconds : taken_s) {
        const double median_s = quantile(seconds, 0.5);
        std::printf("  %7.2f (%5.2f)", 1e3 * median_s, median_s / least_s);
      }
      if (counts == Counts::kEven) {
        const auto row = static_cast<double>(mean);
        const auto planned_s = [&](ExchangeKind kind) {
          return need(exchange_cost(network.profile(), kind, row)).total_s;
        };
        std::printf("  %11.2f %7.2f", 1e3 * planned_s(ExchangeKind::kFlat),
                    1e3 * planned_s(ExchangeKind::kHierarchical));
      }
      std::printf("\n");
      std::fflush(stdout);
    }
  }
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
      Devices devices(count, cards.link(), 4 * mean);
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

// Where flat takes as many times as long as HALO, by the plan alone.
void planned() {
  std::printf(
      "\nPlanned: flat over HALO, 8 devices a node, 10 us within, 50 us between\n"
      "  nodes");
  const std::vector<int64_t> sizes = {kKiB, 16 * kKiB, 256 * kKiB, kMiB};
  for (const int64_t bytes : sizes) std::printf("  %8s", size_text(bytes).c_str());
  std::printf("\n");
  for (const int nodes : {2, 4, 8, 16, 32, 64}) {
    Network network;
    network.nodes = nodes;
    network.each = 8;
    std::printf("  %5d", nodes);
    for (const int64_t bytes : sizes) {
      const auto seconds = [&](ExchangeKind kind) {
        return need(exchange_cost(network.profile(), kind, static_cast<double>(bytes))).total_s;
      };
      std::printf("  %8.2f", seconds(ExchangeKind::kFlat) / seconds(ExchangeKind::kHierarchical));
    }
    std::printf("\n");
  }
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  using namespace pagoda;
  int rounds = 3;
  bool tiny = false, unequal = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--tiny") == 0) {
      tiny = true;
    } else if (std::strcmp(argv[i], "--unequal") == 0) {
      unequal = true;
    } else if (std::strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
      rounds = std::atoi(argv[++i]);
    } else {
      std::fprintf(stderr, "usage: exchange_tables [--rounds N] [--tiny] [--unequal]\n");
      return 2;
    }
  }
  if (tiny) rounds = 1;
  const RoutingTrace trace = golden_routing();
  for (const int nodes : unequal ? std::vector<int>() : std::vector{4, 8}) {
    for (const double between_s : {50e-6, 500e-6}) {
      Network network;
      network.nodes = nodes;
      network.between_s = between_s;
      table(network, trace, std::max(1, rounds), tiny);
      if (tiny) break;
    }
    if (tiny) break;
  }
  for (const int one_of : {2, 4}) unequal_table(8, one_of, std::max(1, rounds), tiny);
  if (!unequal && !tiny) planned();
}
