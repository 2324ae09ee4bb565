#include "parallel/gpus/mixed_link.h"

#include "base/log.h"

namespace pagoda {

Link& MixedLink::link_of(const Transfer& transfer) const {
  return transfer.from < devices_ && transfer.to < devices_ ? *gpus_ : *hosts_;
}

Event MixedLink::send(const Transfer& transfer, const std::byte* source, Stream& lane) {
  return link_of(transfer).send(transfer, source, lane);
}

void MixedLink::receive(const Transfer& transfer, std::byte* target, Stream& lane,
                        const TraceLabel& label) {
  link_of(transfer).receive(transfer, target, lane, label);
  counts_[{transfer.from, transfer.to}].add(transfer);
}

Status MixedLink::status() const {
  RETURN_IF_ERROR(hosts_->status());
  return gpus_->status();
}

void MixedLink::give_up(const Status& why) {
  hosts_->give_up(why);
  gpus_->give_up(why);
}

namespace {

// The link between GPUs; nullptr if MPI carries what they send.
Result<std::unique_ptr<Link>> open_gpu_link(MpiCommunicator& all, const std::vector<LinkEnd>& ends,
                                            double deadline_s, const OpenGpuLink& open_gpus) {
  std::unique_ptr<Link> none;
  std::vector<Device*> gpus;
  std::vector<int> rank_of;
  bool any = false;
  const size_t devices = ends.size() - static_cast<size_t>(all.size());
  for (size_t d = 0; d < devices; ++d) {
    gpus.push_back(ends[d].gpu);
    rank_of.push_back(ends[d].rank);
    any = any || ends[d].gpu != nullptr;
  }
  if (!any) return none;
  auto link = open_gpus(all, gpus, rank_of, deadline_s);
  if (link.ok() || link.status().code() != Exit::kUnavailable) return link;
  if (all.rank() == 0) {
    log_warn(
        "GPUs of different ranks do not send to each other by NCCL, but through host memory (" +
        link.status().message() + ")");
  }
  return none;
}

}  // namespace

Result<std::unique_ptr<Link>> open_mixed_link(MpiCommunicator& all, std::vector<LinkEnd> ends,
                                              double deadline_s, const OpenGpuLink& open_gpus,
                                              Trace* trace) {
  std::unique_ptr<Link> gpus;
  if (open_gpus) {
    ASSIGN_OR_RETURN(gpus, open_gpu_link(all, ends, deadline_s, open_gpus));
  }
  const int devices = static_cast<int>(ends.size()) - all.size();
  // Staging is for GPUs that MPI sends from.
  if (gpus) {
    for (LinkEnd& end : ends) end.gpu = nullptr;
  }
  ASSIGN_OR_RETURN(std::unique_ptr<MpiLink> hosts,
                   MpiLink::create(all, std::move(ends), deadline_s, trace));
  if (!gpus) return std::unique_ptr<Link>(std::move(hosts));
  return std::unique_ptr<Link>(
      std::make_unique<MixedLink>(std::move(hosts), std::move(gpus), devices));
}

}  // namespace pagoda
