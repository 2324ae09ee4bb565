#include "parallel/local_link.h"

#include "base/check.h"

namespace pagoda {

// What nobody has received must not keep a stream waiting.
LocalLink::~LocalLink() {
  for (auto& [of, sent] : sent_) sent.received.signal();
}

Event LocalLink::send(const Transfer& transfer, const std::byte* source, Stream& lane) {
  Sent sent{transfer, source, lane.record(), Event::make()};
  const Event received = sent.received;
  const bool is_new = sent_.emplace(key(transfer), std::move(sent)).second;
  CHECK(is_new, "transfer %lld is sent twice", static_cast<long long>(transfer.number));
  return received;
}

void LocalLink::receive(const Transfer& transfer, std::byte* target, Stream& lane,
                        const TraceLabel& label) {
  const auto found = sent_.find(key(transfer));
  CHECK(found != sent_.end(), "transfer %lld is received before it is sent",
        static_cast<long long>(transfer.number));
  Sent sent = std::move(found->second);
  sent_.erase(found);
  CHECK(sent.transfer.bytes == transfer.bytes, "transfer %lld is not received as it was sent",
        static_cast<long long>(transfer.number));
  lane.wait(sent.ready);
  if (lane.traced()) lane.begin_span(label);
  lane.copy(target, sent.source, transfer.bytes);
  lane.end_span();
  lane.record().when_happened([received = sent.received]() mutable { received.signal(); });
  Count& count = counts_[{transfer.from, transfer.to}];
  ++count.transfers;
  count.bytes += transfer.bytes;
  count.rows += transfer.rows;
}

}  // namespace pagoda
