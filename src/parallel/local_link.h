// A link between devices of one process: the receiving lane copies from the sender's memory, once.
// Between GPUs that are no peers the bytes go through the host instead: a stream of the sender's
// device copies them there piece by piece, into pinned memory of the receiver's, and the receiving
// lane copies them on.
// REQUIRES: each send is issued before its receive, and received with as many bytes.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "parallel/link.h"

namespace pagoda {

class LocalLink : public Link {
 public:
  // Pinned host memory of each device that others cannot reach, in two pieces.
  static constexpr int64_t kStagingBytes = int64_t{8} << 20;
  static constexpr int64_t kTriedBytes = 64 << 10;  // between each two, at first

  // Between devices whose memory is the host's, which all streams reach.
  LocalLink() = default;
  // Between the devices with these numbers, which live as long; their arenas hold nothing yet.
  // Tries whether bytes arrive as they were sent, since drivers allow peer copies that do not work;
  // those of such a pair go through the host, and a warning says so. kHostMemory: there is none for
  // what goes through the host. Throws as Device::make_stream.
  static Result<std::unique_ptr<LocalLink>> create(const std::vector<Device*>& devices);
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
  // Host memory before a device: each piece is filled by a sender, emptied by the receiving lane,
  // in the order of the receives.
  struct Staging {
    HostMemory memory;
    std::shared_ptr<void> pin;
    std::array<Event, 2> empty;  // of each piece
    size_t next = 0;             // piece
  };
  using Key = std::tuple<int, int, int64_t>;  // from, to, number
  static Key key(const Transfer& transfer) { return {transfer.from, transfer.to, transfer.number}; }
  Status stage(int from, int to);
  void receive_staged(Sent& sent, std::byte* target, Stream& lane, const TraceLabel& label);

  std::vector<Device*> devices_;
  std::map<int, Staging> staging_;                                          // [to]
  std::map<std::pair<int, int>, std::unique_ptr<Stream>> staging_streams_;  // [from, to]; of `from`
  std::map<Key, Sent> sent_;  // until it is received
  Counts counts_;
};

}  // namespace pagoda
