#include "parallel/heartbeat_loop.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"

namespace pagoda {
namespace {

constexpr int64_t kMostStrangers = 32;      // guests that have not said who they are
constexpr int64_t kStrangerUs = 5'000'000;  // they have so long to do so
constexpr int64_t kRetryUs = 100'000;       // between two attempts to reach a rank
constexpr int64_t kGoodbyeUs = 1'000'000;   // for goodbyes to be heard
constexpr int kMostFramesAtOnce = 16;       // of a connection, before others have their turn

int64_t us_of(double seconds) { return static_cast<int64_t>(1e6 * seconds); }

}  // namespace

HeartbeatLoop::HeartbeatLoop(Setup setup)
    : setup_(std::move(setup)),
      period_us_(us_of(setup_.period_s)),
      deadline_us_(us_of(setup_.deadline_s)),
      missed_us_(period_us_ + period_us_ / 2),
      peers_(setup_.ranks.size()),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  CHECK(wake_.ok() && period_us_ > 0 && deadline_us_ > 0);
  now_us_ = monotonic_us();
  for (Peer& peer : peers_) peer.heard_us = now_us_;
  peers_[static_cast<size_t>(setup_.rank)].left = true;
  unsettled_ = size() - 1;
}

void HeartbeatLoop::run() {
  for (;;) {
    now_us_ = monotonic_us();
    take_orders();
    if (stop_us_ < 0) {
      connect_to_lower_ranks();
      if (now_us_ >= next_beat_us_) beat();
      check_times();
    }
    connections_.remove_if([](const HeartbeatConnection& one) { return one.is_over; });
    const bool all_heard = connections_.empty() || now_us_ >= stop_us_ + kGoodbyeUs;
    if (stop_us_ >= 0 && all_heard) return;
    wait();
  }
}

Status HeartbeatLoop::wait_until_settled() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return unsettled_ == 0 || !status_.ok(); });
  return status_;
}

void HeartbeatLoop::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake();
}

void HeartbeatLoop::accuse(int rank) {
  {
    std::lock_guard lock(mutex_);
    accused_ = rank;
  }
  wake();
}

void HeartbeatLoop::wake() {
  const uint64_t one = 1;
  CHECK(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
}

void HeartbeatLoop::set_word(const std::string& word) {
  std::lock_guard lock(mutex_);
  word_ = word;
}

Status HeartbeatLoop::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

int64_t HeartbeatLoop::refused() const {
  std::lock_guard lock(mutex_);
  return refused_;
}

std::string HeartbeatLoop::name_of(int rank) const {
  return strf("rank %d on ", rank) + setup_.ranks[static_cast<size_t>(rank)].host;
}

void HeartbeatLoop::take_orders() {
  int accused = -1;
  bool stops = false;
  {
    std::lock_guard lock(mutex_);
    accused = std::exchange(accused_, -1);
    stops = stop_;
  }
  if (accused >= 0 && peers_[static_cast<size_t>(accused)].counts()) {
    lose(accused, Exit::kStopped, " goes no further");
  }
  if (stops && stop_us_ < 0) leave();
}

void HeartbeatLoop::leave() {
  stop_us_ = now_us_;
  for (HeartbeatConnection& connection : connections_) {
    if (connection.is_known) {
      tell(connection, HeartbeatKind::kGoodbye);
      connection.end_sending();
    } else {
      close(connection);
    }
  }
}

void HeartbeatLoop::connect_to_lower_ranks() {
  for (int rank = 0; rank < setup_.rank; ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (peer.connection != nullptr || peer.settled || !peer.counts()) continue;
    if (now_us_ < peer.retry_us) continue;
    peer.retry_us = now_us_ + kRetryUs;
    const Address& at = setup_.ranks[static_cast<size_t>(rank)];
    Descriptor socket =
        connect_to(at.addresses[peer.next_address++ % at.addresses.size()], at.port);
    if (!socket.ok()) continue;
    peer.connection = &connections_.emplace_back(std::move(socket), rank, now_us_);
    tell(*peer.connection, HeartbeatKind::kBeat);
  }
}

void HeartbeatLoop::beat() {
  next_beat_us_ = now_us_ + period_us_;
  tell_all(HeartbeatKind::kBeat);
}

void HeartbeatLoop::tell_all(HeartbeatKind kind, int lost) {
  for (HeartbeatConnection& connection : connections_) {
    if (connection.is_known && !connection.is_over) tell(connection, kind, lost);
  }
}

void HeartbeatLoop::tell(HeartbeatConnection& connection, HeartbeatKind kind, int lost) {
  HeartbeatFrame frame;
  frame.key = setup_.key;
  frame.from = static_cast<uint32_t>(setup_.rank);
  frame.to = static_cast<uint32_t>(connection.rank);
  frame.kind = kind;
  frame.of = static_cast<uint32_t>(lost);
  if (kind == HeartbeatKind::kBeat && setup_.waits != nullptr) {
    const RankWaits::Wait own = setup_.waits->of(setup_.rank);
    frame.of = static_cast<uint32_t>(own.peer);
    frame.waited_ms = static_cast<uint32_t>(own.waited_us / 1000);
  }
  {
    std::lock_guard lock(mutex_);
    frame.word = word_;
  }
  connection.send(std::move(frame));
}

void HeartbeatLoop::check_times() {
  for (int rank = longest_silent(); rank >= 0; rank = longest_silent()) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    const Address& at = setup_.ranks[static_cast<size_t>(rank)];
    if (now_us_ - peer.heard_us < deadline_us_) break;
    if (peer.settled) {
      lose(rank, Exit::kStopped, strf(" has been silent for %g s", setup_.deadline_s));
    } else {
      lose(rank, Exit::kUnavailable,
           strf(" cannot be reached at %s, port %d; open it in that machine's firewall, or name "
                "others (parallel.ports)",
                at.addresses.front().c_str(), at.port));
    }
  }
  for (int rank = 0; rank < size(); ++rank) warn_of(rank, peers_[static_cast<size_t>(rank)]);
  for (HeartbeatConnection& connection : connections_) {
    if (connection.is_known || now_us_ - connection.since_us < kStrangerUs) continue;
    connection.is_guest ? refuse(connection) : close(connection);
  }
}

