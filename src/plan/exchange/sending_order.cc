#include "plan/exchange/sending_order.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "plan/refusals.h"
#include "plan/rounds/traffic.h"

namespace pagoda {
namespace {

class Queues {
 public:
  Queues(const SquareMatrix<double>& traffic, std::span<const double> bytes_per_s,
         const SendingOrder& order)
      : left_(traffic),
        bytes_per_s_(bytes_per_s),
        order_(order),
        next_(order.size(), 0),
        rate_(order.size(), 0),
        slowest_first_(order.size()) {
    std::iota(slowest_first_.begin(), slowest_first_.end(), 0);
    std::stable_sort(slowest_first_.begin(), slowest_first_.end(),
                     [&](int a, int b) { return bytes_per_s_[a] < bytes_per_s_[b]; });
    for (int s = 0; s < left_.size(); ++s) pass_over(s);
  }

  double drain_s() {
    for (double seconds = 0;;) {
      share_receivers();
      double step_s = std::numeric_limits<double>::infinity();
      for (int s : slowest_first_) {
        if (busy(s)) step_s = std::min(step_s, left_of(s) / rate_[s]);
      }
      if (step_s == std::numeric_limits<double>::infinity()) return seconds;
      for (int s : slowest_first_) {
        if (busy(s)) advance(s, step_s);
      }
      seconds += step_s;
    }
  }

 private:
  bool busy(int sender) const { return next_[sender] < order_[sender].size(); }
  int receiver_of(int sender) const { return order_[sender][next_[sender]]; }
  double& left_of(int sender) { return left_.at(sender, receiver_of(sender)); }

  void pass_over(int sender) {
    while (busy(sender) && (receiver_of(sender) == sender || left_of(sender) == 0)) ++next_[sender];
  }

  // Slow senders take their rates first, so that the others share the rest.
  void share_receivers() {
    std::vector<double> unused(bytes_per_s_.begin(), bytes_per_s_.end());
    std::vector<int> waiting(unused.size(), 0);
    for (int s : slowest_first_) {
      if (busy(s)) ++waiting[receiver_of(s)];
    }
    for (int s : slowest_first_) {
      if (!busy(s)) continue;
      const int receiver = receiver_of(s);
      rate_[s] = std::min(bytes_per_s_[s], unused[receiver] / waiting[receiver]);
      unused[receiver] -= rate_[s];
      --waiting[receiver];
    }
  }

  void advance(int sender, double step_s) {
    double& left = left_of(sender);
    const bool done = left / rate_[sender] <= step_s;
    left = done ? 0 : std::max(0.0, left - step_s * rate_[sender]);
    pass_over(sender);
  }

  SquareMatrix<double> left_;  // bytes
  std::span<const double> bytes_per_s_;
  const SendingOrder& order_;
  std::vector<size_t> next_;        // [sender] place in its order
  std::vector<double> rate_;        // [sender] bytes per second now
  std::vector<int> slowest_first_;  // senders
};

Status check_order(const SendingOrder& order, int devices) {
  RETURN_IF_ERROR(check_count("senders in the order", order.size(), static_cast<size_t>(devices)));
  for (const std::vector<int>& receivers : order) {
    RETURN_IF_ERROR(check_count("receivers of a sender", receivers.size(), order.size()));
    RETURN_IF_ERROR(check_indices("receivers of a sender", receivers, devices));
    std::vector<int> sorted = receivers;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end()) continue;
    return Status(Exit::kUsage,
                  "a sender's order names a receiver twice; nothing was planned, "
                  "name each once");
  }
  return Status();
}

}  // namespace

SendingOrder shortest_first(const SquareMatrix<double>& traffic) {
  SendingOrder order(traffic.size(), std::vector<int>(traffic.size()));
  for (int s = 0; s < traffic.size(); ++s) {
    std::iota(order[s].begin(), order[s].end(), 0);
    std::stable_sort(order[s].begin(), order[s].end(),
                     [&](int a, int b) { return traffic.at(s, a) < traffic.at(s, b); });
  }
  return order;
}

Result<double> queued_seconds(const SquareMatrix<double>& traffic_bytes,
                              std::span<const double> bytes_per_s, const SendingOrder& order) {
  RETURN_IF_ERROR(link_seconds(traffic_bytes, bytes_per_s).status());
  RETURN_IF_ERROR(check_order(order, traffic_bytes.size()));
  return Queues(traffic_bytes, bytes_per_s, order).drain_s();
}

}  // namespace pagoda
