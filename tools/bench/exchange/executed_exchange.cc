#include "tools/bench/exchange/executed_exchange.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "bench/race/timing.h"
#include "parallel/local_link.h"

namespace pagoda {
namespace {

std::unique_ptr<Stream> make_stream(const std::string& name) {
  return make_host_stream({name, WorkKind::kOther, nullptr}, std::make_shared<ThreadPool>(1));
}

class CardLink : public Link {
 public:
  explicit CardLink(const CardNetwork& network) : network_(network) {
    for (int i = 0; i < 2 * network.devices(); ++i) {
      sending_.push_back(make_stream(strf("card %d", i)));
    }
    taken_.resize(sending_.size());
  }
  ~CardLink() override { sending_.clear(); }

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

  CardNetwork network_;
  LocalLink inner_;
  // [2 * device + whether it is the node's] when the newest message that the card takes has come.
  // It takes them in the order in which they are received, as a lane of a run does
  // (MpiLink::receive).
  std::vector<Event> taken_;
  std::vector<std::unique_ptr<Stream>> sending_;
};

}  // namespace

std::unique_ptr<Link> make_card_link(const CardNetwork& network) {
  return std::make_unique<CardLink>(network);
}

ExchangeDevices::ExchangeDevices(int count, DeviceRange own, std::unique_ptr<Link> link,
                                 int64_t most_bytes)
    : count_(count), own_(own), link_(std::move(link)) {
  const auto devices = static_cast<size_t>(count);
  source_.resize(static_cast<size_t>(most_bytes), std::byte{1});
  target_.resize(devices);
  for (int d = own.first; d < own.end(); ++d) {
    out_.push_back(make_stream(strf("out %d", d)));
    for (int lane = 0; lane < kMostCardLanes; ++lane) {
      in_.push_back(make_stream(strf("in %d lane %d", d, lane)));
    }
    target_[static_cast<size_t>(d)].resize(source_.size());
  }
  gathered_.resize(devices);
  passing_.resize(devices * devices);
  numbers_.assign(devices * devices, 0);
}

// They end before what they copy.
ExchangeDevices::~ExchangeDevices() {
  for (auto& stream : out_) stream->synchronize();
  for (auto& stream : in_) stream->synchronize();
}

double ExchangeDevices::seconds(const ExchangeLegs& legs, const std::function<int64_t()>& begin) {
  Event open = Event::make();
  for (auto& stream : out_) stream->wait(open);
  std::vector<Event> arrived(passing_.size());
  for (const ExchangeLeg& leg : legs) issue(leg, arrived);
  const int64_t begin_us = begin();
  open.signal();
  for (auto& stream : in_) stream->synchronize();
  const int64_t end_us = monotonic_us();
  when_all(std::exchange(sent_, {})).wait();
  return 1e-6 * static_cast<double>(std::max<int64_t>(end_us - begin_us, 1));
}

// All processes count all legs, so that both ends of one have the same number.
void ExchangeDevices::carry(const ExchangeLeg& leg, const std::byte* from, std::byte* to) {
  Transfer transfer{.number = numbers_[pair(leg.from, leg.to)]++, .from = leg.from, .to = leg.to};
  transfer.bytes = leg.bytes;
  transfer.turns = leg.in_turn ? 1 : 0;
  if (own_.contains(leg.from)) sent_.push_back(link_->send(transfer, from, out(leg.from)));
  if (own_.contains(leg.to)) link_->receive(transfer, to, in(leg), {});
}

Stream& ExchangeDevices::in(const ExchangeLeg& leg) {
  if (!leg.in_turn || own_.contains(leg.from)) return in(leg.to, leg.lane);
  bool& second = second_[leg.to];
  second = !second;
  return in(leg.to, second ? 1 : 0);
}

const std::byte* ExchangeDevices::gather(const ExchangeLeg& leg) {
  std::vector<std::byte>& message = gathered_[static_cast<size_t>(leg.from)][leg.to];
  message.resize(static_cast<size_t>(leg.bytes));
  int64_t end = leg.bytes;
  for (size_t i = leg.gathered.size(); i-- > 0; end = leg.gathered[i].first_byte) {
    const int64_t first = leg.gathered[i].first_byte;
    out(leg.from).copy(message.data() + first, source_.data(), end - first);
  }
  return message.data();
}

void ExchangeDevices::issue(const ExchangeLeg& leg, std::vector<Event>& arrived) {
  const bool sends = own_.contains(leg.from), takes = own_.contains(leg.to);
  std::byte* target = target_[static_cast<size_t>(leg.to)].data();
  switch (leg.kind) {
    case ExchangeLeg::Kind::kStraight:
      carry(leg, source_.data(), target);
      return;
    case ExchangeLeg::Kind::kGathered: {
      std::vector<std::byte>& there = passing_[pair(leg.to, leg.from)];
      if (takes) there.resize(static_cast<size_t>(leg.bytes));
      carry(leg, sends ? gather(leg) : nullptr, there.data());
      if (takes) arrived[pair(leg.to, leg.from)] = in(leg.to).record();
      return;
    }
    case ExchangeLeg::Kind::kPassedOn: {
      const size_t message = pair(leg.from, leg.sender);
      const std::byte* there = sends ? passing_[message].data() + leg.first_byte : nullptr;
      if (leg.from == leg.to) {
        if (takes) in(leg.to).copy(target, there, leg.bytes);
        return;
      }
      if (sends) out(leg.from).wait(arrived[message]);
      carry(leg, there, target);
    }
  }
}

std::vector<double> median_seconds(const std::vector<ExchangeLegs>& exchanges, int rounds,
                                   const std::function<double(const ExchangeLegs&)>& seconds) {
  std::vector<std::vector<double>> taken_s(exchanges.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < exchanges.size(); ++i) taken_s[i].push_back(seconds(exchanges[i]));
  }
  std::vector<double> medians;
  for (const std::vector<double>& of : taken_s) medians.push_back(quantile(of, 0.5));
  return medians;
}

}  // namespace pagoda
