#include "bench/sheet/network.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "bench/race/noise.h"
#include "device/device.h"
#include "parallel/launcher.h"

namespace pagoda {
namespace {

constexpr std::array<int64_t, 3> kMessageBytes = {64 * kKiB, kMiB, 16 * kMiB};
constexpr int64_t kBatchBytes = 16 * kMiB;  // of messages under way at once
constexpr int64_t kAllToAllBytes = kMiB;    // to each
constexpr int64_t kPingBytes = 8;
constexpr int kPings = 200;
constexpr double kTimingSeconds = 0.03;  // at least, where a batch takes less
constexpr int64_t kMostBatches = 64;

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

// Ours and the roof's; a ping-pong has none.
struct PairTimes {
  Timing ours, roof;
};

class NetworkRace {
 public:
  NetworkRace(Communicator& all, const std::vector<Node>& nodes, HostMemory out, HostMemory in)
      : all_(all), nodes_(nodes), out_(std::move(out)), in_(std::move(in)) {
    fill_noise(out_.data(), out_.bytes());
    fill_noise(in_.data(), in_.bytes());
  }

  // The turns of a pair, known to all: a ping-pong; then for each size one way and both ways.
  Result<std::vector<PairTimes>> measure_pair(const Pair& pair);
  // The slowest rank's turn.
  Result<PairTimes> measure_all();

 private:
  Result<std::vector<PairTimes>> lead(int other);
  Status follow(int other);
  Result<Timing> ping(int other);
  Status answer_pings(int other);
  Result<Timing> lead_timing(int other, int64_t message_bytes, bool both, int64_t batches);
  Result<int64_t> follow_timing(int other, int64_t message_bytes, bool both);
  Status batch(int other, int64_t message_bytes, bool sends, bool receives);
  Status exchange_with_all();
  double link_gb_s(int a, int b) const;
  Timing copy(int64_t bytes);
  Result<std::vector<PairTimes>> share(const std::vector<PairTimes>& mine);

