// The link between ranks: host memories by MPI, and GPUs by a link of their own where there is one,
// else by MPI too, through host memory (parallel/mpi_link.h). An error of either is one of both,
// since they share the communicator's (Link::status). One thread, as for every link.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "parallel/mpi_link.h"

namespace pagoda {

class MixedLink final : public Link {
 public:
  // `gpus`: between the first `devices` endpoints, which are GPUs all.
  MixedLink(std::unique_ptr<MpiLink> hosts, std::unique_ptr<Link> gpus, int devices)
      : hosts_(std::move(hosts)), gpus_(std::move(gpus)), devices_(devices) {}

  Event send(const Transfer& transfer, const std::byte* source, Stream& lane) override;
  void receive(const Transfer& transfer, std::byte* target, Stream& lane,
               const TraceLabel& label = {}) override;
  Status status() const override;
  void give_up(const Status& why) override;
  int given_up_by() const override { return hosts_->given_up_by(); }
  bool by_rounds() const override { return gpus_->by_rounds(); }
  void end_round() override { gpus_->end_round(); }
  const Counts& counts() const override { return counts_; }

 private:
  Link& link_of(const Transfer& transfer) const;

  std::unique_ptr<MpiLink> hosts_;
  std::unique_ptr<Link> gpus_;
  const int devices_;
  Counts counts_;
};

// Opens a link between GPUs, `gpus` as NcclLink::create() has it.
using OpenGpuLink = std::function<Result<std::unique_ptr<Link>>(
    MpiCommunicator& all, const std::vector<Device*>& gpus, const std::vector<int>& rank_of,
    double deadline_s)>;
// Opens NCCL. kUnavailable, everywhere alike, where a rank has none or NCCL refuses.
Result<std::unique_ptr<Link>> open_nccl(MpiCommunicator& all, const std::vector<Device*>& gpus,
                                        const std::vector<int>& rank_of, double deadline_s);

// `ends` as MpiLink::create() takes them; on all ranks devices are GPUs, or on none. Where GPUs
// have no link of their own, rank 0 says why, and MPI carries all. The errors of MpiLink::create().
Result<std::unique_ptr<Link>> open_mixed_link(MpiCommunicator& all, std::vector<LinkEnd> ends,
                                              double deadline_s, const OpenGpuLink& open_gpus,
                                              Trace* trace);

}  // namespace pagoda