// Says once of a silence that it lasts, long before it is a loss, and when it is over. Of all ranks
// only the lowest other one speaks.
void HeartbeatLoop::warn_of(int rank, Peer& peer) {
  const bool silent = peer.settled && peer.counts() && now_us_ - peer.heard_us >= missed_us_;
  if (silent == std::exchange(peer.missed, silent)) return;
  if (setup_.rank != (rank == 0 ? 1 : 0) || !peer.counts()) return;
  if (!silent) return log_info(name_of(rank) + " is heard again");
  log_warn(
      name_of(rank) +
      strf(" has been silent for %g s; the run ends if that becomes %g s (parallel.deadline_s)",
           1e-6 * static_cast<double>(missed_us_), setup_.deadline_s));
}

// Whoever can still be lost; -1: nobody can.
int HeartbeatLoop::longest_silent() const {
  int longest = -1;
  for (int rank = 0; rank < size(); ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (!peer.counts()) continue;
    if (longest < 0 || peer.heard_us < peers_[static_cast<size_t>(longest)].heard_us) {
      longest = rank;
    }
  }
  return longest;
}

void HeartbeatLoop::lose(int rank, Exit code, const std::string& what) {
  peers_[static_cast<size_t>(rank)].lost = true;
  if (!fail(rank, code, what) || code != Exit::kStopped) return;
  tell_all(HeartbeatKind::kLoss, rank);
}

// Returns false if something was wrong before.
bool HeartbeatLoop::fail(int rank, Exit code, const std::string& what) {
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  const std::string last =
      peer.word.empty() ? "" : "; it was last at \"" + printable(peer.word) + "\"";
  const Status status(code, name_of(rank) + what + last);
  {
    std::lock_guard lock(mutex_);
    if (!status_.ok()) return false;
    status_ = status;
  }
  changed_.notify_all();
  if (code == Exit::kStopped) setup_.on_loss(rank, status);
  return true;
}

void HeartbeatLoop::settle(Peer& peer) {
  if (std::exchange(peer.settled, true)) return;
  {
    std::lock_guard lock(mutex_);
    --unsettled_;
  }
  changed_.notify_all();
}

int64_t HeartbeatLoop::next_due_us() const {
  if (stop_us_ >= 0) return stop_us_ + kGoodbyeUs;
  int64_t due_us = next_beat_us_;
  bool all_known = listen_us_ <= now_us_;
  for (const Peer& peer : peers_) {
    if (peer.counts()) due_us = std::min(due_us, peer.heard_us + deadline_us_);
    const bool may_be_missed = peer.counts() && peer.settled && !peer.missed;
    if (may_be_missed) due_us = std::min(due_us, peer.heard_us + missed_us_);
    if (peer.counts() && !peer.settled) all_known = false;
  }
  for (const HeartbeatConnection& connection : connections_) {
    if (!connection.is_known) all_known = false;
  }
  return all_known ? due_us : std::min(due_us, now_us_ + kRetryUs);
}