  Communicator& all_;
  const std::vector<Node>& nodes_;
  HostMemory out_, in_;
};

// What the slower link of two says; 0: what copies memory is the roof.
double NetworkRace::link_gb_s(int a, int b) const {
  const Node &one = nodes_[static_cast<size_t>(a)], &other = nodes_[static_cast<size_t>(b)];
  return one.machine == other.machine ? 0 : std::min(one.link.gb_s(), other.link.gb_s());
}

// A large memcpy writes past caches, where a message may stay in them: so it is many small ones.
Timing NetworkRace::copy(int64_t bytes) {
  constexpr int64_t kAtOnce = 64 * kKiB;
  static_assert(kMessageBytes[0] % kAtOnce == 0);
  const TimingClock timer;
  for (int64_t done = 0; done < bytes; done += kAtOnce) {
    const int64_t offset = done % out_.bytes();
    std::memcpy(in_.data() + offset, out_.data() + offset, static_cast<size_t>(kAtOnce));
  }
  return timer.finish(bytes);
}

Timing timing_of_link(int64_t bytes, double gb_s) {
  return {bytes, static_cast<double>(bytes) / (1e9 * gb_s), 0};
}

Result<Timing> NetworkRace::ping(int other) {
  TimingClock timer;
  for (int i = -kPings / 10; i < kPings; ++i) {  // the first ones warm up
    if (i == 0) timer = TimingClock();
    RETURN_IF_ERROR(all_.send({other, out_.data(), kPingBytes}));
    RETURN_IF_ERROR(all_.receive({other, in_.data(), kPingBytes}));
  }
  return timer.finish(2 * kPings);
}

Status NetworkRace::answer_pings(int other) {
  for (int i = -kPings / 10; i < kPings; ++i) {
    RETURN_IF_ERROR(all_.receive({other, in_.data(), kPingBytes}));
    RETURN_IF_ERROR(all_.send({other, out_.data(), kPingBytes}));
  }
  return Status();
}

Status NetworkRace::batch(int other, int64_t message_bytes, bool sends, bool receives) {
  std::vector<OutgoingPiece> out;
  std::vector<IncomingPiece> in;
  for (int64_t offset = 0; offset < kBatchBytes; offset += message_bytes) {
    if (sends) out.push_back({other, out_.data() + offset, message_bytes});
    if (receives) in.push_back({other, in_.data() + offset, message_bytes});
  }
  return all_.exchange(out, in);
}

// Says how many batches, sends them, and hears that they have arrived.
Result<Timing> NetworkRace::lead_timing(int other, int64_t message_bytes, bool both,
                                        int64_t batches) {
  RETURN_IF_ERROR(
      all_.send({other, reinterpret_cast<const std::byte*>(&batches), sizeof(batches)}));
  const TimingClock timer;
  for (int64_t i = 0; i < batches; ++i) {
    RETURN_IF_ERROR(batch(other, message_bytes, true, both));
  }
  std::byte arrived;
  RETURN_IF_ERROR(all_.receive({other, &arrived, 1}));
  return timer.finish(batches * kBatchBytes);
}

Result<int64_t> NetworkRace::follow_timing(int other, int64_t message_bytes, bool both) {
  int64_t batches = 0;
  RETURN_IF_ERROR(
      all_.receive({other, reinterpret_cast<std::byte*>(&batches), sizeof(batches)}));
  for (int64_t i = 0; i < batches; ++i) {
    RETURN_IF_ERROR(batch(other, message_bytes, both, true));
  }
  const std::byte arrived{1};
  RETURN_IF_ERROR(all_.send({other, &arrived, 1}));
  return batches;
}

Result<std::vector<PairTimes>> NetworkRace::lead(int other) {
  std::vector<PairTimes> turns(1);
  ASSIGN_OR_RETURN(turns[0].ours, ping(other));
  const double link = link_gb_s(all_.rank(), other);
  for (const int64_t message_bytes : kMessageBytes) {
    for (const bool both : {false, true}) {
      ASSIGN_OR_RETURN(const Timing once, lead_timing(other, message_bytes, both, 1));
      const auto wanted = static_cast<int64_t>(kTimingSeconds / once.seconds) + 1;
      const int64_t batches = std::min(wanted, kMostBatches);
      ASSIGN_OR_RETURN(const Timing ours, lead_timing(other, message_bytes, both, batches));
      const Timing roof = link > 0 ? timing_of_link(ours.bytes, link) : copy(ours.bytes);
      turns.push_back({ours, roof});
    }
  }
  return turns;
}

// What lead() does, seen from the other side.
Status NetworkRace::follow(int other) {
  RETURN_IF_ERROR(answer_pings(other));
  for (const int64_t message_bytes : kMessageBytes) {
    for (const bool both : {false, true}) {
      RETURN_IF_ERROR(follow_timing(other, message_bytes, both).status());
      ASSIGN_OR_RETURN(const int64_t batches, follow_timing(other, message_bytes, both));
      if (both && link_gb_s(all_.rank(), other) == 0) copy(batches * kBatchBytes);
    }
  }
  return Status();
}

// Those of all ranks behind each other, the same everywhere. The processes are one program.
Result<std::vector<PairTimes>> NetworkRace::share(const std::vector<PairTimes>& mine) {
  const auto* begin = reinterpret_cast<const char*>(mine.data());
  ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                   all_.gather(std::string(begin, mine.size() * sizeof(PairTimes))));
  std::vector<PairTimes> turns;
  for (const std::string& text : texts) {
    const size_t before = turns.size();
    turns.resize(before + text.size() / sizeof(PairTimes));
    if (!text.empty()) std::memcpy(&turns[before], text.data(), text.size());
  }
  return turns;
}

Result<std::vector<PairTimes>> NetworkRace::measure_pair(const Pair& pair) {
  std::vector<PairTimes> turns;
  if (all_.rank() == pair.first) {
    ASSIGN_OR_RETURN(turns, lead(pair.second));
  } else if (all_.rank() == pair.second) {
    RETURN_IF_ERROR(follow(pair.first));
  }
  return share(turns);
}

Status NetworkRace::exchange_with_all() {
  std::vector<OutgoingPiece> out;
  std::vector<IncomingPiece> in;
  for (int i = 1; i < all_.size(); ++i) {  // to the next one first, from the one before it
    const int64_t offset = (i - 1) * kAllToAllBytes;
    out.push_back({(all_.rank() + i) % all_.size(), out_.data() + offset, kAllToAllBytes});
    in.push_back({(all_.rank() + all_.size() - i) % all_.size(), in_.data() + offset,
                  kAllToAllBytes});
  }
  return all_.exchange(out, in);
}

Result<PairTimes> NetworkRace::measure_all() {
  const int64_t others = all_.size() - 1;
  const int64_t times = std::max<int64_t>(1, kBatchBytes / (others * kAllToAllBytes));
  RETURN_IF_ERROR(exchange_with_all());
  RETURN_IF_ERROR(all_.barrier());
  const TimingClock timer;
  for (int64_t i = 0; i < times; ++i) RETURN_IF_ERROR(exchange_with_all());
  PairTimes mine{timer.finish(times * others * kAllToAllBytes), {}};
  double link = 0;
  for (int other = 0; other < all_.size(); ++other) {
    link = std::max(link, link_gb_s(all_.rank(), other));
  }
  RETURN_IF_ERROR(all_.barrier());
  mine.roof = link > 0 ? timing_of_link(mine.ours.bytes, link) : copy(mine.ours.bytes);
  ASSIGN_OR_RETURN(const std::vector<PairTimes> turns, share({mine}));
  PairTimes slowest = turns.front();
  for (const PairTimes& turn : turns) {
    if (turn.ours.seconds > slowest.ours.seconds) slowest.ours = turn.ours;
    if (turn.roof.seconds > slowest.roof.seconds) slowest.roof = turn.roof;
  }
  return slowest;
}

Figure row_of(const char* name, const std::string& path, int64_t message_bytes) {
  Figure row;
  row.name = name;
  row.path = path;
  row.page_bytes = message_bytes;
  return row;
}

// Rounds by pair, and all to all behind them.
struct Rounds {
  std::vector<Pair> pairs;
  std::vector<std::vector<double>> ping_us;  // [pair][round]
  std::vector<std::vector<PairedRounds>> races;  // [pair][one way, both ways; of each size]
  PairedRounds everyone{row_of("all to all", "all", kAllToAllBytes)};

