// The messages that a carrier's thread moves. They go by flows: a flow is what one rank sends
// another on one channel, in the order in which it was added. A message begins when it is at the
// front of its flow and its event has happened. It goes in parts. No more than kWindowBytes of a
// flow are under way at a time. So flows never wait for each other: neither for room that parts of
// another take whose receiver has not come to them, nor behind all of a long message.
//
// Messages of a queue take turns, whatever their flows: a message waits until all parts of those
// before it in the queue have begun and no more than kLeadParts of them are under way. So both ends
// have asked for it by the time these have come, and the wire does not stand still for a round trip
// between two messages. A message that waits for its turn has not begun: no deadline runs.
//
// A part costs the thread a few us, whatever its size. Within a host messages go in parts of
// Carrier::kMostBytes: those of 128 KiB cost exchanges there a fifth of their rate. Between hosts
// they go in parts of kSmallPartBytes: each waits until the other end answers its beginning
// (communicator_mpi.cc), and many small ones do so at a time; a training step at 300 Mbit/s took
// 3.5 s, not 4.0. And so do turns, wherever they go: with a lead of whole MiB, messages of a few
// would go side by side. Both ends of a message cut it alike: they have the same names for their
// hosts, and both take turns or neither does.
//
// Channels from kFirstLinkChannel on are the link's. When one rank gives the link up, it stops, and
// tells all others how many parts of each flow it has begun to send and to receive. They do the
// same. Then both ends of a flow make up for what the other has begun, by empty parts and by parts
// that are received and dropped: all that was under way ends, no memory is used any more, and the
// other channels have lost nothing. Only then do the link's messages end, and what they would have
// received is zeros.
//
// Threading: one thread, that of the carrier.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "device/device.h"
#include "parallel/carrier.h"
#include "parallel/link_notice.h"
#include "parallel/rank_waits.h"

namespace pagoda {

// What is sent to a peer, or received from it, on a channel.
struct CarriedMessage {
  bool sends = false;
  int peer = 0;
  int channel = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;  // neither more nor less may come
  Event ready;        // the memory may be used from then on
  // The flow may stand still for so long while this is at its front, ready and expected; 0: for
  // ever. Then everything ends with kStopped.
  double deadline_s = 0;
  Event expected;
  // The queue in which it takes turns, in the order in which messages are added; -1: none. Both
  // ends take turns, or neither does. REQUIRES unless -1: a channel of the link.
  int queue = -1;
  std::function<std::string()> about;  // what an error calls it, "transfer 17 from 0 to 2"
  // Called once, on the carrier's thread, which it must not block.
  struct End {
    Status status;
    int64_t begin_us = 0, end_us = 0;  // of monotonic_us(): when it could begin, when it ended
  };
  std::function<void(const End&)> then;
  const void* owner = nullptr;  // for forget()
};

class CarrierFlows {
 public:
  static constexpr int64_t kWindowBytes = 2 * kMiB;
  static constexpr int64_t kSmallPartBytes = 128 * kKiB;
  // One end may send as several messages what the other takes as one (mpi_link.cc).
  static_assert(Carrier::kMostBytes % kSmallPartBytes == 0);
  static constexpr int kLeadParts = 2;
  static constexpr int kNoticeChannel = 2, kFirstLinkChannel = 3;

  // `waits` outlives it: for whom this rank waits is noted there, and who holds it up is asked of
  // it when a deadline passes.
  CarrierFlows(std::unique_ptr<Carrier> carrier, RankWaits& waits);

  std::string rank_text(int rank) const;  // "rank 2 on node07"; any thread
  void add(CarriedMessage message);
  // Starts and ends what it can. Returns whether anything happened, or what went wrong: then
  // nothing may follow but break_off() and forget().
  Result<bool> advance();
  // Lets the carrier go. Messages that are ready end with `why`, others once they are, when it is
  // called again.
  void break_off(const Status& why);
  // Lets the carrier go, and all messages, which end without a word. Only rank_text() may follow.
  void close();
  // Ends the messages of an owner at once. An error if one is under way: the peer's half of it
  // cannot be taken back.
  Status forget(const void* owner);
  // Something is under way, which ends while advance() is called.
  bool is_under_way() const { return !under_way_.empty() || is_settling(); }

