#include "parallel/rank_clock.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "base/number_text.h"

namespace pagoda {
namespace {

constexpr int kRounds = 64;
constexpr int64_t kMostMessages = 250'000;  // a rank names to another
constexpr int64_t kNever = int64_t{1} << 60;  // us

std::span<std::byte> bytes_of(int64_t& value) {
  return {reinterpret_cast<std::byte*>(&value), sizeof(value)};
}

}  // namespace

Status RankClock::compare(RankGroup& ranks) {
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
  for (int other = 1; other < ranks.size(); ++other) {
    for (int round = 0; round < kRounds; ++round) {
      const int64_t sent_us = now_();
      int64_t value = 0;
      RETURN_IF_ERROR(ranks.pass(other, 0, bytes_of(value)));
      if (ranks.rank() == 0) value = now_();
      RETURN_IF_ERROR(ranks.pass(0, other, bytes_of(value)));
      if (ranks.rank() != other) continue;
      least = std::max(least, value - now_());
      most = std::min(most, value - sent_us);
    }
  }
  // A clock that was set or that ran at another rate meanwhile may leave no range at all.
  const bool compared = ranks.rank() != 0 && ranks.size() > 1;
  const double offset_us =
      compared ? (static_cast<double>(least) + static_cast<double>(most)) / 2 : 0;
  if (compared) error_us_ = std::max(error_us_, (std::abs(most - least) + 1) / 2);
  newest_ = Comparison{now_(), offset_us};
  if (!first_) first_ = newest_;
  return Status();
}

int64_t RankClock::on_rank_0(int64_t own_us) const {
  if (!newest_) return own_us + correction_us_;
  double offset_us = newest_->offset_us;
  if (newest_->own_us > first_->own_us) {
    const double rate = (newest_->offset_us - first_->offset_us) /
                        static_cast<double>(newest_->own_us - first_->own_us);
    offset_us = first_->offset_us + rate * static_cast<double>(own_us - first_->own_us);
  }
  return own_us + correction_us_ + static_cast<int64_t>(offset_us + (offset_us < 0 ? -0.5 : 0.5));
}

Status RankClock::put_in_order(RankGroup& ranks, const std::vector<Seen>& sent,
                               const std::vector<Seen>& received) {
  if (ranks.alone()) return Status();
  std::string text;  // for each rank, by how much its messages to this one are late enough
  for (int from = 0; from < ranks.size(); ++from) {
    for (int to = 0; to < ranks.size(); ++to) {
      if (from == to || (ranks.rank() != from && ranks.rank() != to)) continue;
      std::vector<Passed> messages;
      if (ranks.rank() == from) messages = seen_with(to, sent);
      auto count = static_cast<int64_t>(messages.size());
      RETURN_IF_ERROR(ranks.pass(from, to, bytes_of(count)));
      CHECK(count >= 0 && count <= kMostMessages, "a rank names %lld messages", (long long)count);
      messages.resize(static_cast<size_t>(count));
      RETURN_IF_ERROR(ranks.pass(from, to, std::as_writable_bytes(std::span(messages))));
      if (ranks.rank() != to) continue;
      text += strf("%lld ", (long long)least_delay(messages, seen_with(from, received)));
    }
    if (from == ranks.rank()) text += strf("%lld ", (long long)kNever);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.agree(Status(), text));
  return correct(all, ranks.rank());
}

// The messages with a rank, sorted, with the times that rank 0's clock showed.
std::vector<RankClock::Passed> RankClock::seen_with(int peer, const std::vector<Seen>& all) const {
  std::vector<Passed> messages;
  for (const Seen& seen : all) {
    if (seen.peer != peer || std::ssize(messages) == kMostMessages) continue;
    messages.push_back({{seen.from, seen.to, seen.number}, on_rank_0(seen.own_us)});
  }
  std::ranges::sort(messages);
  return messages;
}

// The least time from sending to receiving, of messages that are in both lists.
int64_t RankClock::least_delay(const std::vector<Passed>& sent,
                               const std::vector<Passed>& received) {
  int64_t least = kNever;
  auto there = received.begin();
  for (const Passed& message : sent) {
    while (there != received.end() && there->name < message.name) ++there;
    if (there == received.end()) break;
    if (there->name == message.name) least = std::min(least, there->at_us - message.at_us);
  }
  return least;
}

// Moves each clock back as far as any chain of messages asks for: shortest paths, by Bellman and
// Ford. Rates that change within the trace may leave a circle of messages that no clocks explain.
Status RankClock::correct(const std::vector<std::string>& delays, int rank) {
  const size_t ranks = delays.size();
  std::vector<int64_t> delay;  // [to][from]
  for (const std::string& text : delays) {
    NumberReader in(text);
    for (size_t from = 0; from < ranks; ++from) {
      if (in.read(delay.emplace_back(), -kNever, kNever)) continue;
      return Status(Exit::kIoError, "a rank sent what are no times of messages; see that all ranks "
                                    "run the same program");
    }
  }
  std::vector<int64_t> moved(ranks);
  for (size_t round = 0; round < ranks; ++round) {
    for (size_t to = 0; to < ranks; ++to) {
      for (size_t from = 0; from < ranks; ++from) {
        const int64_t least = delay[to * ranks + from];
        if (least != kNever) moved[from] = std::min(moved[from], moved[to] + least);
      }
    }
  }
  correction_us_ += moved[static_cast<size_t>(rank)] - moved[0];
  return Status();
}

}  // namespace pagoda
