#include "train/home_balance.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/number_text.h"
#include "train/page_move.h"

namespace pagoda {
namespace {

constexpr double kTold = 1e12;  // seconds are told as whole picoseconds
constexpr int64_t kMostTold = int64_t{1} << 60;

std::string told(double seconds) {
  const double most = static_cast<double>(kMostTold);
  return strf("%lld ", (long long)std::llround(std::clamp(seconds * kTold, 0.0, most)));
}

bool read_told(NumberReader& in, double& seconds) {
  int64_t value = 0;
  if (!in.read(value, int64_t{0}, kMostTold)) return false;
  seconds = static_cast<double>(value) / kTold;
  return true;
}

Status not_understood(int rank) {
  return Status(Exit::kIoError, strf("rank %d sent what moves no experts of this run; the last "
                                     "checkpoint is intact: see that all ranks run the same "
                                     "program, and resume",
                                     rank));
}

std::string text_of(std::span<const HomeSwap> swaps) {
  std::string text;
  for (const HomeSwap& swap : swaps) {
    text += strf("%lld %lld ", (long long)swap.a, (long long)swap.b);
  }
  return text;
}

Result<std::vector<HomeSwap>> parse_swaps(const RunShape& shape, const std::string& text) {
  std::vector<HomeSwap> swaps;
  for (NumberReader in(text); !in.rest().empty();) {
    HomeSwap& swap = swaps.emplace_back();
    const int64_t last = std::ssize(shape.records) - 1;
    const bool good = in.read(swap.a, int64_t{0}, last) && in.read(swap.b, int64_t{0}, last);
    if (!good || !may_exchange(shape, swap)) return not_understood(0);
  }
  return swaps;
}

}  // namespace

void HomeBalance::begin_step(Session& session) {
  if (every_ == 0 || (means_.steps() + 1) % every_ != 0) return;
  times_ = std::make_unique<TaskTimes>(&session.shape());
  session.executor().time_tasks(times_.get());
}

void HomeBalance::end_step(Session& session, const StepResult& result, double step_s) {
  if (every_ == 0) return;
  session.executor().time_tasks(nullptr);
  if (due()) steps_s_ = 0;
  means_.add(result.tokens_per_expert);
  steps_s_ += step_s;
}

// A step takes as long as the slowest rank says, which waited for the others least.
Result<StepTimes> HomeBalance::times_of_all(Session& session) {
  RankGroup& ranks = session.ranks();
  std::string own = told(steps_s_ / static_cast<double>(every_));
  for (const TaskTimes::OfDevice& device : times_->devices()) {
    const auto rows = static_cast<double>(std::max<int64_t>(device.expert_rows, 1));
    own += told(device.expert_rows > 0 ? device.experts_s / rows : 0);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.agree(Status(), own));
  StepTimes times;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    NumberReader in(all[static_cast<size_t>(rank)]);
    double step_s = 0;
    bool good = read_told(in, step_s);
    for (int d = 0; d < session.shape().devices_of(rank).count; ++d) {
      good = good && read_told(in, times.row_s.emplace_back());
    }
    if (!good) return not_understood(rank);
    times.step_s = std::max(times.step_s, step_s);
  }
  if (ranks.alone()) return times;
  if (bytes_per_s_ == 0) {
    ASSIGN_OR_RETURN(bytes_per_s_, measure_exchange(ranks));
  }
  times.bytes_per_s = bytes_per_s_;
  return times;
}

Result<HomeMoves> HomeBalance::decide(Session& session) {
  ASSIGN_OR_RETURN(const StepTimes times, times_of_all(session));
  HomeMoves moves = choose_moves(session.shape(), means_, times, every_);
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   session.ranks().agree(Status(), text_of(moves.swaps)));
  auto agreed = parse_swaps(session.shape(), all[0]);
  RETURN_IF_ERROR(session.ranks().agree(agreed.status()));
  moves.swaps = agreed.take();
  return moves;
}

void HomeBalance::moved(const HomeMoves& moves, double took_s) {
  if (moves.bytes > 0 && took_s > 0) bytes_per_s_ = static_cast<double>(moves.bytes) / 2 / took_s;
}

}  // namespace pagoda
