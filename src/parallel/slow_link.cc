#include "parallel/slow_link.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/bytes.h"
#include "base/clock.h"

namespace pagoda {

SlowLink::SlowLink(std::unique_ptr<Link> inner, const Speed& speed)
    : inner_(std::move(inner)), speed_(speed), random_(speed.seed) {}

// The wires end before the link that their work was given to.
SlowLink::~SlowLink() {
  for (auto& [transfer, expected] : expected_) expected.signal();
  wires_.clear();
}

Stream& SlowLink::wire(int from, int to) {
  std::unique_ptr<Stream>& wire = wires_[{from, to}];
  if (!wire) {
    wire = make_host_stream({strf("wire %d to %d", from, to), WorkKind::kOther, nullptr},
                            std::make_shared<ThreadPool>(1));
  }
  return *wire;
}

double SlowLink::seconds(const Transfer& transfer) {
  double bytes_per_s = speed_.bytes_per_s;
  if (speed_.cards) {
    const std::vector<NetworkCard>& cards = *speed_.cards;
    bytes_per_s = std::min(cards.at(static_cast<size_t>(transfer.from)).bytes_per_s,
                           cards.at(static_cast<size_t>(transfer.to)).bytes_per_s);
  }
  double seconds = speed_.latency_s;
  if (bytes_per_s > 0) seconds += static_cast<double>(transfer.bytes) / bytes_per_s;
  return seconds + speed_.jitter_s * std::generate_canonical<double, 32>(random_);
}

namespace {

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

constexpr double kPieceS = 2e-3;  // after which others have their turn

// Whoever waits for the receiver keeps the sender; whoever has the receiver waits for nobody. A
// sleep that was too long counts.
void occupy(NetworkCard& sender, NetworkCard& receiver, double seconds) {
  while (seconds > 0) {
    sender.sends.take();
    receiver.takes.take();
    const int64_t begin_us = monotonic_us();
    sleep(std::min(seconds, kPieceS));
    seconds -= 1e-6 * static_cast<double>(monotonic_us() - begin_us);
    receiver.takes.leave();
    sender.sends.leave();
  }
}

}  // namespace

Event SlowLink::send(const Transfer& transfer, const std::byte* source, Stream& lane) {
  Stream& on_its_way = wire(transfer.from, transfer.to);
  const double seconds = this->seconds(transfer);
  on_its_way.wait(lane.record());
  if (speed_.cards) {
    Event& expected = expected_[{transfer.from, transfer.to, transfer.number}];
    expected = Event::make();
    on_its_way.wait(expected);
  }
  on_its_way.enqueue([seconds, cards = speed_.cards, from = static_cast<size_t>(transfer.from),
                      to = static_cast<size_t>(transfer.to)] {
    if (cards) {
      occupy((*cards)[from], (*cards)[to], seconds);
    } else {
      sleep(seconds);
    }
  });
  return inner_->send(transfer, source, on_its_way);
}

void SlowLink::receive(const Transfer& transfer, std::byte* target, Stream& lane,
                       const TraceLabel& label) {
  const auto expected = expected_.extract({transfer.from, transfer.to, transfer.number});
  if (expected) {
    lane.record().when_happened([event = expected.mapped()]() mutable { event.signal(); });
  }
  inner_->receive(transfer, target, lane, label);
}

}  // namespace pagoda
