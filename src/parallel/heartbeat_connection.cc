#include "parallel/heartbeat_connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <span>

#include "parallel/tcp.h"

namespace pagoda {

namespace {

constexpr size_t kMostWaiting = 4 * kHeartbeatBytes;

}  // namespace

short HeartbeatConnection::events() const {
  if (connecting_) return POLLOUT;
  return static_cast<short>(out_.empty() ? POLLIN : POLLIN | POLLOUT);
}

void HeartbeatConnection::send(HeartbeatFrame frame) {
  if (out_.size() >= kMostWaiting) return;
  frame.number = next_out_++;
  const HeartbeatBytes bytes = frame.encode();
  out_.insert(out_.end(), bytes.begin(), bytes.end());
}

bool HeartbeatConnection::go_on() {
  if (connecting_ && connect_error(socket_) != 0) return false;
  connecting_ = false;
  if (!out_.empty()) {
    const int64_t sent = send_some(socket_, out_);
    if (sent < 0) return false;
    out_.erase(out_.begin(), out_.begin() + sent);
  }
  if (ending_ && out_.empty()) ::shutdown(socket_.get(), SHUT_WR);
  return true;
}

void HeartbeatConnection::end_sending() { ending_ = true; }

HeartbeatConnection::Got HeartbeatConnection::receive(HeartbeatFrame& frame) {
  const int64_t got = receive_some(socket_, std::span(in_).subspan(in_bytes_));
  if (got < 0) return Got::kEnd;
  in_bytes_ += static_cast<size_t>(got);
  if (in_bytes_ < in_.size()) return Got::kNothing;
  in_bytes_ = 0;
  std::optional<HeartbeatFrame> decoded = HeartbeatFrame::decode(in_);
  if (!decoded || decoded->number != next_in_) return Got::kNonsense;
  ++next_in_;
  frame = std::move(*decoded);
  return Got::kFrame;
}

}  // namespace pagoda
