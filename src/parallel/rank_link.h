// The link of one rank among several: transfers between its own devices stay in the process and go
// over one link, all others over one that reaches the other ranks.
#pragma once

#include <memory>

#include "parallel/link.h"

namespace pagoda {

class RankLink : public Link {
 public:
  // The rank's devices are `devices` from `first_device` on; `within` counts them from 0. `across`
  // is not owned.
  RankLink(std::unique_ptr<Link> within, Link* across, int first_device, int devices);

  Event send(const Transfer& transfer, const std::byte* source, Stream& lane) override;
  void receive(const Transfer& transfer, std::byte* target, Stream& lane,
               const TraceLabel& label = {}) override;
  Status status() const override;
  void give_up(const Status& why) override { across_->give_up(why); }
  int given_up_by() const override { return across_->given_up_by(); }
  bool by_rounds() const override { return across_->by_rounds(); }
  void end_round() override { across_->end_round(); }
  const Counts& counts() const override { return counts_; }

 private:
  bool is_own(int end) const { return end >= first_device_ && end < first_device_ + devices_; }
  bool stays(const Transfer& t) const { return is_own(t.from) && is_own(t.to); }
  Transfer own(Transfer transfer) const;

  std::unique_ptr<Link> within_;
  Link* across_;
  int first_device_, devices_;
  Counts counts_;
};

}  // namespace pagoda
