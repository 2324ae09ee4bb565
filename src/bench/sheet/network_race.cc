#include "bench/sheet/network_race.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/check.h"
#include "bench/race/noise.h"

namespace pagoda {
namespace {

constexpr int64_t kBatchBytes = 16 * kMiB;  // of messages under way at once
constexpr int64_t kMostExchanged = 4 * kMiB;
constexpr int kPings = 200, kPingsAmongOthers = 20;
constexpr int kBatchesBesidePings = 4;
constexpr double kTimingSeconds = 0.03;  // at least, where a batch takes less
constexpr int64_t kMostBatches = 64;

template <typename T>
std::string bytes_of(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

template <typename T>
T value_of(const std::string& bytes) {
  T value{};
  if (bytes.size() == sizeof(T)) std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

}  // namespace

Result<std::unique_ptr<NetworkRace>> NetworkRace::create(MpiCommunicator& all,
                                                         const std::vector<Node>& nodes) {
  CHECK(all.size() > 1 && static_cast<int>(nodes.size()) == all.size());
  const int64_t bytes = std::max(kBatchBytes, all.size() * kMostExchanged);
  Result<HostMemory> out = HostMemory::allocate(bytes), in = HostMemory::allocate(bytes);
  RETURN_IF_ERROR(agree(all, out.ok() ? in.status() : out.status()));
  std::unique_ptr<NetworkRace> race(new NetworkRace(all, nodes, out.take(), in.take()));
  std::vector<LinkEnd> ends;
  for (int end = 0; end < all.size() * kMostFlows; ++end) ends.push_back({end / kMostFlows});
  ASSIGN_OR_RETURN(race->link_, MpiLink::create(all, std::move(ends), 0));
  return race;
}

NetworkRace::NetworkRace(MpiCommunicator& all, const std::vector<Node>& nodes, HostMemory out,
                         HostMemory in)
    : all_(all),
      nodes_(nodes),
      out_(std::move(out)),
      in_(std::move(in)) {
  const auto make_lane = [] {
    return make_host_stream({"network", WorkKind::kLink, nullptr}, std::make_shared<ThreadPool>(1));
  };
  out_lane_ = make_lane();
  for (std::unique_ptr<Stream>& lane : in_lanes_) lane = make_lane();
  fill_noise(out_.data(), out_.bytes());
  fill_noise(in_.data(), in_.bytes());
}

// What the slower card of two machines says; 0: what copies memory is the roof.
double NetworkRace::card_gb_s(int a, int b) const {
  const Node &one = nodes_[static_cast<size_t>(a)], &other = nodes_[static_cast<size_t>(b)];
  return one.machine == other.machine ? 0 : std::min(one.link.gb_s(), other.link.gb_s());
}

Timing timing_of_card(int64_t bytes, double gb_s) {
  return {bytes, static_cast<double>(bytes) / (1e9 * gb_s), 0};
}

// A large memcpy writes past caches, where a message may stay in them: so it is many small ones.
Timing NetworkRace::copy(int64_t bytes) {
  constexpr int64_t kAtOnce = 64 * kKiB;
  const TimingClock timer;
  for (int64_t done = 0; done < bytes; done += kAtOnce) {
    const int64_t offset = done % kBatchBytes;
    std::memcpy(in_.data() + offset, out_.data() + offset, static_cast<size_t>(kAtOnce));
  }
  return timer.finish(bytes);
}

Transfer NetworkRace::next(int from, int to, int flow, int64_t bytes) {
  const int first = from * kMostFlows + flow, second = to * kMostFlows + flow;
  return {numbers_[{first, second}]++, first, second, bytes};
}

Event NetworkRace::send(int to, int flow, int64_t offset, int64_t bytes, Stream& lane) {
  return link_->send(next(all_.rank(), to, flow, bytes), out_.data() + offset, lane);
}

void NetworkRace::receive(int from, int flow, int64_t offset, int64_t bytes, Stream& lane) {
  link_->receive(next(from, all_.rank(), flow, bytes), in_.data() + offset, lane);
}

// Returns when all that was begun has arrived here, and gone from here.
Status NetworkRace::finish(const std::vector<Event>& sent) {
  for (const std::unique_ptr<Stream>& lane : in_lanes_) lane->synchronize();
  when_all(sent).wait();
  return link_->status();
}

// ---- small messages ----

// One lane orders them, as it does in training: what it sends waits for what it received.
Result<double> NetworkRace::ping_us(int other, bool leads, int pings) {
  Stream& lane = *in_lanes_[0];
  const auto ping = [&](int times) {
    std::vector<Event> sent;
    for (int i = 0; i < times; ++i) {
      if (!leads) receive(other, 0, 0, kPingBytes, lane);
      sent.push_back(send(other, 0, 0, kPingBytes, lane));
      if (leads) receive(other, 0, 0, kPingBytes, lane);
    }
    lane.synchronize();
    when_all(sent).wait();
  };
  ping(pings / 10);  // warm up
  const TimingClock timer;
  ping(pings);
  RETURN_IF_ERROR(link_->status());
  return 1e6 * timer.finish(1).seconds / (2.0 * pings);
}

Result<NetworkRace::Pings> NetworkRace::ping(int first, int second) {
  Pings pings;
  if (all_.rank() == first || all_.rank() == second) {
    const bool leads = all_.rank() == first;
    const int other = leads ? second : first;
    ASSIGN_OR_RETURN(pings.alone_us, ping_us(other, leads, kPings));
    std::vector<Event> sent;
    const Batch large = batch(first, second, kMiB, kMostFlows - 1, true);
    for (int i = 0; i < kBatchesBesidePings; ++i) begin(large, 1, sent);
    ASSIGN_OR_RETURN(pings.among_others_us, ping_us(other, leads, kPingsAmongOthers));
    RETURN_IF_ERROR(finish(sent));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all_.gather(bytes_of(pings)));
  return value_of<Pings>(texts[static_cast<size_t>(first)]);
}

// ---- one to another ----

NetworkRace::Batch NetworkRace::batch(int first, int second, int64_t message_bytes, int flows,
                                      bool both) const {
  const bool leads = all_.rank() == first;
  return {leads ? second : first, message_bytes, flows, leads || both, !leads || both};
}

void NetworkRace::begin(const Batch& batch, int first_flow, std::vector<Event>& sent) {
  for (int64_t i = 0; i < kBatchBytes / batch.message_bytes; ++i) {
    const int flow = first_flow + static_cast<int>(i % batch.flows);
    const int64_t offset = i * batch.message_bytes;
    if (batch.receives) {
      Stream& lane = *in_lanes_[static_cast<size_t>(flow)];
      receive(batch.other, flow, offset, batch.message_bytes, lane);
    }
    if (batch.sends) {
      sent.push_back(send(batch.other, flow, offset, batch.message_bytes, *out_lane_));
    }
  }
}

Status NetworkRace::run(const Batch& batch, int64_t times) {
  for (int64_t i = 0; i < times; ++i) {
    std::vector<Event> sent;
    begin(batch, 0, sent);
    RETURN_IF_ERROR(finish(sent));
  }
  return Status();
}

// Says how many batches, sends them, and hears that they have arrived.
Result<Timing> NetworkRace::lead(const Batch& batch, int64_t times) {
  const auto* const count = reinterpret_cast<const std::byte*>(&times);
  RETURN_IF_ERROR(all_.send({batch.other, count, sizeof(times)}));
  const TimingClock timer;
  RETURN_IF_ERROR(run(batch, times));
  std::byte arrived;
  RETURN_IF_ERROR(all_.receive({batch.other, &arrived, 1}));
  return timer.finish(times * kBatchBytes);
}

Result<int64_t> NetworkRace::follow(const Batch& batch) {
  int64_t times = 0;
  auto* const count = reinterpret_cast<std::byte*>(&times);
  RETURN_IF_ERROR(all_.receive({batch.other, count, sizeof(times)}));
  RETURN_IF_ERROR(run(batch, times));
  const std::byte arrived{1};
  RETURN_IF_ERROR(all_.send({batch.other, &arrived, 1}));
  return times;
}

Result<NetworkRace::Legs> NetworkRace::race(int first, int second, int64_t message_bytes,
                                            int flows, bool both) {
  Legs legs;
  const double card = card_gb_s(first, second);
  if (all_.rank() == first) {
    const Batch one = batch(first, second, message_bytes, flows, both);
    ASSIGN_OR_RETURN(const Timing once, lead(one, 1));
    const auto wanted = static_cast<int64_t>(kTimingSeconds / once.seconds) + 1;
    ASSIGN_OR_RETURN(legs.ours, lead(one, std::min(wanted, kMostBatches)));
    legs.roof = card > 0 ? timing_of_card(legs.ours.bytes, card) : copy(legs.ours.bytes);
  } else if (all_.rank() == second) {
    const Batch one = batch(first, second, message_bytes, flows, both);
    RETURN_IF_ERROR(follow(one).status());
    ASSIGN_OR_RETURN(const int64_t times, follow(one));
    if (both && card == 0) copy(times * kBatchBytes);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all_.gather(bytes_of(legs)));
  return value_of<Legs>(texts[static_cast<size_t>(first)]);
}

// ---- one to all others ----

// Sends as much to another as it receives from it.
void NetworkRace::swap_with(int other, int64_t bytes, int lane, std::vector<Event>& sent) {
  receive(other, 0, other * bytes, bytes, *in_lanes_[static_cast<size_t>(lane)]);
  sent.push_back(send(other, 0, other * bytes, bytes, *out_lane_));
}

Result<NetworkRace::Legs> NetworkRace::race_all_others(int rank) {
  constexpr int kTimes = 3;  // the first one warms up
  const int64_t bytes = kBatchBytes / all_.size();
  Legs legs;
  for (int i = 0; i < kTimes; ++i) {
    RETURN_IF_ERROR(all_.barrier());
    std::vector<Event> sent;
    const TimingClock timer;
    for (int other = 0; other < all_.size(); ++other) {
      if (other == rank) continue;
      // What comes from several comes by several lanes.
      if (all_.rank() == rank) swap_with(other, bytes, other % kMostFlows, sent);
      if (all_.rank() == other) swap_with(rank, bytes, 0, sent);
    }
    RETURN_IF_ERROR(finish(sent));
    const Timing timing = timer.finish((all_.size() - 1) * bytes);
    if (i == 1 || (i > 1 && timing.seconds < legs.ours.seconds)) legs.ours = timing;
  }
  const double card = nodes_[static_cast<size_t>(rank)].link.gb_s();
  if (all_.rank() == rank) {
    legs.roof = card > 0 ? timing_of_card(legs.ours.bytes, card) : copy(legs.ours.bytes);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all_.gather(bytes_of(legs)));
  return value_of<Legs>(texts[static_cast<size_t>(rank)]);
}

// ---- all to all ----

// `waits`: a process sends once it has received what the exchange before brought.
Result<Timing> NetworkRace::time_exchanges(int64_t bytes, int64_t times, bool waits) {
  std::vector<Event> sent;
  const int me = all_.rank(), n = all_.size();
  Stream &in = *in_lanes_[0], &out = waits ? in : *out_lane_;
  RETURN_IF_ERROR(all_.barrier());
  const TimingClock timer;
  for (int64_t k = 0; k < times; ++k) {
    for (int i = 1; i < n; ++i) {  // to the next process first, from the one before first
      const int to = (me + i) % n;
      sent.push_back(send(to, 0, to * bytes, bytes, out));
    }
    for (int i = 1; i < n; ++i) {
      const int from = (me + n - i) % n;
      receive(from, 0, from * bytes, bytes, in);
    }
  }
  RETURN_IF_ERROR(finish(sent));
  return timer.finish(times * (n - 1) * bytes);
}

Result<Timing> NetworkRace::time_mpi(int64_t bytes, int64_t times) {
  Timing timing;
  RETURN_IF_ERROR(all_.barrier());
  RETURN_IF_ERROR(all_.thread().call([&](Carrier& mpi) -> Status {
    RETURN_IF_ERROR(mpi.exchange_all(out_.data(), in_.data(), bytes));
    const TimingClock timer;
    for (int64_t i = 0; i < times; ++i) {
      RETURN_IF_ERROR(mpi.exchange_all(out_.data(), in_.data(), bytes));
    }
    timing = timer.finish(times * (all_.size() - 1) * bytes);
    return Status();
  }));
  return timing;
}

Result<NetworkRace::Exchanges> NetworkRace::exchange(int64_t bytes) {
  CHECK(bytes <= kMostExchanged);
  const int64_t times = std::max<int64_t>(4, kBatchBytes / ((all_.size() - 1) * bytes));
  struct Turn {
    Timing stream, alone, mpi;
  } mine;
  RETURN_IF_ERROR(time_exchanges(bytes, 1, false).status());
  ASSIGN_OR_RETURN(mine.stream, time_exchanges(bytes, times, false));
  ASSIGN_OR_RETURN(mine.mpi, time_mpi(bytes, times));
  ASSIGN_OR_RETURN(mine.alone, time_exchanges(bytes, times, true));
  ASSIGN_OR_RETURN(const std::vector<std::string> texts, all_.gather(bytes_of(mine)));
  const auto take_slower = [](Timing& slowest, const Timing& turn) {
    if (turn.seconds > slowest.seconds) slowest = turn;
  };
  for (const std::string& text : texts) {
    const auto turn = value_of<Turn>(text);
    take_slower(mine.stream, turn.stream);
    take_slower(mine.alone, turn.alone);
    take_slower(mine.mpi, turn.mpi);
  }
  const double us = 1e6 / static_cast<double>(times);
  return Exchanges{{mine.stream, mine.mpi}, us * mine.alone.seconds, us * mine.mpi.seconds};
}

}  // namespace pagoda
