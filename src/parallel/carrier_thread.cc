#include "parallel/carrier_thread.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "base/check.h"
#include "base/clock.h"

namespace pagoda {
namespace {

constexpr int64_t kAwakeUs = 50;  // after something happened
constexpr int64_t kShortestSleepUs = 50;
constexpr int64_t kLongestSleepUs = 2000;    // while something is under way
constexpr int64_t kIdleSleepUs = 20000;      // else: the carrier may have work of its own
constexpr int64_t kLeastWeight = 64 * kKiB;  // of a part in the window: bounds their number

// Waits for `done`, but no longer than `seconds`; 0: as long as it takes.
template <typename Done>
bool wait_within(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                 double seconds, const Done& done) {
  if (seconds > 0) return changed.wait_for(lock, std::chrono::duration<double>(seconds), done);
  changed.wait(lock, done);
  return true;
}

}  // namespace

class CarrierThread::Loop {
 public:
  // All that the thread does.
  void run(const Open& open);

  // What other threads call.
  Status wait_until_open(double deadline_s);
  void post(std::vector<Message> messages);
  void wake();
  void fail(const Status& why);
  Status status() const;
  void forget(const void* owner);
  Status leave(double deadline_s);
  bool stop();  // false: the thread is within the carrier, which does not return
  void set_hosts(std::vector<std::string> hosts);
  std::string rank_text(int of) const;

  int rank = 0, size = 1;  // once it is open

 private:
  struct Active {
    Message message;
    int64_t begin_us = -1;  // -1: it has not begun
    int64_t started = 0;    // bytes of it, in parts
    int64_t not_expected_us = -1;  // at this time; -1: always expected
    bool all_started = false;
    int under_way = 0;  // parts
    bool ended = false;
  };
  struct Flow {
    std::deque<std::shared_ptr<Active>> messages;  // those that have not ended
    size_t next = 0;        // the first whose parts are not all started
    int64_t under_way = 0;  // weight
    int64_t moved_us = 0;
  };
  struct Part {
    Flow* flow = nullptr;
    std::shared_ptr<Active> active;
    int64_t bytes = 0;
  };

  bool take_posted();
  void leave_carrier();
  bool start_parts();
  bool start_parts(Flow& flow);
  bool start_part(Flow& flow, const std::shared_ptr<Active>& active);
  bool test();
  bool end_part(const Carrier::Ended& ended);
  void check_deadlines();
  void end_what_is_ready(const Status& why);
  void forget_messages(const void* owner);
  void finish(Active& active, const Status& status);
  static void drop_ended(Flow& flow);
  void fail_at(const Message& message, Exit code, const std::string& what);
  void pause(bool moved);

  // The thread's.
  std::unique_ptr<Carrier> carrier_;
  std::map<std::tuple<int, int, bool>, Flow> flows_;  // [channel, peer, sends]: low channels first
  std::map<int64_t, Part> under_way_;                 // [id]
  std::vector<int64_t> sending_;                      // [peer] weight under way
  int64_t next_id_ = 0;
  int64_t moved_us_ = 0;
  std::vector<Carrier::Ended> ended_;

