#include "tests/testing/ranks/rank_threads.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "base/check.h"

namespace pagoda {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

// What all ranks share. A thread of its own carries what links send, so that no stream does.
class RankThreads::Hub {
 public:
  Hub(int ranks, std::vector<int> endpoint_rank, const RankWires& wires)
      : ranks_(ranks),
        endpoint_rank_(std::move(endpoint_rank)),
        wires_(wires),
        random_(wires.seed),
        given_up_(static_cast<size_t>(ranks)),
        thread_([this] { carry(); }) {}
  ~Hub() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  int ranks() const { return ranks_; }

  // ---- links ----

  struct Ended {
    Status status;
    int by = -1;  // the rank that gave up
  };
  void send(const Transfer& transfer, const std::byte* source, Event sent) {
    std::vector<std::byte> bytes(source, source + transfer.bytes);
    sent.signal();
    std::lock_guard lock(mutex_);
    Half& half = halves_[key(transfer)];
    half.bytes = std::move(bytes);
    half.sent = true;
    half.fails = wires_.fails == key(transfer);
    sent_.insert(key(transfer));
    half.due = Clock::now() + delay();
    changed_.notify_all();
  }
  void receive(const Transfer& transfer, std::byte* target, Event done) {
    std::lock_guard lock(mutex_);
    Half& half = halves_[key(transfer)];
    half.target = target;
    half.expected = transfer.bytes;
    half.rows = transfer.rows;
    half.turns = transfer.turns;
    half.about = transfer.about;
    half.done = done;
    half.wanted = true;
    changed_.notify_all();
  }
  void count_lane(const Transfer& transfer, const Stream& lane) {
    if (transfer.rows == 0) return;
    std::lock_guard lock(mutex_);
    std::set<const Stream*>& lanes = lanes_[transfer.to];
    lanes.insert(&lane);
    arrived_.lanes = std::max<int64_t>(arrived_.lanes, std::ssize(lanes));
  }
  void give_up(int rank, const Status& why, int by) {
    std::lock_guard lock(mutex_);
    for (int r = 0; r < ranks_; ++r) {
      std::optional<Ended>& ended = given_up_[static_cast<size_t>(r)];
      if (!ended) ended = Ended{why, r == rank ? -1 : by};
    }
    changed_.notify_all();
  }
  std::optional<Ended> ended(int rank) const {
    std::lock_guard lock(mutex_);
    return given_up_[static_cast<size_t>(rank)];
  }
  std::vector<RankTransfer> sent() const {
    std::lock_guard lock(mutex_);
    return {sent_.begin(), sent_.end()};
  }
  Arrived arrived() const {
    std::lock_guard lock(mutex_);
    return arrived_;
  }

  // ---- communicators ----

  void post(int from, int to, std::string bytes) {
    std::lock_guard lock(mutex_);
    mail_[{from, to}].push_back(std::move(bytes));
    changed_.notify_all();
  }
  Status post_piece(int from, int to, std::string bytes) {
    {
      std::lock_guard lock(mutex_);
      const int64_t number = pieces_++;
      if (number == wires_.fails_piece) {
        broken_ = Status(Exit::kStopped, strf("piece %lld did not arrive", (long long)number));
        changed_.notify_all();
      }
      if (!broken_.ok()) return broken_;
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(wires_.piece_s));
    post(from, to, std::move(bytes));
    return Status();
  }
  // What does not come in `deadline_s`, if that is not 0, breaks all communicators.
  Result<std::string> take(int from, int to, double deadline_s) {
    std::unique_lock lock(mutex_);
    std::deque<std::string>& box = mail_[{from, to}];
    const auto ended = [&] { return !box.empty() || !broken_.ok(); };
    if (deadline_s == 0) {
      changed_.wait(lock, ended);
    } else if (!changed_.wait_for(lock, std::chrono::duration<double>(deadline_s), ended)) {
      broken_ = Status(Exit::kStopped, strf("rank %d is silent", from));
      changed_.notify_all();
    }
    RETURN_IF_ERROR(broken_);
    std::string bytes = std::move(box.front());
    box.pop_front();
    return bytes;
  }
  bool broken() const {
    std::lock_guard lock(mutex_);
    return !broken_.ok();
  }
  int64_t pieces() const {
    std::lock_guard lock(mutex_);
    return pieces_;
  }

