// One TCP connection of a heartbeat: whole frames in and out, without waiting. Heartbeat-internal.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/descriptor.h"
#include "parallel/heartbeat_frame.h"

namespace pagoda {

class HeartbeatConnection {
 public:
  // `to_rank`: this end has begun to connect to that rank; -1: a guest, who has not said its rank.
  HeartbeatConnection(Descriptor socket, int to_rank, int64_t now_us)
      : rank(to_rank),
        is_guest(to_rank < 0),
        since_us(now_us),
        socket_(std::move(socket)),
        connecting_(!is_guest) {}

  int rank = -1;  // the other end's, as it says or as it ought to be
  const bool is_guest;
  const int64_t since_us;
  bool is_known = false;  // a right frame has come
  bool is_over = false;   // it is to be deleted

  int descriptor() const { return socket_.get(); }
  short events() const;  // what to poll for

  // Sends the frame with the next number, as soon as the system takes it. Leaves it out when some
  // wait already: the other end does not read.
  void send(HeartbeatFrame frame);
  // Goes on connecting or sending. Returns false when the connection is over.
  bool go_on();
  // Once all is sent, lets the other end see the end.
  void end_sending();

  enum class Got { kNothing, kFrame, kNonsense, kEnd };
  // Takes the next whole frame, if it has come. kNonsense: it is none, or not the next one.
  Got receive(HeartbeatFrame& frame);

 private:
  Descriptor socket_;
  bool connecting_ = false, ending_ = false;
  HeartbeatBytes in_{};
  size_t in_bytes_ = 0;
  std::vector<std::byte> out_;
  uint64_t next_in_ = 0, next_out_ = 0;
};

}  // namespace pagoda
