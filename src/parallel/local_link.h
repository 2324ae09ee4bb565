// A link between devices of one process: the receiving lane copies from the sender's memory, once.
// REQUIRES: each send is issued before its receive, and received with as many bytes.
#pragma once

#include <map>
#include <tuple>

#include "parallel/link.h"

namespace pagoda {

class LocalLink : public Link {
 public:
  ~LocalLink() override;

  Event send(const Transfer& transfer, const std::byte* source, Stream& lane) override;
  void receive(const Transfer& transfer, std::byte* target, Stream& lane,
               const TraceLabel& label = {}) override;
  Status status() const override { return Status(); }
  const Counts& counts() const override { return counts_; }

 private:
  struct Sent {
    Transfer transfer;
    const std::byte* source = nullptr;
    Event ready;     // the source is written
    Event received;  // the source may be overwritten
  };
  using Key = std::tuple<int, int, int64_t>;  // from, to, number
  static Key key(const Transfer& transfer) { return {transfer.from, transfer.to, transfer.number}; }
  std::map<Key, Sent> sent_;  // until it is received
  Counts counts_;
};

}  // namespace pagoda
