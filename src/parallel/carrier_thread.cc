#include "parallel/carrier_thread.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/clock.h"

namespace pagoda {
namespace {

constexpr int64_t kAwakeUs = 100;  // after something happened
constexpr int64_t kShortestSleepUs = 50;
constexpr int64_t kLongestSleepUs = 2000;  // while something is under way
constexpr int64_t kIdleSleepUs = 20000;    // else: the carrier may have work of its own
constexpr auto kLostWait = std::chrono::seconds(1);  // for what a lost rank is waited for in

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
  void post(std::vector<CarriedMessage> messages);
  void wake();
  void fail(const Status& why);
  void lose(int peer, const Status& why);
  Status status() const;
  void when_failed(std::function<void(const Status&)> tell);
  void give_up_link(const Status& why);
  CarrierFlows::GivenUp link_given_up() const;
  void set_link_deadline(double seconds);
  void forget(const void* owner);
  Status call(std::function<Status(Carrier&)> work);
  Status leave(double deadline_s);
  bool stop();  // false: the thread is within the carrier, which does not return
  std::string rank_text(int of) const { return flows_->rank_text(of); }

  int rank = 0, size = 1;  // once it is open
  RankWaits waits;

 private:
  bool take_posted();
  void fail_waiting(int peer, const Status& why);
  void forget_messages(const void* owner);
  void call_carrier(const std::function<Status(Carrier&)>& work);
  void leave_carrier();
  bool advance();
  void pause(bool moved);

  // The thread's, but for what any thread may ask of flows_.
  std::optional<CarrierFlows> flows_;
  int64_t moved_us_ = 0;
  bool was_given_up_ = false, forget_waits_ = false;

  // These change under the lock; the thread looks at them without it.
  std::atomic<bool> woken_{true};   // something was posted or asked for
  std::atomic<bool> failed_{false};  // status_ is an error

