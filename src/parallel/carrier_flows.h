// The messages that a carrier's thread moves. They go by flows: a flow is what one rank sends
// another on one channel, in the order in which it was added. A message begins when it is at the
// front of its flow and its event has happened. It goes in parts of Carrier::kMostBytes. No more
// than kWindowBytes are under way to a peer at a time, save that each flow may have one part under
// way: so flows never wait for each other, and a message on a flow of its own soon has its turn on
// the wire.
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
  static constexpr int kNoticeChannel = 2, kFirstLinkChannel = 3;

  // `name_of` says "rank 2 on node07". `waits` outlives it: for whom this rank waits is noted
  // there, and who holds it up is asked of it when a deadline passes.
  CarrierFlows(std::unique_ptr<Carrier> carrier, std::function<std::string(int)> name_of,
               RankWaits& waits);

  void add(CarriedMessage message);
  // Starts and ends what it can. Returns whether anything happened, or what went wrong: then
  // nothing may follow but break_off() and forget().
  Result<bool> advance();
  // Lets the carrier go. Messages that are ready end with `why`, others once they are, when it is
  // called again.
  void break_off(const Status& why);
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

  Carrier& carrier() { return *carrier_; }  // REQUIRES: break_off() was not called

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
  const std::function<std::string(int)> name_of_;
  RankWaits& waits_;
  const int rank_, size_;
  std::map<Key, Flow> flows_;
  std::map<int64_t, Part> under_way_;  // [id]
  std::vector<int64_t> sending_;       // [peer] weight under way
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
