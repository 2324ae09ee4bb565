#include "tools/bench/executed_exchange.h"

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

ExchangeDevices::ExchangeDevices(int count, std::unique_ptr<Link> link, int64_t most_bytes)
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
ExchangeDevices::~ExchangeDevices() {
  for (auto& stream : out_) stream->synchronize();
  for (auto& stream : in_) stream->synchronize();
}

double ExchangeDevices::seconds(const std::vector<ExchangeLeg>& legs) {
  Event open = Event::make();
  for (auto& stream : out_) stream->wait(open);
  std::vector<Event> arrived(passing_.size());
  for (const ExchangeLeg& leg : legs) issue(leg, arrived);
  const TimingClock timer;
  open.signal();
  for (auto& stream : in_) stream->synchronize();
  return timer.finish(0).seconds;
}

Event ExchangeDevices::carry(const ExchangeLeg& leg, const std::byte* from, std::byte* to) {
  Transfer transfer{.number = numbers_[pair(leg.from, leg.to)]++, .from = leg.from, .to = leg.to};
  transfer.bytes = leg.bytes;
  const Event sent = link_->send(transfer, from, *out_[static_cast<size_t>(leg.from)]);
  link_->receive(transfer, to, in(leg.to, leg.lane), {});
  return sent;
}

void ExchangeDevices::issue(const ExchangeLeg& leg, std::vector<Event>& arrived) {
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

}  // namespace pagoda
