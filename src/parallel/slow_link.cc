#include "parallel/slow_link.h"

#include <chrono>
#include <thread>

#include "base/bytes.h"

namespace pagoda {

SlowLink::SlowLink(std::unique_ptr<Link> inner, const Speed& speed)
    : inner_(std::move(inner)), speed_(speed), random_(speed.seed) {}

// The wires end before the link that their work was given to.
SlowLink::~SlowLink() { wires_.clear(); }

Stream& SlowLink::wire(int from, int to) {
  std::unique_ptr<Stream>& wire = wires_[{from, to}];
  if (!wire) {
    wire = make_host_stream({strf("wire %d to %d", from, to), WorkKind::kOther, nullptr},
                            std::make_shared<ThreadPool>(1));
  }
  return *wire;
}

Event SlowLink::send(const Transfer& transfer, const std::byte* source, Stream& lane) {
  Stream& on_its_way = wire(transfer.from, transfer.to);
  double seconds = speed_.latency_s;
  if (speed_.bytes_per_s > 0) seconds += static_cast<double>(transfer.bytes) / speed_.bytes_per_s;
  seconds += speed_.jitter_s * std::generate_canonical<double, 32>(random_);
  on_its_way.wait(lane.record());
  on_its_way.enqueue(
      [seconds] { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); });
  return inner_->send(transfer, source, on_its_way);
}

void SlowLink::receive(const Transfer& transfer, std::byte* target, Stream& lane,
                       const TraceLabel& label) {
  inner_->receive(transfer, target, lane, label);
}

}  // namespace pagoda
