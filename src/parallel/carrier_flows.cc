#include "parallel/carrier_flows.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "base/clock.h"

namespace pagoda {
namespace {

constexpr int64_t kPeekUs = 100;    // between two looks for a notice
constexpr int64_t kCheckUs = 1000;  // between two looks at deadlines
constexpr int64_t kLeastWeight = 64 * kKiB;  // of a part in the window: bounds their number

int64_t weight_of(int64_t bytes) { return std::max(bytes, kLeastWeight); }

}  // namespace

CarrierFlows::CarrierFlows(std::unique_ptr<Carrier> carrier, RankWaits& waits)
    : carrier_(std::move(carrier)),
      waits_(waits),
      rank_(carrier_->rank()),
      size_(carrier_->size()) {
  for (int rank = 0; rank < size_; ++rank) hosts_.push_back(carrier_->host(rank));
}

std::string CarrierFlows::rank_text(int rank) const {
  return strf("rank %d on ", rank) + hosts_[rank];
}

void CarrierFlows::add(CarriedMessage message) {
  const Key key = {message.channel, message.peer, message.sends};
  CHECK(message.queue < 0 || is_link(key));
  auto active = std::make_shared<Active>();
  active->message = std::move(message);
  if (active->message.queue >= 0) queues_[active->message.queue].push_back(active);
  flows_[key].messages.push_back(std::move(active));
}

Result<bool> CarrierFlows::advance() {
  moved_ = false;
  now_us_ = monotonic_us();
  if (error_.ok() && now_us_ >= next_peek_us_) take_notice();
  if (error_.ok()) start_parts();
  if (error_.ok()) test();
  if (error_.ok() && now_us_ >= next_check_us_) check_deadlines();
  if (error_.ok() && giving_up_) check_giving_up();
  if (!error_.ok()) return error_;
  return moved_;
}

void CarrierFlows::start_parts() {
  for (auto& [key, flow] : flows_) {
    if (giving_up_ && is_link(key)) {
      make_up(key, flow);
    } else {
      start_parts(key, flow);
    }
    if (!error_.ok()) return;
  }
}

void CarrierFlows::start_parts(const Key& key, Flow& flow) {
  while (flow.next < flow.messages.size() && error_.ok()) {
    const std::shared_ptr<Active> active = flow.messages[flow.next];
    if (active->begin_us < 0) {
      if (!active->message.ready.happened() || !has_turn(*active)) return;
      active->begin_us = now_us_;
    }
    if (!start_part(key, flow, active)) return;
    if (active->all_started) ++flow.next;
  }
}

// REQUIRES: the message has not begun.
bool CarrierFlows::has_turn(const Active& active) {
  if (active.message.queue < 0) return true;
  std::deque<std::shared_ptr<Active>>& queue = queues_[active.message.queue];
  while (queue.front()->ended) queue.pop_front();
  int under_way = 0;
  for (const std::shared_ptr<Active>& before : queue) {
    if (before.get() == &active) break;
    if (before->ended) continue;
    if (!before->all_started) return false;
    under_way += before->under_way;
  }
  return under_way <= kLeadParts;
}

// A notice is one part, whose size its receiver asks for.
int64_t CarrierFlows::part_bytes(const CarriedMessage& message) const {
  if (message.channel == kNoticeChannel) return Carrier::kMostBytes;
  const bool is_far = hosts_[message.peer] != hosts_[rank_];
  return is_far || message.queue >= 0 ? kSmallPartBytes : Carrier::kMostBytes;
}

// Returns false if there is no room in the window.
bool CarrierFlows::start_part(const Key& key, Flow& flow, const std::shared_ptr<Active>& active) {
  const CarriedMessage& message = active->message;
  const int64_t bytes = std::min(message.bytes - active->started, part_bytes(message));
  if (flow.under_way > 0 && flow.under_way + weight_of(bytes) > kWindowBytes) return false;
  start(key, flow, message.data + active->started, bytes, active);
  ++active->under_way;
  active->started += bytes;
  active->all_started = active->started == message.bytes;
  return true;
}

void CarrierFlows::start(const Key& key, Flow& flow, std::byte* data, int64_t bytes,
                         std::shared_ptr<Active> active) {
  const auto [channel, peer, sends] = key;
  const Status started = carrier_->start({next_id_, sends, peer, channel, data, bytes});
  if (!started.ok()) return fail(started.code(), started.message());
  under_way_[next_id_++] = {key, std::move(active), bytes};
  flow.under_way += weight_of(bytes);
  ++flow.parts;
  moved_ = true;
}

// Gives the other end of a link that was given up what it has begun to wait for, or takes what it
// has begun to send.
void CarrierFlows::make_up(const Key& key, Flow& flow) {
  const bool sends = std::get<2>(key);
  while (flow.missing > 0 && (sends || flow.under_way == 0) && error_.ok()) {
    --flow.missing;
    if (!sends) flow.dropped.resize(Carrier::kMostBytes);
    start(key, flow, flow.dropped.data(), std::ssize(flow.dropped), nullptr);
  }
}

void CarrierFlows::test() {
  ended_.clear();
  const Status tested = carrier_->test(ended_);
  if (!tested.ok()) return fail(tested.code(), tested.message());
  for (const Carrier::Ended& ended : ended_) {
    moved_ = true;
    end_part(ended);
    if (!error_.ok()) return;
  }
}

void CarrierFlows::end_part(const Carrier::Ended& ended) {
  const auto found = under_way_.find(ended.id);
  CHECK(found != under_way_.end(), "what was not under way has ended");
  const Part part = std::move(found->second);
  under_way_.erase(found);
  Flow& flow = flows_[part.key];
  flow.under_way -= weight_of(part.bytes);
  flow.moved_us = now_us_;
  if (!part.active) return;
  Active& active = *part.active;
  --active.under_way;
  if (ended.bytes != part.bytes) {
    active.is_spoiled = true;
    if (!giving_up_ || !is_link(part.key)) {
      return fail_at(active.message, Exit::kIoError,
                     strf("%lld bytes came, not %lld", (long long)ended.bytes,
                          (long long)part.bytes));
    }
  }
  if (!active.all_started || active.under_way > 0 || active.is_spoiled) return;
  finish(active, Status());
  for (; !flow.messages.empty() && flow.messages.front()->ended; --flow.next) {
    flow.messages.pop_front();
  }
}

void CarrierFlows::finish(Active& active, const Status& status) {
  CarriedMessage& message = active.message;
  active.ended = true;
  const int64_t now_us = monotonic_us();
  message.then({status, active.begin_us < 0 ? now_us : active.begin_us, now_us});
  message.then = nullptr;
  message.about = nullptr;
}

void CarrierFlows::drop_ended(Flow& flow) {
  std::erase_if(flow.messages, [](const auto& active) { return active->ended; });
  flow.next = static_cast<size_t>(
      std::count_if(flow.messages.begin(), flow.messages.end(),
                    [](const auto& active) { return active->all_started; }));
}

void CarrierFlows::fail(Exit code, const std::string& what) {
  error_ = Status(code, strf("rank %d of %d: ", rank_, size_) + what +
                            "; start all processes again");
}

void CarrierFlows::fail_at(const CarriedMessage& message, Exit code, const std::string& what) {
  fail(code, message.about() + ": " + what);
}

int64_t CarrierFlows::Standing::late_us() const {
  return message->deadline_s > 0 ? since_us + static_cast<int64_t>(1e6 * message->deadline_s)
                                 : std::numeric_limits<int64_t>::max();
}

// The oldest message of a flow is the one that it stands still at. Of several flows the one that
// has done so for longest tells.
void CarrierFlows::check_deadlines() {
  next_check_us_ = now_us_ + kCheckUs;
  Standing oldest{nullptr, now_us_}, late{nullptr, now_us_};
  for (const auto& [key, flow] : flows_) {
    if (flow.messages.empty() || flow.messages.front()->begin_us < 0) continue;
    if (giving_up_ && is_link(key)) continue;
    Active& first = *flow.messages.front();
    if (!first.message.expected.happened()) first.not_expected_us = now_us_;
    const Standing stands{&first.message,
                          std::max({first.begin_us, first.not_expected_us, flow.moved_us})};
    if (stands.since_us < oldest.since_us) oldest = stands;
    if (stands.since_us < late.since_us && stands.late_us() <= now_us_) late = stands;
  }
  const int waits_for = oldest.message != nullptr ? oldest.message->peer : rank_;
  waits_.note(rank_, {waits_for, now_us_ - oldest.since_us, now_us_});
  if (late.message != nullptr) blame(late);
}

// The message's peer is silent; who is named may be another, for whom it waits.
void CarrierFlows::blame(const Standing& late) {
  const CarriedMessage& message = *late.message;
  const auto chain = waits_.chain(rank_, message.peer, late.late_us(), now_us_);
  if (!chain) return;
  const int culprit = chain->culprit();
  const std::string silence =
      strf(" has been silent for %g s in ", message.deadline_s) + message.about();
  std::string what = rank_text(message.peer);
  if (culprit != message.peer) {
    what = rank_text(culprit) + " goes no further: " + what + ", which waits for it,";
  }
  what += silence;
  if (chain->is_circle()) {
    what += "; ranks wait in a circle:";
    for (size_t i = 1; i < chain->ranks.size(); ++i) {
      what += strf("%s %d for %d", i == 1 ? "" : ",", chain->ranks[i - 1], chain->ranks[i]);
    }
  }
  error_ = Status(Exit::kStopped, what);
  waits_.accuse(culprit);
}

std::string CarrierFlows::oldest_with(int peer) const {
  const Active* oldest = nullptr;
  for (const auto& [key, flow] : flows_) {
    if (std::get<1>(key) != peer || flow.messages.empty()) continue;
    const Active& first = *flow.messages.front();
    if (first.begin_us < 0 || first.ended) continue;
    if (oldest == nullptr || first.begin_us < oldest->begin_us) oldest = &first;
  }
  return oldest != nullptr ? oldest->message.about() : "";
}

void CarrierFlows::break_off(const Status& why) {
  carrier_.reset();
  under_way_.clear();
  end_ready(why, 0);
}

void CarrierFlows::close() {
  carrier_.reset();
  under_way_.clear();
  queues_.clear();
  flows_.clear();
}

void CarrierFlows::end_ready(const Status& why, int first_channel) {
  queues_.clear();  // neither after an error nor on a link that was given up does anything begin
  for (auto& [key, flow] : flows_) {
    if (std::get<0>(key) < first_channel) continue;
    for (const std::shared_ptr<Active>& active : flow.messages) {
      CarriedMessage& message = active->message;
      if (active->ended || (active->begin_us < 0 && !message.ready.happened())) continue;
      if (!message.sends && message.bytes > 0) {
        std::memset(message.data, 0, static_cast<size_t>(message.bytes));
      }
      finish(*active, why);
    }
    drop_ended(flow);
  }
}

// The memory of those that have not begun may be anyone's: it stays as it is.
Status CarrierFlows::forget(const void* owner) {
  for (auto& [key, flow] : flows_) {
    drop_ended(flow);
    for (const std::shared_ptr<Active>& active : flow.messages) {
      if (active->message.owner != owner) continue;
      const bool is_under_way = active->under_way > 0 || active->started > 0;
      if (is_under_way) fail_at(active->message, Exit::kStopped, "given up while under way");
      finish(*active, Status(Exit::kStopped, "given up"));
    }
    drop_ended(flow);
  }
  for (auto& [queue, messages] : queues_) {
    std::erase_if(messages, [](const auto& active) { return active->ended; });
  }
  return error_;
}

// ---- giving up the link ----

CarrierFlows::GivenUp CarrierFlows::given_up() const {
  return giving_up_ ? GivenUp{giving_up_->why, giving_up_->by} : GivenUp{};
}

void CarrierFlows::give_up(const Status& why) {
  CHECK(!why.ok());
  if (!giving_up_) stop_link(why, -1);
}

LinkNotice CarrierFlows::notice_for(int to) const {
  LinkNotice notice;
  notice.why = giving_up_->why;
  notice.by = giving_up_->by < 0 ? rank_ : giving_up_->by;
  for (const auto& [key, flow] : flows_) {
    const auto [channel, peer, sends] = key;
    if (!is_link(key) || peer != to || flow.parts == 0) continue;
    notice.flows.push_back({channel, sends, flow.parts});
  }
  return notice;
}

void CarrierFlows::stop_link(const Status& why, int by) {
  giving_up_ =
      GivingUp{why, by, monotonic_us(), std::vector<bool>(static_cast<size_t>(size_)), false};
  giving_up_->heard[static_cast<size_t>(rank_)] = true;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const auto text = std::make_shared<std::string>(notice_for(peer).to_text());
    CarriedMessage message;
    message.sends = true;
    message.peer = peer;
    message.channel = kNoticeChannel;
    message.data = reinterpret_cast<std::byte*>(text->data());
    message.bytes = std::ssize(*text);
    message.about = [] { return std::string("giving up"); };
    message.then = [text](const CarriedMessage::End&) {};
    add(std::move(message));
  }
}