  mutable std::mutex mutex_;          // guards the rest
  std::condition_variable changed_;   // the thread waits for it
  std::condition_variable answered_;  // others wait for it
  std::vector<Message> posted_;
  bool woken_ = false, leave_ = false, stop_ = false;
  const void* forget_ = nullptr;
  Status status_;
  bool opened_ = false, left_ = false;
  bool within_ = true;  // in a call of the carrier's that may never return
  std::vector<std::string> hosts_;
};

void CarrierThread::Loop::run(const Open& open) {
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns; else sleeps end up to 50 us late
  Result<std::unique_ptr<Carrier>> opened = open();
  {
    std::lock_guard lock(mutex_);
    if (opened.ok()) {
      carrier_ = opened.take();
      rank = carrier_->rank();
      size = carrier_->size();
      sending_.resize(static_cast<size_t>(size));
    }
    status_ = opened.status();
    opened_ = true;
    within_ = false;
  }
  answered_.notify_all();
  if (!carrier_) return;
  while (take_posted()) {
    bool moved = false;
    if (status().ok()) {
      moved = start_parts();
      moved = test() || moved;
      check_deadlines();
    }
    if (const Status failed = status(); !failed.ok()) end_what_is_ready(failed);
    pause(moved);
  }
}

Status CarrierThread::Loop::wait_until_open(double deadline_s) {
  std::unique_lock lock(mutex_);
  if (wait_within(answered_, lock, deadline_s, [this] { return opened_; })) return status_;
  return Status(Exit::kStopped,
                strf("not all processes have joined within %g s; see that each of them runs, and "
                     "start them again", deadline_s));
}

void CarrierThread::Loop::post(std::vector<Message> messages) {
  for (const Message& message : messages) {
    CHECK(message.peer >= 0 && message.peer < size && message.peer != rank && message.bytes >= 0);
    CHECK(message.channel >= 0 && message.channel <= Carrier::kMostChannel);
  }
  {
    std::lock_guard lock(mutex_);
    for (Message& message : messages) posted_.push_back(std::move(message));
    woken_ = true;
  }
  changed_.notify_one();
}

void CarrierThread::Loop::wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_one();
}

void CarrierThread::Loop::fail(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = why;
    woken_ = true;
  }
  changed_.notify_one();
  answered_.notify_all();
}

Status CarrierThread::Loop::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void CarrierThread::Loop::forget(const void* owner) {
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [this] { return forget_ == nullptr; });
  forget_ = owner;
  woken_ = true;
  changed_.notify_one();
  answered_.wait(lock, [this] { return forget_ == nullptr; });
}

Status CarrierThread::Loop::leave(double deadline_s) {
  std::unique_lock lock(mutex_);
  leave_ = woken_ = true;
  changed_.notify_one();
  if (!wait_within(answered_, lock, deadline_s, [this] { return left_ || !status_.ok(); })) {
    status_ = Status(Exit::kStopped, strf("not all processes have left within %g s", deadline_s));
  }
  return status_;
}

bool CarrierThread::Loop::stop() {
  std::lock_guard lock(mutex_);
  stop_ = woken_ = true;
  changed_.notify_one();
  return !within_;
}

void CarrierThread::Loop::set_hosts(std::vector<std::string> hosts) {
  std::lock_guard lock(mutex_);
  hosts_ = std::move(hosts);
}

std::string CarrierThread::Loop::rank_text(int of) const {
  std::lock_guard lock(mutex_);
  const auto i = static_cast<size_t>(of);
  return strf("rank %d", of) + (i < hosts_.size() ? " on " + hosts_[i] : "");
}

// Returns false when the thread is to end.
bool CarrierThread::Loop::take_posted() {
  std::vector<Message> posted;
  const void* forgotten = nullptr;
  bool leaves = false;
  {
    std::lock_guard lock(mutex_);
    if (stop_) return false;
    posted.swap(posted_);
    forgotten = forget_;
    leaves = within_ = leave_ && status_.ok();
  }
  for (Message& message : posted) {
    Flow& flow = flows_[{message.channel, message.peer, message.sends}];
    auto active = std::make_shared<Active>();
    active->message = std::move(message);
    flow.messages.push_back(std::move(active));
  }
  if (forgotten != nullptr) forget_messages(forgotten);
  if (leaves) leave_carrier();
  return !leaves;
}

void CarrierThread::Loop::leave_carrier() {
  carrier_->leave();
  {
    std::lock_guard lock(mutex_);
    within_ = false;
    left_ = true;
  }
  answered_.notify_all();
}

bool CarrierThread::Loop::start_parts() {
  bool any = false;
  for (auto& [key, flow] : flows_) any = start_parts(flow) || any;
  return any;
}