// Sleeps until something is due or comes, and serves what has come.
void HeartbeatLoop::wait() {
  const bool listens = stop_us_ < 0 && now_us_ >= listen_us_;
  std::vector<pollfd> polled = {{wake_.get(), POLLIN, 0},
                                {listens ? setup_.listener.socket.get() : -1, POLLIN, 0}};
  for (const HeartbeatConnection& connection : connections_) {
    polled.push_back({connection.descriptor(), connection.events(), 0});
  }
  const int64_t left_us = std::max<int64_t>(0, next_due_us() - now_us_);
  const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(left_us / 1000 + 1));
  CHECK(ready >= 0 || errno == EINTR, "poll: %s", last_error().c_str());
  if (ready <= 0) return;
  now_us_ = monotonic_us();
  uint64_t count = 0;
  if (polled[0].revents != 0) CHECK(::read(wake_.get(), &count, sizeof(count)) == sizeof(count));
  auto connection = connections_.begin();
  for (size_t i = 2; i < polled.size(); ++i, ++connection) {
    if (polled[i].revents != 0 && !connection->is_over) serve(*connection);
  }
  if (polled[1].revents != 0) take_guests();
}

void HeartbeatLoop::serve(HeartbeatConnection& connection) {
  if (!connection.go_on()) return end(connection);
  HeartbeatFrame frame;
  for (int frames = 0; frames < kMostFramesAtOnce && !connection.is_over; ++frames) {
    switch (connection.receive(frame)) {
      case HeartbeatConnection::Got::kNothing: return;
      case HeartbeatConnection::Got::kEnd: return end(connection);
      case HeartbeatConnection::Got::kNonsense: return refuse(connection);
      case HeartbeatConnection::Got::kFrame: hear(connection, frame);
    }
  }
}

void HeartbeatLoop::take_guests() {
  for (int64_t i = 0; i < kMostStrangers; ++i) {
    TcpGuest guest = accept_guest(setup_.listener.socket);
    if (guest.exhausted) listen_us_ = now_us_ + kRetryUs;
    if (!guest.socket.ok()) return;
    const auto is_stranger = [](const HeartbeatConnection& one) {
      return one.is_guest && !one.is_known && !one.is_over;
    };
    if (std::count_if(connections_.begin(), connections_.end(), is_stranger) >= kMostStrangers) {
      refuse(*std::find_if(connections_.begin(), connections_.end(), is_stranger));  // the oldest
    }
    connections_.emplace_back(std::move(guest.socket), -1, now_us_);
  }
}

bool HeartbeatLoop::is_right(const HeartbeatConnection& connection,
                             const HeartbeatFrame& frame) const {
  const auto me = static_cast<uint32_t>(setup_.rank), all = static_cast<uint32_t>(size());
  if (frame.key != setup_.key || frame.to != me || frame.from >= all || frame.of >= all) {
    return false;
  }
  if (connection.is_guest && !connection.is_known) return frame.from > me;
  return frame.from == static_cast<uint32_t>(connection.rank);
}

void HeartbeatLoop::hear(HeartbeatConnection& connection, const HeartbeatFrame& frame) {
  if (!is_right(connection, frame)) return refuse(connection);
  Peer& peer = peers_[frame.from];
  peer.heard_us = now_us_;
  peer.word = frame.word;
  if (!connection.is_known) {
    connection.is_known = true;
    connection.rank = static_cast<int>(frame.from);
    if (peer.connection != nullptr && peer.connection != &connection) close(*peer.connection);
    peer.connection = &connection;
    tell(connection, HeartbeatKind::kBeat);  // the other end waits for it
    if (!connection.is_guest) settle(peer);
  } else {
    settle(peer);
  }
  const int of = static_cast<int>(frame.of);
  if (frame.kind == HeartbeatKind::kBeat && setup_.waits != nullptr) {
    setup_.waits->note(connection.rank, {of, int64_t{1000} * frame.waited_ms, now_us_});
  } else if (frame.kind == HeartbeatKind::kGoodbye) {
    peer.left = true;
    settle(peer);
  } else if (frame.kind == HeartbeatKind::kLoss) {
    const std::string what = " is lost, says " + name_of(connection.rank);
    if (of == setup_.rank) {
      fail(of, Exit::kStopped, what);
    } else {
      lose(of, Exit::kStopped, what);
    }
  }
}

void HeartbeatLoop::end(HeartbeatConnection& connection) {
  const int rank = connection.rank;
  close(connection);
  if (!connection.is_known || stop_us_ >= 0) return;
  const Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.settled && peer.counts()) lose(rank, Exit::kStopped, " is gone");
}

void HeartbeatLoop::refuse(HeartbeatConnection& connection) {
  close(connection);
  std::lock_guard lock(mutex_);
  ++refused_;
}

void HeartbeatLoop::close(HeartbeatConnection& connection) {
  connection.is_over = true;
  if (connection.rank < 0) return;
  Peer& peer = peers_[static_cast<size_t>(connection.rank)];
  if (peer.connection == &connection) peer.connection = nullptr;
}

}  // namespace pagoda