 private:
  struct Half {
    bool sent = false, wanted = false, fails = false;
    std::vector<std::byte> bytes;
    Clock::time_point due;
    std::byte* target = nullptr;
    int64_t expected = 0, rows = 0;
    int turns = 0;
    std::string about;
    Event done;
  };

  static RankTransfer key(const Transfer& t) { return {t.from, t.to, t.number}; }
  Clock::duration delay() {
    if (wires_.seed == 0) return {};
    std::uniform_real_distribution<double> draw(0, wires_.most_delay_s);
    const std::chrono::duration<double> seconds(draw(random_));
    return std::chrono::duration_cast<Clock::duration>(seconds);
  }

  // The place of a device among those of its rank.
  int place(int device) const {
    const auto first =
        std::ranges::find(endpoint_rank_, endpoint_rank_[static_cast<size_t>(device)]);
    return device - static_cast<int>(first - endpoint_rank_.begin());
  }

  // Ends a transfer that is wanted: its bytes, or zeros and an error of the receiving rank.
  void deliver(const RankTransfer& of, Half& half) {
    const auto rank = static_cast<size_t>(endpoint_rank_[static_cast<size_t>(std::get<1>(of))]);
    const bool comes = half.sent && !half.fails && !given_up_[rank];
    if (comes) {
      CHECK(std::ssize(half.bytes) == half.expected, "a transfer is not received as it was sent");
      std::memcpy(half.target, half.bytes.data(), half.bytes.size());
      arrived_.rows += half.rows;
      arrived_.in_turn += half.rows > 0 && half.turns > 0;
      arrived_.out_of_turn += half.rows > 0 && half.turns == 0;
      arrived_.to_other_places += half.rows > 0 && place(std::get<0>(of)) != place(std::get<1>(of));
      (half.rows == 0 ? arrived_.other_bytes : arrived_.row_bytes) += half.expected;
      // "receive page L3 E5" or "receive L3 E5"
      const bool of_expert = half.about.find(" E") != std::string::npos;
      const bool weights = half.about.starts_with("receive page");
      if (of_expert) (weights ? arrived_.guest_weights : arrived_.guest_sums) += half.expected;
    } else {
      std::memset(half.target, 0, static_cast<size_t>(half.expected));
      if (!given_up_[rank]) {
        given_up_[rank] = Ended{Status(Exit::kStopped, half.about + " did not arrive"), -1};
      }
    }
    half.done.signal();
  }
  void carry() {
    std::unique_lock lock(mutex_);
    for (;;) {
      auto next = Clock::time_point::max();
      for (auto it = halves_.begin(); it != halves_.end();) {
        Half& half = it->second;
        const int to = endpoint_rank_[static_cast<size_t>(std::get<1>(it->first))];
        const bool ended = given_up_[static_cast<size_t>(to)].has_value();
        if (half.wanted && (ended || (half.sent && half.due <= Clock::now()))) {
          deliver(it->first, half);
          it = halves_.erase(it);
          continue;
        }
        if (half.wanted && half.sent) next = std::min(next, half.due);
        ++it;
      }
      if (stop_) return;
      if (next == Clock::time_point::max()) {
        changed_.wait(lock);
      } else {
        changed_.wait_until(lock, next);
      }
    }
  }

