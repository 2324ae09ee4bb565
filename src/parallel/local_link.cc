#include "parallel/local_link.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace pagoda {

namespace {

constexpr int64_t kPieceBytes = LocalLink::kStagingBytes / 2;

// Whether a peer copy brings what was sent. Leaves zeros in both arenas.
Result<bool> arrives(Device& from, Device& to) {
  const int64_t bytes = std::min({LocalLink::kTriedBytes, from.arena_bytes(), to.arena_bytes()});
  ASSIGN_OR_RETURN(HostMemory memory, HostMemory::allocate(3 * bytes));
  const std::shared_ptr<void> pin = to.pin(memory.data(), 3 * bytes);
  std::byte *sent = memory.data(), *found = sent + bytes, *zeros = found + bytes;
  for (int64_t i = 0; i < bytes; ++i) sent[i] = static_cast<std::byte>(1 + i % 251);
  const auto out = from.make_stream("try to send", WorkKind::kLink);
  const auto in = to.make_stream("try to receive", WorkKind::kLink);
  out->copy(from.arena(), sent, bytes);
  in->wait(out->record());
  in->copy_from(from, to.arena(), from.arena(), bytes);
  in->copy(found, to.arena(), bytes);
  in->copy(to.arena(), zeros, bytes);
  out->wait(in->record());
  out->copy(from.arena(), zeros, bytes);
  in->synchronize();
  out->synchronize();
  return std::equal(sent, sent + bytes, found);
}

}  // namespace

Result<std::unique_ptr<LocalLink>> LocalLink::create(const std::vector<Device*>& devices) {
  auto link = std::make_unique<LocalLink>();
  link->devices_ = devices;
  const int count = static_cast<int>(devices.size());
  for (int to = 0; to < count; ++to) {
    for (int from = 0; from < count; ++from) {
      if (from == to) continue;
      if (devices[to]->reach(*devices[from])) {
        if (devices[to]->gpu() < 0) continue;
        ASSIGN_OR_RETURN(const bool works, arrives(*devices[from], *devices[to]));
        if (works) continue;
        log_warn(
            strf("GPU %d reads other bytes than GPU %d has, though the driver allows it: what "
                 "goes there takes the way through the host; see whether an IOMMU or PCIe ACS "
                 "is in the way",
                 devices[to]->gpu(), devices[from]->gpu()));
      }
      RETURN_IF_ERROR(link->stage(from, to));
    }
  }
  return link;
}

// Makes the way through the host.
Status LocalLink::stage(int from, int to) {
  if (!staging_.contains(to)) {
    Staging staging;
    ASSIGN_OR_RETURN(staging.memory, HostMemory::allocate(kStagingBytes));
    staging.pin = devices_[to]->pin(staging.memory.data(), kStagingBytes);
    staging_.emplace(to, std::move(staging));
  }
  staging_streams_[{from, to}] =
      devices_[from]->make_stream(strf("stage %d to %d", from, to), WorkKind::kLink);
  return Status();
}

// What nobody has received must not keep a stream waiting. Streams end before what they write to.
LocalLink::~LocalLink() {
  for (auto& [of, sent] : sent_) sent.received.signal();
  for (auto& [to, staging] : staging_) when_all({staging.empty[0], staging.empty[1]}).wait();
  staging_streams_.clear();
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
  if (staging_streams_.contains({transfer.from, transfer.to})) {
    receive_staged(sent, target, lane, label);
  } else {
    lane.wait(sent.ready);
    if (lane.traced()) lane.begin_span(label);
    if (devices_.empty()) {
      lane.copy(target, sent.source, transfer.bytes);
    } else {
      lane.copy_from(*devices_[transfer.from], target, sent.source, transfer.bytes);
    }
    lane.end_span();
    lane.record().when_happened([received = sent.received]() mutable { received.signal(); });
  }
  counts_[{transfer.from, transfer.to}].add(transfer);
}

// The lane shows a span for each piece, without the wait for it.
void LocalLink::receive_staged(Sent& sent, std::byte* target, Stream& lane,
                               const TraceLabel& label) {
  const Transfer& transfer = sent.transfer;
  Stream& sender = *staging_streams_.at({transfer.from, transfer.to});
  Staging& staging = staging_.at(transfer.to);
  sender.wait(sent.ready);
  for (int64_t done = 0; done < transfer.bytes; done += kPieceBytes) {
    const int64_t bytes = std::min(kPieceBytes, transfer.bytes - done);
    const size_t piece = std::exchange(staging.next, 1 - staging.next);
    std::byte* between = staging.memory.data() + static_cast<int64_t>(piece) * kPieceBytes;
    sender.wait(staging.empty[piece]);
    sender.copy(between, sent.source + done, bytes);
    lane.wait(sender.record());
    if (lane.traced()) lane.begin_span(label);
    lane.copy(target + done, between, bytes);
    lane.end_span();
    staging.empty[piece] = lane.record();
  }
  sender.record().when_happened([received = sent.received]() mutable { received.signal(); });
}

}  // namespace pagoda
