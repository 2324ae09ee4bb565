#include "parallel/rank_link.h"

namespace pagoda {

RankLink::RankLink(std::unique_ptr<Link> within, Link* across, int first_device, int devices)
    : within_(std::move(within)),
      across_(across),
      first_device_(first_device),
      devices_(devices) {}

Transfer RankLink::own(Transfer transfer) const {
  transfer.from -= first_device_;
  transfer.to -= first_device_;
  return transfer;
}

Event RankLink::send(const Transfer& transfer, const std::byte* source, Stream& lane) {
  if (stays(transfer)) return within_->send(own(transfer), source, lane);
  return across_->send(transfer, source, lane);
}

void RankLink::receive(const Transfer& transfer, std::byte* target, Stream& lane,
                       const TraceLabel& label) {
  if (stays(transfer)) {
    within_->receive(own(transfer), target, lane, label);
  } else {
    across_->receive(transfer, target, lane, label);
  }
  counts_[{transfer.from, transfer.to}].add(transfer);
}

Status RankLink::status() const {
  RETURN_IF_ERROR(within_->status());
  return across_->status();
}

}  // namespace pagoda
