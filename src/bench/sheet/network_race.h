// One turn of every measurement between processes: transfers of the link that training uses
// (parallel/mpi_link.h), against memory, the cards or MPI's own exchange. All processes make the
// same calls, and get the same results.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "bench/race/timing.h"
#include "bench/sheet/nodes.h"
#include "device/device.h"
#include "parallel/mpi_link.h"

namespace pagoda {

class NetworkRace {
 public:
  static constexpr int kMostFlows = 4;
  static constexpr int64_t kPingBytes = 8;

  // kHostMemory. `all` and `nodes` (gather_nodes) outlive it. REQUIRES: at least two processes.
  static Result<std::unique_ptr<NetworkRace>> create(MpiCommunicator& all,
                                                     const std::vector<Node>& nodes);

  // Microseconds of half a round trip of a small message: alone, and while large ones go both ways.
  struct Pings {
    double alone_us = 0, among_others_us = 0;
  };
  Result<Pings> ping(int first, int second);

  struct Legs {
    Timing ours, roof;
  };
  // What `first` sends to `second` in messages of this size, in so many flows at once, while, if
  // `both`, as much comes back. The roof is the slower card of two machines, or memcpy of the same
  // bytes within a machine or where a card does not report its speed.
  Result<Legs> race(int first, int second, int64_t message_bytes, int flows, bool both);
  // What one process sends to all others at once, while as much comes in: as fast as its card, or
  // as all of theirs together. The roof is what the card reports, or memcpy of the same bytes.
  Result<Legs> race_all_others(int rank);
  // Exchanges between all, of so many bytes from each to each: the slowest process's turn. The roof
  // is MPI_Alltoallv, which waits for each.
  struct Exchanges {
    Legs legs;  // what one sends in many that are issued at once
    double alone_us = 0, mpi_us = 0;  // time of one, where each waits for the one before
  };
  Result<Exchanges> exchange(int64_t bytes);

 private:
  NetworkRace(MpiCommunicator& all, const std::vector<Node>& nodes, HostMemory out, HostMemory in);

  struct Batch {
    int other = 0;
    int64_t message_bytes = 0;
    int flows = 1;
    bool sends = false, receives = false;
  };
  Batch batch(int first, int second, int64_t message_bytes, int flows, bool both) const;
  void begin(const Batch& batch, int first_flow, std::vector<Event>& sent);
  Status run(const Batch& batch, int64_t times);
  Result<Timing> lead(const Batch& batch, int64_t times);
  Result<int64_t> follow(const Batch& batch);
  Result<double> ping_us(int other, bool leads, int pings);
  void swap_with(int other, int64_t bytes, int lane, std::vector<Event>& sent);
  Result<Timing> time_exchanges(int64_t bytes, int64_t times, bool waits);
  Result<Timing> time_mpi(int64_t bytes, int64_t times);
  Timing copy(int64_t bytes);
  double card_gb_s(int a, int b) const;
  Transfer next(int from, int to, int flow, int64_t bytes);
  Event send(int to, int flow, int64_t offset, int64_t bytes, Stream& lane);
  void receive(int from, int flow, int64_t offset, int64_t bytes, Stream& lane);
  Status finish(const std::vector<Event>& sent);

  MpiCommunicator& all_;
  const std::vector<Node>& nodes_;
  HostMemory out_, in_;
  std::unique_ptr<Stream> out_lane_;
  std::array<std::unique_ptr<Stream>, kMostFlows> in_lanes_;  // [flow]
  std::unique_ptr<MpiLink> link_;
  std::map<std::pair<int, int>, int64_t> numbers_;  // [from, to] of endpoints; of the next transfer
};

}  // namespace pagoda
