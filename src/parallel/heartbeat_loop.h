// What the heartbeat's thread does: it connects, sends, listens and counts the time.
// Heartbeat-internal.
//
// The higher one of two ranks connects, to one address after the other until the right rank
// answers. A pair is settled when each has heard the other: only then is the end of its connection
// a loss. Until then the deadline counts from the start.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "parallel/heartbeat_connection.h"
#include "parallel/rank_waits.h"
#include "parallel/tcp.h"

namespace pagoda {

class HeartbeatLoop {
 public:
  struct Address {
    std::string host;  // its name, for people
    int port = 0;
    std::vector<std::string> addresses;
  };
  struct Setup {
    int rank = 0;
    HeartbeatKey key{};
    std::vector<Address> ranks;
    TcpListener listener;
    double period_s = 0, deadline_s = 0;
    std::function<void(int rank, const Status&)> on_loss;
    RankWaits* waits = nullptr;
  };
  explicit HeartbeatLoop(Setup setup);

  void run();  // all that the thread does

  // Other threads.
  Status wait_until_settled();
  void stop();
  void accuse(int rank);  // it is lost, though it may beat
  void set_word(const std::string& word);
  Status status() const;
  int64_t refused() const;
  int port() const { return setup_.listener.port; }

 private:
  struct Peer {
    HeartbeatConnection* connection = nullptr;
    bool settled = false, left = false, lost = false;
    bool missed = false;  // a warning of its silence was given
    int64_t heard_us = 0, retry_us = 0;
    size_t next_address = 0;
    std::string word;

    bool counts() const { return !left && !lost; }  // it can still be lost
  };

  void take_orders();
  void leave();
  void wake();
  void connect_to_lower_ranks();
  void beat();
  void check_times();
  void warn_of(int rank, Peer& peer);
  int longest_silent() const;
  void wait();
  int64_t next_due_us() const;
  void serve(HeartbeatConnection& connection);
  void take_guests();
  bool is_right(const HeartbeatConnection& connection, const HeartbeatFrame& frame) const;
  void hear(HeartbeatConnection& connection, const HeartbeatFrame& frame);
  void settle(Peer& peer);
  void tell(HeartbeatConnection& connection, HeartbeatKind kind, int lost = 0);
  void tell_all(HeartbeatKind kind, int lost = 0);
  void lose(int rank, Exit code, const std::string& what);
  bool fail(int rank, Exit code, const std::string& what);
  void end(HeartbeatConnection& connection);     // the other end has ended it
  void refuse(HeartbeatConnection& connection);  // it is not of this run
  void close(HeartbeatConnection& connection);
  std::string name_of(int rank) const;
  int size() const { return static_cast<int>(peers_.size()); }

  // The thread's.
  const Setup setup_;
  const int64_t period_us_, deadline_us_;
  const int64_t missed_us_;  // a silence that is warned of
  std::vector<Peer> peers_;  // [rank]; the own one has left
  std::list<HeartbeatConnection> connections_;
  int64_t now_us_ = 0, next_beat_us_ = 0, listen_us_ = 0, stop_us_ = -1;

  Descriptor wake_;  // others write to it

  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  bool stop_ = false;
  int accused_ = -1;  // -1: nobody
  int unsettled_ = 0;
  std::string word_;
  Status status_;
  int64_t refused_ = 0;
};

}  // namespace pagoda