  explicit Rounds(int size) : pairs(pairs_of(size)), ping_us(pairs.size()), races(pairs.size()) {
    for (size_t p = 0; p < pairs.size(); ++p) {
      for (const int64_t bytes : kMessageBytes) {
        const auto [a, b] = pairs[p];
        races[p].emplace_back(row_of("one way", strf("%d > %d", a, b), bytes));
        races[p].emplace_back(row_of("both ways", strf("%d - %d", a, b), bytes));
      }
    }
  }

  void add(size_t pair, const std::vector<PairTimes>& turns) {
    const Timing& pings = turns.front().ours;
    ping_us[pair].push_back(1e6 * pings.seconds / static_cast<double>(pings.bytes));
    for (size_t i = 1; i < turns.size(); ++i) races[pair][i - 1].add(turns[i].ours, turns[i].roof);
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

NetworkFound found_in(const Rounds& rounds, const std::vector<Node>& nodes) {
  NetworkFound found;
  std::vector<double> latencies, rates;
  for (size_t p = 0; p < rounds.pairs.size(); ++p) {
    latencies.push_back(quantile(rounds.ping_us[p], 0.5));
    for (const PairedRounds& race : rounds.races[p]) found.report.figures.push_back(race.figure());
    rates.push_back(found.report.figures.back().value);
  }
  found.latency_us = quantile(latencies, 0.5);
  found.gb_s = quantile(rates, 0.5);
  if (nodes.size() > 2) {
    found.report.figures.push_back(rounds.everyone.figure());
    found.gb_s = std::min(found.gb_s, found.report.figures.back().value);
  }
  found.report.bench = "network";
  found.report.facts = {
      {"processes", process_text(nodes)},
      {"mpi", mpi_library() + ", started by " + read_launch().launcher},
      {"latency", strf("%.2f us for %lld bytes, half of a round trip; the slowest pair has %.2f us",
                       found.latency_us, (long long)kPingBytes, quantile(latencies, 1))},
      {"roof", "memcpy on one thread within a machine, or if a link does not report its speed; "
               "else the slower link"}};
  return found;
}

}  // namespace

Result<NetworkFound> run_network_bench(Communicator& all, const std::vector<Node>& nodes,
                                       int rounds) {
  CHECK(rounds > 0 && all.size() > 1 && static_cast<int>(nodes.size()) == all.size());
  const int64_t bytes = std::max(kBatchBytes, (all.size() - 1) * kAllToAllBytes);
  Result<HostMemory> out = HostMemory::allocate(bytes), in = HostMemory::allocate(bytes);
  RETURN_IF_ERROR(agree(all, out.ok() ? in.status() : out.status()));
  NetworkRace race(all, nodes, out.take(), in.take());
  Rounds found(all.size());
  for (int round = 0; round < rounds; ++round) {
    set_status_line(strf("bench machine: the network, round %d of %d", round + 1, rounds));
    RETURN_IF_ERROR(agree(all, stop_status("measuring")));
    for (size_t pair = 0; pair < found.pairs.size(); ++pair) {
      ASSIGN_OR_RETURN(const std::vector<PairTimes> turns, race.measure_pair(found.pairs[pair]));
      found.add(pair, turns);
    }
    if (all.size() > 2) {
      ASSIGN_OR_RETURN(const PairTimes turn, race.measure_all());
      found.everyone.add(turn.ours, turn.roof);
    }
  }
  set_status_line("");
  return found_in(found, nodes);
}

}  // namespace pagoda
