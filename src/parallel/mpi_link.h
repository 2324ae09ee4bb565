// The link between endpoints of different ranks, over the carrier of their communicator.
//
// Host memory is sent from where it is and received where it belongs: no copy, and so no span on
// the receiving lane. What leaves a GPU, or is for one, goes through pinned host memory in pieces:
// a stream of the link's copies them there, and the receiving lane copies them on. Each pair of
// endpoints is a channel, so that no pair waits for another, whatever the order in which its ends
// come to it.
//
// Transfers with turns (Transfer::turns) begin at either end in the order in which they are issued
// there, each when those before it on its card are all but through (carrier_flows.h); what a card
// sends and what it takes have turns of their own. So rounds of an exchange
// (plan/rounds/exchange_order.h) stay rounds: without turns a card serves whoever is there, several
// at a time where its rank has several devices, and others wait for all of them.
//
// Turns cannot deadlock. All ranks issue their parts of one total order, in which each send stands
// before its receive (parallel/link.h); REQUIRES: of transfers with turns, right before it, or with
// none of them between the two. Then one transfer is sent before another where it is received
// before it, and "before" is one order for all cards. Of the transfers that have not ended, take
// the first of the total order. What its lanes have before it waits for earlier transfers alone,
// and ends. What is before it in its pair, in the turns of both cards and in pinned memory is
// earlier, and has ended. So it begins at both ends, its flow has room for a part, and it moves: it
// ends.
//
// A link that was given up is the last one of its communicator, which goes on. An error of a
// transfer is one of the communicator and of all other transfers (carrier_thread.h).
// One is that a transfer does not move within the deadline: kStopped names rank, host, transfer and
// what it is. The clock runs once this end's lane is there and it has its turn, while the transfer
// is the first of its pair. So a deadline must be longer than what the other end has before it in
// turn.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "parallel/link.h"
#include "parallel/mpi_communicator.h"

namespace pagoda {

class MpiLink final : public Link {
 public:
  // Pinned host memory for each GPU of this rank: per endpoint of another rank that it may send to,
  // and for what it receives, in the order in which that is issued: so lanes of a GPU do not
  // receive side by side, but for transfers that fit into it together.
  static constexpr int64_t kSendStagingBytes = 2 * Carrier::kMostBytes;
  static constexpr int64_t kReceiveStagingBytes = 4 * Carrier::kMostBytes;

  // Where a trace has what goes to a rank or comes from it.
  static Trace::Lane trace_lane(Trace& trace, bool sends, int peer) {
    return trace.lane("network", strf("%s rank %d", sends ? "to" : "from", peer));
  }

  // `ends` are equal everywhere but for the GPUs, which live as long. There is one link at a time,
  // and the communicator outlives it. Spans go to `trace`, if that is given. kHostMemory. Throws as
  // Device::make_stream.
  static Result<std::unique_ptr<MpiLink>> create(MpiCommunicator& all, std::vector<LinkEnd> ends,
                                                 double deadline_s, Trace* trace = nullptr);
  // Transfers that have not begun end. One that is under way is an error, unless the link was given
  // up: then the other ranks are waited for.
  ~MpiLink() override;

  // REQUIRES, of both: the other end is on another rank.
  Event send(const Transfer& transfer, const std::byte* source, Stream& lane) override;
  void receive(const Transfer& transfer, std::byte* target, Stream& lane,
               const TraceLabel& label = {}) override;
  Status status() const override;
  void give_up(const Status& why) override { all_.thread().give_up_link(why); }
  int given_up_by() const override { return all_.thread().link_given_up().by; }
  const Counts& counts() const override { return counts_; }

  // What went to and came from a rank so far. Times are of transfers, from when this end was ready,
  // added up; those of several pairs may overlap.
  struct PeerTraffic {
    Count sent, received;
    int64_t in_turn = 0;  // transfers of these
    int64_t sending_us = 0, receiving_us = 0;
  };
  std::vector<PeerTraffic> traffic() const;  // [rank]; any thread

 private:
  // Host memory between a GPU and the carrier, in pieces that are used in turn.
  struct Staging {
    HostMemory memory;
    std::shared_ptr<void> pin;
    std::vector<Event> empty;  // [piece]
    size_t next = 0;                 // piece
    std::unique_ptr<Stream> stream;  // a sender's

    Status allocate(Device& gpu, int64_t bytes);
    size_t take() { return std::exchange(next, (next + 1) % empty.size()); }
    std::byte* piece(size_t i) const {
      return memory.data() + static_cast<int64_t>(i) * Carrier::kMostBytes;
    }
  };
  struct UnderWay;

  MpiLink(MpiCommunicator& all, std::vector<LinkEnd> ends, double deadline_s, Trace* trace);
  Status stage();
  int channel(const Transfer& transfer) const;
  int queue(const Transfer& transfer, bool sends) const;
  void check_order(const Transfer& transfer);
  CarriedMessage message(const std::shared_ptr<UnderWay>& transfer, std::byte* data, int64_t bytes,
                         Event ready, Event ended);
  void end(UnderWay& transfer, const CarriedMessage::End& end);
  Event send_staged(const Transfer& transfer, const std::byte* source, Stream& lane);
  void receive_staged(const Transfer& transfer, std::byte* target, Stream& lane,
                      const TraceLabel& label);

  MpiCommunicator& all_;
  const std::vector<LinkEnd> ends_;
  const double deadline_s_;
  Trace* const trace_;
  std::vector<int> place_;                         // [endpoint] among those of its rank
  std::vector<int> ends_of_;                       // [rank] how many
  int cards_ = 1;                                  // of a rank, at most
  std::map<std::pair<int, int>, int64_t> newest_;  // [from, to] number
  std::map<std::pair<int, int>, Staging> out_;     // [from, to]
  std::map<int, Staging> in_;                      // [to]
  Counts counts_;

  mutable std::mutex mutex_;  // guards the rest
  std::vector<PeerTraffic> traffic_;
};

}  // namespace pagoda
