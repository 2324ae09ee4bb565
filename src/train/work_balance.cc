#include "train/work_balance.h"

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
  return Status(Exit::kIoError, strf("rank %d sent what moves no work of this run; the last "
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

void UnitTimes::add(size_t device, double seconds, int64_t units) {
  if (device >= least_s_.size()) least_s_.resize(device + 1, 0);
  if (units == 0 || seconds <= 0) return;
  const double one_s = seconds / static_cast<double>(units);
  double& least_s = least_s_[device];
  least_s = least_s > 0 ? std::min(least_s, one_s) : one_s;
}

double UnitTimes::of(size_t device) const {
  return device < least_s_.size() ? least_s_[device] : 0;
}

void HomeBalance::end_step(const RunShape& shape, const StepResult& result, double step_s,
                           const TaskTimes* times) {
  if (every_ == 0) return;
  if (due()) {
    steps_s_ = 0;
    row_times_ = {};
  }
  for (size_t d = 0; times != nullptr && d < times->devices().size(); ++d) {
    const TaskTimes::OfDevice& device = times->devices()[d];
    row_times_.add(d, device.experts_s, device.expert_rows);
  }
  means_.add(home_loads(shape, result.routing));
  steps_s_ += step_s;
}

// A step takes as long as the slowest rank says, which waited for the others least.
Result<StepTimes> HomeBalance::times_of_all(Session& session) {
  RankGroup& ranks = session.ranks();
  std::string own = told(steps_s_ / static_cast<double>(every_));
  for (int d = 0; d < session.shape().own_devices().count; ++d) {
    own += told(row_times_.of(static_cast<size_t>(d)));
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

void HomeBalance::moved(const HomeMoves& moves, double exchanged_s) {
  if (moves.in_turn_bytes == 0 || exchanged_s <= 0) return;
  bytes_per_s_ = static_cast<double>(moves.in_turn_bytes) / exchanged_s;
}

void ShareBalance::end_step(const RunShape& shape, double step_s, const TaskTimes* times) {
  if (!on_) return;
  ++steps_;
  step_s_ = step_s;
  if (times == nullptr) return;
  const std::vector<int64_t> tokens = attended_tokens(shape, shape.shard_device);
  const auto first = static_cast<size_t>(shape.own_devices().first);
  const std::vector<TaskTimes::OfDevice>& devices = times->devices();
  for (size_t d = 0; d < devices.size(); ++d) {
    token_times_.add(d, devices[d].tokens_s, tokens[first + d]);
    row_times_.add(d, devices[d].experts_s, devices[d].expert_rows);
  }
}

// Noise only makes a flush slower.
void ShareBalance::wrote(int64_t bytes, double seconds) {
  has_written_ = true;
  if (bytes > 0 && seconds > 0) {
    bytes_per_s_ = std::max(bytes_per_s_, static_cast<double>(bytes) / seconds);
  }
}

double ShareBalance::cost_s(int64_t new_store_bytes) const {
  double deal_s = deal_s_[new_store_bytes > 0];
  if (deal_s == 0 && bytes_per_s_ > 0) deal_s = static_cast<double>(new_store_bytes) / bytes_per_s_;
  return std::max(save_s_ + deal_s, step_s_);
}

// Each rank tells of its step, of what a deal takes, and of its devices.
Status ShareBalance::take(const std::vector<std::string>& all, Times& times) {
  slowest_s_ = cost_s_ = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    NumberReader in(all[rank]);
    double step_s = 0, cost_s = 0;
    bool good = read_told(in, step_s) && read_told(in, cost_s);
    for (const DeviceSetup& device : devices_) {
      if (device.rank != static_cast<int>(rank)) continue;
      good = good && read_told(in, times.token_s.emplace_back()) &&
             read_told(in, times.row_s.emplace_back());
    }
    if (!good) return not_understood(static_cast<int>(rank));
    slowest_s_ = std::max(slowest_s_, step_s);
    cost_s_ = std::max(cost_s_, cost_s);
  }
  return Status();
}

Result<bool> ShareBalance::measure(RankGroup& ranks, const std::vector<DeviceSetup>& now) {
  std::string own = told(step_s_) + told(cost_s(0));
  const auto own_devices = std::count_if(now.begin(), now.end(), [&](const DeviceSetup& device) {
    return device.rank == ranks.rank();
  });
  for (size_t d = 0; d < static_cast<size_t>(own_devices); ++d) {
    own += told(token_times_.of(d)) + told(row_times_.of(d));
  }
  token_times_ = row_times_ = {};
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.agree(Status(), own));
  devices_ = now;
  Times times;
  RETURN_IF_ERROR(take(all, times));
  std::vector<double> before[2], listed[2], measured[2];  // of attention, and of experts
  for (size_t d = 0; d < devices_.size(); ++d) {
    DeviceSetup& device = devices_[d];
    before[0].push_back(device.attention_speed());
    before[1].push_back(device.seat_speed());
    const double last[2] = {device.measured_attention, device.measured_experts};
    device.measured_attention = device.measured_experts = 0;
    listed[0].push_back(device.attention_speed());
    listed[1].push_back(device.seat_speed());
    const double unit_s[2] = {times.token_s[d], times.row_s[d]};
    const bool has_work = unit_s[0] > 0 || unit_s[1] > 0;
    for (int of = 0; of < 2; ++of) {
      const double speed = unit_s[of] > 0 ? 1 / unit_s[of] : 0;
      measured[of].push_back(has_work ? speed : last[of]);
    }
  }
  const std::vector<double> attention =
      speeds_of_all(measured[0], listed[0], measured[1], listed[1]);
  std::vector<double> experts = speeds_of_all(measured[1], listed[1], measured[0], listed[0]);
  if (experts.empty()) experts = listed[1];  // the model has none
  if (attention.empty()) {
    devices_.clear();
    return false;
  }
  for (size_t d = 0; d < devices_.size(); ++d) {
    devices_[d].measured_attention = attention[d];
    devices_[d].measured_experts = experts[d];
  }
  return shares_differ(before[0], attention) || shares_differ(before[1], experts);
}

bool ShareBalance::pays(const RunShape& shape, const std::vector<int>& shard_device,
                        int64_t steps_left, double cost_s) const {
  if (devices_.empty()) return false;
  const double gain_s = busiest_device_s(shape, shape.shard_device, devices_) -
                        busiest_device_s(shape, shard_device, devices_);
  return deal_pays(gain_s, slowest_s_, std::max(cost_s_, cost_s), steps_left);
}

}  // namespace pagoda
