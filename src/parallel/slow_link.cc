#include "parallel/slow_link.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/bytes.h"
#include "base/clock.h"

namespace pagoda {
namespace {

void sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

constexpr double kPieceS = 2e-3;  // after which others have their turn
constexpr double kRounding = 1e-9;

}  // namespace

NetworkCards::NetworkCards(std::vector<double> bytes_per_s)
    : bytes_per_s_(std::move(bytes_per_s)),
      least_((1 - kRounding) * *std::min_element(bytes_per_s_.begin(), bytes_per_s_.end())),
      sends_(bytes_per_s_),
      takes_(bytes_per_s_) {}

double NetworkCards::left(const Path& path) const {
  return std::min(sends_[static_cast<size_t>(path.from)], takes_[static_cast<size_t>(path.to)]);
}

void NetworkCards::take(const Path& path, double rate) {
  sends_[static_cast<size_t>(path.from)] -= rate;
  takes_[static_cast<size_t>(path.to)] -= rate;
  changed_.notify_all();
}

int64_t NetworkCards::next_place() {
  std::lock_guard lock(mutex_);
  return places_++;
}

// A sleep that was too long counts.
void NetworkCards::occupy(int64_t place, int from, int to, double seconds) {
  const Path path{from, to};
  const double whole = std::min(bytes_per_s(from), bytes_per_s(to));
  std::unique_lock lock(mutex_);
  while (seconds > 0) {
    const auto own = waiting_.emplace(place, path).first;
    changed_.wait(lock, [&] {
      return free(path) && std::none_of(waiting_.begin(), own,
                                        [&](const auto& before) { return free(before.second); });
    });
    waiting_.erase(own);
    const double rate = left(path), part = rate / whole;
    take(path, rate);
    lock.unlock();
    const int64_t begin_us = monotonic_us();
    sleep(std::min(seconds / part, kPieceS));
    seconds -= part * 1e-6 * static_cast<double>(monotonic_us() - begin_us);
    lock.lock();
    take(path, -rate);
  }
}

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
    bytes_per_s =
        std::min(speed_.cards->bytes_per_s(transfer.from), speed_.cards->bytes_per_s(transfer.to));
  }
  double seconds = speed_.latency_s;
  if (bytes_per_s > 0) seconds += static_cast<double>(transfer.bytes) / bytes_per_s;
  return seconds + speed_.jitter_s * std::generate_canonical<double, 32>(random_);
}

Event SlowLink::send(const Transfer& transfer, const std::byte* source, Stream& lane) {
  Stream& on_its_way = wire(transfer.from, transfer.to);
  const double seconds = this->seconds(transfer);
  on_its_way.wait(lane.record());
  if (speed_.cards) {
    Event& expected = expected_[{transfer.from, transfer.to, transfer.number}];
    expected = Event::make();
    on_its_way.wait(expected);
  }
  const int64_t place = speed_.cards ? speed_.cards->next_place() : 0;
  on_its_way.enqueue(
      [seconds, place, cards = speed_.cards, from = transfer.from, to = transfer.to] {
        if (cards) {
          cards->occupy(place, from, to, seconds);
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