  struct GivenUp {
    Status why;   // ok: the link is not given up
    int by = -1;  // another rank; -1: this one
  };
  void give_up(const Status& why);  // the link; ignored if it was given up before
  GivenUp given_up() const;
  bool is_given_up() const { return giving_up_.has_value(); }
  // The oldest message that is under way with a peer, as errors call it; empty: there is none.
  std::string oldest_with(int peer) const;
  // It is given up, and some of its messages may not have ended yet, since others must know first.
  bool is_settling() const { return giving_up_ && !giving_up_->is_over; }
  // How long this rank waits for the others then; 0: for ever.
  void set_link_deadline(double seconds) { link_deadline_s_ = seconds; }

  Carrier& carrier() { return *carrier_; }  // REQUIRES: it was not let go

 private:
  struct Active {
    CarriedMessage message;
    int64_t begin_us = -1;         // -1: it has not begun
    int64_t not_expected_us = -1;  // at this time; -1: always expected
    int64_t started = 0;           // bytes of it, in parts
    bool all_started = false;
    int under_way = 0;  // parts
    bool is_spoiled = false;  // other bytes came
    bool ended = false;
  };
  struct Flow {
    std::deque<std::shared_ptr<Active>> messages;  // those that have not ended
    size_t next = 0;                 // the first whose parts are not all started
    int64_t under_way = 0;           // weight
    int64_t moved_us = 0;
    int64_t parts = 0;               // begun
    int64_t missing = 0;             // parts; the other end of a link given up has begun more
    std::vector<std::byte> dropped;  // room for one of them
  };
  using Key = std::tuple<int, int, bool>;  // channel, peer, sends: low channels come first
  struct Part {
    Key key;
    std::shared_ptr<Active> active;  // nullptr: it makes up for one of the other end
    int64_t bytes = 0;
  };
  // The front of a flow, since when nothing has come of it that was expected.
  struct Standing {
    const CarriedMessage* message = nullptr;  // nullptr: there is none
    int64_t since_us = 0;
    int64_t late_us() const;  // when its deadline passes
  };
  struct GivingUp {
    Status why;
    int by = -1;
    int64_t begin_us = 0;
    std::vector<bool> heard;  // [rank] its notice has come
    bool is_over = false;
  };

  static bool is_link(const Key& key) { return std::get<0>(key) >= kFirstLinkChannel; }
  void start_parts();
  void start_parts(const Key& key, Flow& flow);
  bool start_part(const Key& key, Flow& flow, const std::shared_ptr<Active>& active);
  bool has_turn(const Active& active);
  int64_t part_bytes(const CarriedMessage& message) const;
  void start(const Key& key, Flow& flow, std::byte* data, int64_t bytes,
             std::shared_ptr<Active> active);
  void make_up(const Key& key, Flow& flow);
  void test();
  void end_part(const Carrier::Ended& ended);
  void check_deadlines();
  void blame(const Standing& late);
  void end_ready(const Status& why, int first_channel);
  static void finish(Active& active, const Status& status);
  static void drop_ended(Flow& flow);
  void fail(Exit code, const std::string& what);
  void fail_at(const CarriedMessage& message, Exit code, const std::string& what);

  void take_notice();
  void hear(int peer, const std::string& text);
  void stop_link(const Status& why, int by);
  LinkNotice notice_for(int peer) const;
  void check_giving_up();
  int unsettled_peer() const;

  std::unique_ptr<Carrier> carrier_;
  RankWaits& waits_;
  const int rank_, size_;
  std::vector<std::string> hosts_;  // [rank]
  std::map<Key, Flow> flows_;
  std::map<int64_t, Part> under_way_;  // [id]
  // [queue] its messages, but for those of its beginning that have ended.
  std::map<int, std::deque<std::shared_ptr<Active>>> queues_;
  int64_t next_id_ = 0;
  std::vector<Carrier::Ended> ended_;
  bool moved_ = false;
  int64_t now_us_ = 0;  // when advance() began
  int64_t next_peek_us_ = 0, next_check_us_ = 0;
  Status error_;
  double link_deadline_s_ = 0;
  std::optional<GivingUp> giving_up_;
};

}  // namespace pagoda