void CarrierFlows::take_notice() {
  next_peek_us_ = now_us_ + kPeekUs;
  const Result<Carrier::Unasked> found = carrier_->peek(kNoticeChannel);
  if (!found.ok()) return fail(found.status().code(), found.status().message());
  const auto [peer, bytes] = found.value();
  if (peer < 0) return;
  if (bytes > Carrier::kMostBytes) return fail(Exit::kIoError, "a notice is too long");
  const auto text = std::make_shared<std::string>(static_cast<size_t>(bytes), '\0');
  CarriedMessage message;
  message.peer = peer;
  message.channel = kNoticeChannel;
  message.data = reinterpret_cast<std::byte*>(text->data());
  message.bytes = bytes;
  message.about = [] { return std::string("giving up"); };
  message.then = [this, text, peer = peer](const CarriedMessage::End& end) {
    if (end.status.ok()) hear(peer, *text);
  };
  add(std::move(message));
}

void CarrierFlows::hear(int peer, const std::string& text) {
  const std::optional<LinkNotice> notice = LinkNotice::parse(text, size_);
  if (!notice) {
    return fail(Exit::kIoError, rank_text(peer) +
                                    " sent what is no notice; see that all ranks run the same "
                                    "program");
  }
  if (!giving_up_) stop_link(notice->why, notice->by);
  if (giving_up_->heard[static_cast<size_t>(peer)]) return;
  giving_up_->heard[static_cast<size_t>(peer)] = true;
  for (const LinkNotice::Flow& theirs : notice->flows) {
    if (theirs.channel < kFirstLinkChannel) continue;
    Flow& flow = flows_[{theirs.channel, peer, !theirs.sends}];
    flow.missing = theirs.parts - flow.parts;
  }
}

// A rank that this one waits for; -1: none.
int CarrierFlows::unsettled_peer() const {
  for (int peer = 0; peer < size_; ++peer) {
    if (!giving_up_->heard[static_cast<size_t>(peer)]) return peer;
  }
  for (const auto& [key, flow] : flows_) {
    const auto [channel, peer, sends] = key;
    if (is_link(key) && (flow.under_way > 0 || flow.missing > 0)) return peer;
  }
  return -1;
}

void CarrierFlows::check_giving_up() {
  const int waits_for = giving_up_->is_over ? -1 : unsettled_peer();
  if (waits_for < 0) {
    giving_up_->is_over = true;
    return end_ready(giving_up_->why, kFirstLinkChannel);
  }
  const double waited_s = 1e-6 * static_cast<double>(now_us_ - giving_up_->begin_us);
  if (link_deadline_s_ == 0 || waited_s < link_deadline_s_) return;
  error_ =
      Status(Exit::kStopped, rank_text(waits_for) +
                                 strf(" has been silent for %g s after this: ", link_deadline_s_) +
                                 giving_up_->why.message());
}

}  // namespace pagoda
