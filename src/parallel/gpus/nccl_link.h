// The link between GPUs of different ranks by NCCL, which moves the bytes from memory to memory.
//
// NCCL's calls of a GPU run one behind the other, and a send ends with its receive: with any two
// GPUs in another order they would wait for each other. So transfers go by rounds, which the plan
// has (plan/step/rank_part.h): those of a round are one NCCL group, in the order in which
// they were issued. A group starts when all of its transfers here are ready, and rounds start one
// behind the other. With both ends of each transfer in one round, nobody waits in a circle.
//
// A thread of the link's issues the groups and watches them. An error, or a round that does not end
// within the deadline, gives up the communicator's link (carrier_flows.h) and with it that of all
// ranks; each aborts NCCL then. What was under way and all that comes later ends, and what would
// have been received is zeros.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "parallel/link.h"
#include "parallel/mpi_communicator.h"

namespace pagoda {

struct NcclCalls;

class NcclLink final : public Link {
 public:
  // `gpus`: [device] of the run, nullptr if it is another rank's; they live as long, and so does
  // `all`. A device's number is its rank in NCCL, and `rank_of` says whose it is. All ranks call
  // it, and get the same error: kUnavailable names NCCL's, kStopped that not all joined within
  // `deadline_s` (0: it waits as long as it takes, here and for rounds), kHostMemory. Throws as
  // Device::make_stream.
  static Result<std::unique_ptr<NcclLink>> create(MpiCommunicator& all, const NcclCalls& calls,
                                                  const std::vector<Device*>& gpus,
                                                  std::vector<int> rank_of, double deadline_s);
  // Transfers that have not begun end. One that is under way is an error of all ranks.
  ~NcclLink() override;

  // REQUIRES, of both: the other end is a device of another rank. They begin with their round.
  Event send(const Transfer& transfer, const std::byte* source, Stream& lane) override;
  // REQUIRES: the lane has received nothing else in this round; it would wait for that.
  void receive(const Transfer& transfer, std::byte* target, Stream& lane,
               const TraceLabel& label = {}) override;
  bool by_rounds() const override { return true; }
  // Ends a round, be it empty. All ranks end as many, at the same places of the plan.
  void end_round() override;
  Status status() const override;
  void give_up(const Status& why) override;
  int given_up_by() const override { return all_.thread().link_given_up().by; }
  const Counts& counts() const override { return counts_; }

  // Whether all ranks have issued the same transfers in the same rounds so far; the same answer
  // everywhere. kInternal names two that have not. All ranks call it, behind the same round.
  Status check_rounds() const;

 private:
  struct Operation {
    Transfer transfer;
    bool sends = false;
    std::byte* data = nullptr;
    const Stream* lane = nullptr;
    Event ready, done;
    int device() const { return sends ? transfer.from : transfer.to; }
  };
  struct Round {
    int64_t number = 0;
    std::vector<Operation> operations;
    Event ready;           // all of them are
    Event ended;           // all of them have; once it is launched
    int64_t begin_us = 0;  // when it was
  };
  struct Gpu;
  struct Waker;

  NcclLink(MpiCommunicator& all, const NcclCalls& calls, std::vector<int> rank_of,
           double deadline_s);
  Status join(const std::vector<Device*>& gpus);
  Status init_ranks(const std::string& id);
  template <typename GiveUp>
  Status settle(double deadline_s, const GiveUp& gives_up);
  Operation& add(const Transfer& transfer, bool sends, std::byte* data, Stream& lane);

  void run();
  bool take_ended();
  void launch(Round& round);
  Status issue(const Round& round);
  Status issue_calls(const Round& round);
  void follow(Round& round);
  static void end(Round& round);
  Status watch();
  Status silence_in(const Round& round) const;
  void fail(const Status& why);
  void abort();
  void write_zeros(const Round& round);
  void leave();
  Status error_of(const char* call, int result) const;

  MpiCommunicator& all_;
  const std::unique_ptr<const NcclCalls> calls_;
  const std::vector<int> rank_of_;  // [device]
  const double deadline_s_;
  HostMemory zeros_;
  std::shared_ptr<void> pin_;  // page-locks zeros_
  std::map<int, Gpu> gpus_;    // [device] of this rank

  // The issuing thread's.
  std::map<std::pair<int, int>, int64_t> newest_;  // [from, to] number
  Round open_;
  std::vector<uint64_t> issued_;  // [rank] what was issued with it: a sum over transfers
  Counts counts_;

  // The link's thread's.
  std::deque<Round> waiting_, under_way_;
  bool aborted_ = false;
  std::vector<std::thread> aborts_;

  const std::shared_ptr<Waker> waker_;  // of the link's thread
  std::mutex mutex_;                    // guards the rest
  std::deque<Round> ended_;             // by the issuing thread, and not yet taken by the link's
  bool stop_ = false;

  std::thread thread_;  // the last: it uses all others
};

}  // namespace pagoda