  const int ranks_;
  const std::vector<int> endpoint_rank_;
  const RankWires wires_;
  mutable std::mutex mutex_;  // guards the rest
  std::condition_variable changed_;
  std::mt19937_64 random_;
  std::map<RankTransfer, Half> halves_;           // sent or wanted, and not over
  std::map<int, std::set<const Stream*>> lanes_;  // [endpoint] by which rows come
  std::vector<std::optional<Ended>> given_up_;    // [rank]
  std::set<RankTransfer> sent_;
  Arrived arrived_;
  std::map<std::pair<int, int>, std::deque<std::string>> mail_;  // [from, to]
  int64_t pieces_ = 0;
  Status broken_;
  bool stop_ = false;
  std::thread thread_;  // the last: it uses all others
};

namespace {

template <typename Hub>
class ThreadLink final : public Link {
 public:
  ThreadLink(Hub* hub, int rank) : hub_(*hub), rank_(rank) {}
  Event send(const Transfer& transfer, const std::byte* source, Stream& lane) override {
    Event sent = Event::make();
    lane.record().when_happened(
        [this, transfer, source, sent] { hub_.send(transfer, source, sent); });
    return sent;
  }
  void receive(const Transfer& transfer, std::byte* target, Stream& lane,
               const TraceLabel&) override {
    Event done = Event::make();
    hub_.count_lane(transfer, lane);
    lane.record().when_happened(
        [this, transfer, target, done] { hub_.receive(transfer, target, done); });
    lane.wait(done);
    counts_[{transfer.from, transfer.to}].add(transfer);
  }
  Status status() const override {
    const auto ended = hub_.ended(rank_);
    return ended ? ended->status : Status();
  }
  void give_up(const Status& why) override { hub_.give_up(rank_, why, rank_); }
  int given_up_by() const override {
    const auto ended = hub_.ended(rank_);
    return ended ? ended->by : -1;
  }
  const Counts& counts() const override { return counts_; }

 private:
  Hub& hub_;
  int rank_;
  Counts counts_;
};

template <typename Hub>
class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(Hub* hub, int rank) : hub_(*hub), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return hub_.ranks(); }
  bool broken() const override { return hub_.broken(); }
  void set_deadline(double seconds) override { deadline_s_ = seconds; }
  Status send(const OutgoingPiece& piece) override {
    return hub_.post_piece(
        rank_, piece.to,
        {reinterpret_cast<const char*>(piece.data), static_cast<size_t>(piece.bytes)});
  }
  Status receive(const IncomingPiece& piece) override {
    ASSIGN_OR_RETURN(const std::string bytes, hub_.take(piece.from, rank_, deadline_s_));
    CHECK(std::ssize(bytes) == piece.bytes);
    std::memcpy(piece.data, bytes.data(), bytes.size());
    return Status();
  }
  Status exchange(std::span<const OutgoingPiece> out, std::span<const IncomingPiece> in) override {
    for (const OutgoingPiece& piece : out) RETURN_IF_ERROR(send(piece));
    for (const IncomingPiece& piece : in) RETURN_IF_ERROR(receive(piece));
    return Status();
  }
  Status barrier() override { return gather("").status(); }
  Result<std::vector<std::string>> gather(const std::string& text) override {
    CHECK(std::ssize(text) <= kMostGathered / size());
    for (int r = 0; r < size(); ++r) {
      if (r != rank_) hub_.post(rank_, r, text);
    }
    std::vector<std::string> texts;
    for (int r = 0; r < size(); ++r) {
      Result<std::string> of_rank =
          r == rank_ ? Result<std::string>(text) : hub_.take(r, rank_, deadline_s_);
      RETURN_IF_ERROR(of_rank.status());
      texts.push_back(of_rank.take());
    }
    return texts;
  }

 private:
  Hub& hub_;
  int rank_;
  double deadline_s_ = 0;
};

}  // namespace

RankThreads::RankThreads(int ranks, std::vector<int> endpoint_rank, const RankWires& wires)
    : hub_(std::make_unique<Hub>(ranks, std::move(endpoint_rank), wires)) {}

RankThreads::~RankThreads() = default;

void RankThreads::run(const std::function<void(RankGroup&)>& program) {
  std::vector<std::thread> threads;
  for (int r = 0; r < hub_->ranks(); ++r) {
    threads.emplace_back([this, r, &program] {
      ThreadLink<Hub> link(hub_.get(), r);
      ThreadCommunicator<Hub> all(hub_.get(), r);
      RankGroup group(&all, &link);
      program(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<RankTransfer> RankThreads::sent() const { return hub_->sent(); }

int64_t RankThreads::pieces() const { return hub_->pieces(); }

RankThreads::Arrived RankThreads::arrived() const { return hub_->arrived(); }

}  // namespace pagoda