bool CarrierThread::Loop::start_parts(Flow& flow) {
  bool any = false;
  while (flow.next < flow.messages.size() && status().ok()) {
    const std::shared_ptr<Active> active = flow.messages[flow.next];
    if (active->begin_us < 0) {
      if (!active->message.ready.happened()) break;
      active->begin_us = monotonic_us();
    }
    if (!start_part(flow, active)) break;
    any = true;
    if (active->all_started) ++flow.next;
  }
  return any;
}

// Returns false if there is no room in the window.
bool CarrierThread::Loop::start_part(Flow& flow, const std::shared_ptr<Active>& active) {
  const Message& message = active->message;
  const int64_t bytes = std::min(message.bytes - active->started, Carrier::kMostBytes);
  const int64_t weight = std::max(bytes, kLeastWeight);
  int64_t& to_peer = sending_[static_cast<size_t>(message.peer)];
  const int64_t under_way = message.sends ? to_peer : flow.under_way;
  if (flow.under_way > 0 && under_way + weight > kWindowBytes) return false;
  const Status started = carrier_->start({next_id_, message.sends, message.peer, message.channel,
                                          message.data + active->started, bytes});
  if (!started.ok()) {
    fail_at(message, started.code(), started.message());
    return true;
  }
  under_way_[next_id_++] = {&flow, active, bytes};
  ++active->under_way;
  active->started += bytes;
  active->all_started = active->started == message.bytes;
  flow.under_way += weight;
  if (message.sends) to_peer += weight;
  return true;
}

bool CarrierThread::Loop::test() {
  ended_.clear();
  if (const Status tested = carrier_->test(ended_); !tested.ok()) {
    fail(Status(tested.code(), strf("rank %d of %d: ", rank, size) + tested.message() +
                                   "; start all processes again"));
    return false;
  }
  for (const Carrier::Ended& ended : ended_) {
    if (!end_part(ended)) break;
  }
  return !ended_.empty();
}

// Returns false at an error.
bool CarrierThread::Loop::end_part(const Carrier::Ended& ended) {
  const auto found = under_way_.find(ended.id);
  CHECK(found != under_way_.end(), "what was not under way has ended");
  const Part part = std::move(found->second);
  under_way_.erase(found);
  Active& active = *part.active;
  const Message& message = active.message;
  const int64_t weight = std::max(part.bytes, kLeastWeight);
  part.flow->under_way -= weight;
  part.flow->moved_us = monotonic_us();
  if (message.sends) sending_[static_cast<size_t>(message.peer)] -= weight;
  --active.under_way;
  if (ended.bytes != part.bytes) {
    fail_at(message, Exit::kIoError, strf("%lld bytes came, not %lld", (long long)ended.bytes,
                                          (long long)part.bytes));
    return false;
  }
  if (!active.all_started || active.under_way > 0) return true;
  finish(active, Status());
  drop_ended(*part.flow);
  return true;
}

void CarrierThread::Loop::finish(Active& active, const Status& status) {
  Message& message = active.message;
  active.ended = true;
  const int64_t now_us = monotonic_us();
  message.then({status, active.begin_us < 0 ? now_us : active.begin_us, now_us});
  message.then = nullptr;
  message.about = nullptr;
}

void CarrierThread::Loop::fail_at(const Message& message, Exit code, const std::string& what) {
  fail(Status(code, strf("rank %d of %d: ", rank, size) + message.about() + ": " + what +
                        "; start all processes again"));
}

// The oldest message of a flow is the one that it stands still at.
void CarrierThread::Loop::check_deadlines() {
  const int64_t now_us = monotonic_us();
  for (const auto& [key, flow] : flows_) {
    if (flow.messages.empty() || flow.messages.front()->begin_us < 0) continue;
    Active& first = *flow.messages.front();
    const double limit_s = first.message.deadline_s;
    if (!first.message.expected.happened()) first.not_expected_us = now_us;
    const int64_t since_us = std::max({first.begin_us, first.not_expected_us, flow.moved_us});
    if (limit_s == 0 || static_cast<double>(now_us - since_us) < 1e6 * limit_s) continue;
    return fail(Status(Exit::kStopped, rank_text(first.message.peer) +
                                           strf(" has been silent for %g s in ", limit_s) +
                                           first.message.about()));
  }
}