  mutable std::mutex mutex_;          // guards the rest
  std::condition_variable changed_;   // the thread waits for it
  std::condition_variable answered_;  // others wait for it
  std::vector<CarriedMessage> posted_;
  std::function<void(const Status&)> tell_;
  bool leave_ = false, stop_ = false;
  const void* forget_ = nullptr;
  std::function<Status(Carrier&)> work_;
  Status status_, give_up_;
  std::optional<std::pair<int, Status>> lost_;  // peer, why
  CarrierFlows::GivenUp given_up_;
  double link_deadline_s_ = 0;
  bool opened_ = false, left_ = false;
  bool within_ = true;  // in a call of the carrier's that may never return
};

void CarrierThread::Loop::run(const Open& open) {
  ::prctl(PR_SET_TIMERSLACK, 1000);  // ns; else sleeps end up to 50 us late
  Result<std::unique_ptr<Carrier>> opened = open();
  {
    std::lock_guard lock(mutex_);
    if (opened.ok()) {
      rank = opened.value()->rank();
      size = opened.value()->size();
      flows_.emplace(opened.take(), waits);
    }
    status_ = opened.status();
    opened_ = true;
    failed_ = !status_.ok();
    within_ = false;
  }
  answered_.notify_all();
  if (!flows_) return;
  for (;;) {
    if (woken_.exchange(false) && !take_posted()) break;
    const bool moved = !failed_ && advance();
    if (failed_) flows_->break_off(status());
    pause(moved);
  }
  flows_->close();  // here: who wakes the loop just now may hold it for longer
}

// Returns whether anything happened.
bool CarrierThread::Loop::advance() {
  const Result<bool> moved = flows_->advance();
  if (!moved.ok()) fail(moved.status());
  if (flows_->is_given_up() && !was_given_up_) {
    was_given_up_ = true;
    std::lock_guard lock(mutex_);
    if (given_up_.why.ok()) given_up_ = flows_->given_up();
  }
  if (forget_waits_ && !flows_->is_settling()) woken_ = true;
  return moved.ok() && moved.value();
}

Status CarrierThread::Loop::wait_until_open(double deadline_s) {
  std::unique_lock lock(mutex_);
  if (wait_within(answered_, lock, deadline_s, [this] { return opened_; })) return status_;
  return Status(Exit::kStopped,
                strf("not all processes have joined within %g s; see that each of them runs, and "
                     "start them again", deadline_s));
}

void CarrierThread::Loop::post(std::vector<CarriedMessage> messages) {
  for (const CarriedMessage& message : messages) {
    CHECK(message.peer >= 0 && message.peer < size && message.peer != rank && message.bytes >= 0);
    CHECK(message.channel >= 0 && message.channel <= Carrier::kMostChannel);
  }
  {
    std::lock_guard lock(mutex_);
    for (CarriedMessage& message : messages) posted_.push_back(std::move(message));
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
  std::function<void(const Status&)> tell;
  {
    std::lock_guard lock(mutex_);
    if (status_.ok()) {
      status_ = why;
      tell = tell_;
    }
    failed_ = woken_ = true;
  }
  changed_.notify_one();
  answered_.notify_all();
  if (tell) tell(why);
}

// The carrier's thread knows the messages; one that does not come back is not waited for.
void CarrierThread::Loop::lose(int peer, const Status& why) {
  {
    std::unique_lock lock(mutex_);
    if (!lost_) lost_ = {peer, why};
    woken_ = true;
    changed_.notify_one();
    answered_.wait_for(lock, kLostWait, [this] { return !status_.ok(); });
  }
  fail(why);
}

void CarrierThread::Loop::fail_waiting(int peer, const Status& why) {
  const std::string about = flows_->oldest_with(peer);
  fail(about.empty()
           ? why
           : Status(why.code(), why.message() + strf("; rank %d waited for it in ", rank) + about));
}

void CarrierThread::Loop::when_failed(std::function<void(const Status&)> tell) {
  {
    std::lock_guard lock(mutex_);
    if (status_.ok()) {
      tell_ = std::move(tell);
      return;
    }
  }
  tell(status());  // the first error is the last
}

Status CarrierThread::Loop::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

void CarrierThread::Loop::give_up_link(const Status& why) {
  {
    std::lock_guard lock(mutex_);
    if (!given_up_.why.ok()) return;
    given_up_ = {why, -1};
    give_up_ = why;
    woken_ = true;
  }
  changed_.notify_one();
}

CarrierFlows::GivenUp CarrierThread::Loop::link_given_up() const {
  std::lock_guard lock(mutex_);
  return given_up_;
}

void CarrierThread::Loop::set_link_deadline(double seconds) {
  std::lock_guard lock(mutex_);
  link_deadline_s_ = seconds;
}

void CarrierThread::Loop::forget(const void* owner) {
  std::unique_lock lock(mutex_);
  answered_.wait(lock, [this] { return forget_ == nullptr; });
  forget_ = owner;
  woken_ = true;
  changed_.notify_one();
  answered_.wait(lock, [this] { return forget_ == nullptr; });
}

Status CarrierThread::Loop::call(std::function<Status(Carrier&)> work) {
  std::unique_lock lock(mutex_);
  work_ = std::move(work);
  woken_ = true;
  changed_.notify_one();
  answered_.wait(lock, [this] { return !work_; });
  return status_;
}

Status CarrierThread::Loop::leave(double deadline_s) {
  std::unique_lock lock(mutex_);
  leave_ = woken_ = true;
  changed_.notify_one();
  if (!wait_within(answered_, lock, deadline_s, [this] { return left_ || !status_.ok(); })) {
    status_ = Status(Exit::kStopped, strf("not all processes have left within %g s", deadline_s));
    failed_ = true;
  }
  return status_;
}

bool CarrierThread::Loop::stop() {
  std::lock_guard lock(mutex_);
  stop_ = woken_ = true;
  changed_.notify_one();
  return !within_;
}

// Returns false when the thread is to end.
bool CarrierThread::Loop::take_posted() {
  std::vector<CarriedMessage> posted;
  Status give_up;
  std::optional<std::pair<int, Status>> lost;
  const void* forgotten = nullptr;
  std::function<Status(Carrier&)> work;
  bool leaves = false;
  {
    std::lock_guard lock(mutex_);
    if (stop_) return false;
    posted.swap(posted_);
    std::swap(give_up, give_up_);
    lost = std::exchange(lost_, std::nullopt);
    forgotten = forget_;
    work = work_;
    flows_->set_link_deadline(link_deadline_s_);
    leaves = within_ = leave_ && status_.ok();
  }
  for (CarriedMessage& message : posted) flows_->add(std::move(message));
  if (lost) fail_waiting(lost->first, lost->second);
  if (!give_up.ok()) flows_->give_up(give_up);
  if (forgotten != nullptr) forget_messages(forgotten);
  if (work) call_carrier(work);
  if (leaves) leave_carrier();
  return !leaves;
}

// Once nothing of a link that was given up is under way.
void CarrierThread::Loop::forget_messages(const void* owner) {
  forget_waits_ = !failed_ && flows_->is_settling();
  if (forget_waits_) return;
  if (const Status forgotten = flows_->forget(owner); !forgotten.ok()) fail(forgotten);
  {
    std::lock_guard lock(mutex_);
    forget_ = nullptr;
  }
  answered_.notify_all();
}

void CarrierThread::Loop::call_carrier(const std::function<Status(Carrier&)>& work) {
  if (!failed_) {
    CHECK(!flows_->is_under_way());
    if (const Status called = work(flows_->carrier()); !called.ok()) fail(called);
  }
  {
    std::lock_guard lock(mutex_);
    work_ = nullptr;
  }
  answered_.notify_all();
}

void CarrierThread::Loop::leave_carrier() {
  flows_->carrier().leave();
  {
    std::lock_guard lock(mutex_);
    within_ = false;
    left_ = true;
  }
  answered_.notify_all();
}

// It does not yield: others have the other cores, and this one sleeps soon.
void CarrierThread::Loop::pause(bool moved) {
  const int64_t now_us = monotonic_us();
  if (moved) moved_us_ = now_us;
  const bool polls = flows_->is_under_way();
  const int64_t idle_us = now_us - moved_us_;
  if (moved || woken_ || (!failed_ && polls && idle_us < kAwakeUs)) return;
  const int64_t sleep_us = std::clamp(idle_us / 8, kShortestSleepUs,
                                      polls ? kLongestSleepUs : kIdleSleepUs);
  std::unique_lock lock(mutex_);
  const auto is_woken = [this] { return woken_.load(); };
  if (failed_) {
    changed_.wait(lock, is_woken);
  } else if (changed_.wait_for(lock, std::chrono::microseconds(sleep_us), is_woken)) {
    moved_us_ = monotonic_us();
  }
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
RankWaits& CarrierThread::waits() { return loop_->waits; }

void CarrierThread::post(std::vector<CarriedMessage> messages) {
  std::vector<Event> ready;
  for (const CarriedMessage& message : messages) {
    if (!message.ready.happened()) ready.push_back(message.ready);
  }
  loop_->post(std::move(messages));
  // Also where it has happened since: the loop may have looked before.
  for (const Event& event : ready) {
    // The loop has the message, which has the event, which may never happen.
    event.when_happened([waker = std::weak_ptr(loop_)] {
      if (const auto loop = waker.lock()) loop->wake();
    });
  }
}

void CarrierThread::fail(const Status& why) { loop_->fail(why); }
void CarrierThread::lose(int peer, const Status& why) { loop_->lose(peer, why); }
Status CarrierThread::status() const { return loop_->status(); }
void CarrierThread::when_failed(std::function<void(const Status&)> tell) {
  loop_->when_failed(std::move(tell));
}
void CarrierThread::give_up_link(const Status& why) { loop_->give_up_link(why); }
CarrierFlows::GivenUp CarrierThread::link_given_up() const { return loop_->link_given_up(); }
void CarrierThread::set_link_deadline(double seconds) { loop_->set_link_deadline(seconds); }
void CarrierThread::forget(const void* owner) { loop_->forget(owner); }
Status CarrierThread::call(std::function<Status(Carrier&)> work) {
  return loop_->call(std::move(work));
}
Status CarrierThread::leave(double deadline_s) { return loop_->leave(deadline_s); }
std::string CarrierThread::rank_text(int rank) const { return loop_->rank_text(rank); }

}  // namespace pagoda