void CarrierThread::Loop::end_what_is_ready(const Status& why) {
  carrier_.reset();
  under_way_.clear();
  for (auto& [key, flow] : flows_) {
    for (const std::shared_ptr<Active>& active : flow.messages) {
      Message& message = active->message;
      if (active->ended || (active->begin_us < 0 && !message.ready.happened())) continue;
      if (!message.sends && message.bytes > 0) {
        std::memset(message.data, 0, static_cast<size_t>(message.bytes));
      }
      finish(*active, why);
    }
    drop_ended(flow);
  }
}

void CarrierThread::Loop::drop_ended(Flow& flow) {
  std::erase_if(flow.messages, [](const auto& active) { return active->ended; });
  flow.next = static_cast<size_t>(
      std::count_if(flow.messages.begin(), flow.messages.end(),
                    [](const auto& active) { return active->all_started; }));
}

// The memory of those that have not begun may be anyone's: it stays as it is.
void CarrierThread::Loop::forget_messages(const void* owner) {
  for (auto& [key, flow] : flows_) {
    for (const std::shared_ptr<Active>& active : flow.messages) {
      if (active->ended || active->message.owner != owner) continue;
      const bool is_under_way = active->under_way > 0 || active->started > 0;
      if (is_under_way) fail_at(active->message, Exit::kStopped, "given up while under way");
      finish(*active, Status(Exit::kStopped, "given up"));
    }
    drop_ended(flow);
  }
  {
    std::lock_guard lock(mutex_);
    forget_ = nullptr;
  }
  answered_.notify_all();
}

void CarrierThread::Loop::pause(bool moved) {
  const int64_t now_us = monotonic_us();
  if (moved) moved_us_ = now_us;
  const bool polls = !under_way_.empty();
  const int64_t idle_us = now_us - moved_us_;
  {
    std::unique_lock lock(mutex_);
    if (!woken_ && !status_.ok()) {
      changed_.wait(lock, [this] { return woken_; });
    } else if (!woken_ && (!polls || idle_us >= kAwakeUs)) {
      const int64_t sleep_us = std::clamp(idle_us / 8, kShortestSleepUs,
                                          polls ? kLongestSleepUs : kIdleSleepUs);
      changed_.wait_for(lock, std::chrono::microseconds(sleep_us), [this] { return woken_; });
    }
    if (woken_) moved_us_ = now_us;
    woken_ = false;
  }
  std::this_thread::yield();
}

Result<std::unique_ptr<CarrierThread>> CarrierThread::start(Open open, double deadline_s) {
  const auto loop = std::make_shared<Loop>();
  auto started = std::unique_ptr<CarrierThread>(new CarrierThread(loop));
  started->thread_ = std::thread([loop, open = std::move(open)] { loop->run(open); });
  RETURN_IF_ERROR(loop->wait_until_open(deadline_s));
  return started;
}

CarrierThread::~CarrierThread() {
  if (!thread_.joinable()) return;
  if (loop_->stop()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

int CarrierThread::rank() const { return loop_->rank; }
int CarrierThread::size() const { return loop_->size; }

void CarrierThread::post(std::vector<Message> messages) {
  std::vector<Event> ready;
  for (const Message& message : messages) ready.push_back(message.ready);
  loop_->post(std::move(messages));
  for (const Event& event : ready) {
    if (!event.happened()) event.when_happened([loop = loop_] { loop->wake(); });
  }
}

void CarrierThread::fail(const Status& why) { loop_->fail(why); }
Status CarrierThread::status() const { return loop_->status(); }
void CarrierThread::forget(const void* owner) { loop_->forget(owner); }
Status CarrierThread::leave(double deadline_s) { return loop_->leave(deadline_s); }
void CarrierThread::set_hosts(std::vector<std::string> hosts) {
  loop_->set_hosts(std::move(hosts));
}
std::string CarrierThread::rank_text(int rank) const { return loop_->rank_text(rank); }

}  // namespace pagoda
