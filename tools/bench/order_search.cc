#include "tools/bench/order_search.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/check.h"
#include "plan/zebra/stream_times.h"
#include "tests/testing/plan/job_search.h"

namespace pagoda {
namespace {

constexpr int kMostChunks = 4;
using Order = std::vector<uint8_t>;  // rows: kinds of actions in the order of a chunk

// A row's chunk comes behind the same of the row before it, and behind its own chunk before.
std::vector<Order> all_orders(int rows, int64_t chunks) {
  std::vector<Order> all;
  Order order;
  std::vector<int64_t> done(static_cast<size_t>(rows), 0);
  const auto extend = [&](const auto& self) -> void {
    if (std::ssize(order) == rows * chunks) {
      all.push_back(order);
      return;
    }
    for (size_t row = 0; row < done.size(); ++row) {
      if (done[row] == (row == 0 ? chunks : done[row - 1])) continue;
      ++done[row];
      order.push_back(static_cast<uint8_t>(row));
      self(self);
      order.pop_back();
      --done[row];
    }
  };
  extend(extend);
  return all;
}

// What a chunk goes through: attention of L layers, head, attention's backward of L layers; experts
// between them. Seconds, and those of the ways between.
struct Path {
  std::vector<double> attention, experts;  // [row]
  std::vector<double> there, back;         // [row of experts]
};

Path path_of(const RunShape& shape, const ActionTimes& times) {
  const auto layers = static_cast<int32_t>(shape.num_layers);
  Path path;
  for (int32_t l = 0; l < layers; ++l) {
    path.attention.push_back(times.of(l, 0).faster.attention->forward_s);
  }
  path.attention.push_back(times.of(0, 0).faster.head_s);
  for (int32_t l = layers - 1; l >= 0; --l) {
    // Routing is replayed before the experts' backward, on the device that attends.
    path.attention.back() += times.of(l, 0).faster.replay_s;
    path.attention.push_back(times.of(l, 0).faster.attention->backward_s);
  }
  const auto add = [&](const ChunkTimes& t, double PassSeconds::*of) {
    path.experts.push_back((*t.slower.experts).*of);
    path.there.push_back(t.to_experts.*of);
    path.back.push_back(t.to_attention.*of);
  };
  for (int32_t l = 0; l < layers; ++l) add(times.of(l, 0), &PassSeconds::forward_s);
  for (int32_t l = layers - 1; l >= 0; --l) add(times.of(l, 0), &PassSeconds::backward_s);
  return path;
}

// The seconds of a pair of orders. A chunk goes through A1 E1 A2 .. AL EL head EL' AL' .. E1' A1'.
class PairClock {
 public:
  PairClock(const Path& path, int64_t chunks) : path_(path) { CHECK(chunks <= kMostChunks); }

  double operator()(const Order& attention, const Order& experts) {
    std::array<double, kMostChunks> ready{};
    std::array<size_t, kMostChunks> at{};  // rows of the path, of both kinds, that are done
    next_a_.assign(path_.attention.size(), 0);
    next_e_.assign(path_.experts.size(), 0);
    double free_a = 0, free_e = 0, free_there = 0, free_back = 0;
    size_t a = 0, e = 0;
    while (a < attention.size() || e < experts.size()) {
      if (e < experts.size()) {
        const size_t row = experts[e], chunk = next_e_[row];
        if (at[chunk] == 2 * row + 1) {
          const double sent = std::max(free_there, ready[chunk]) + path_.there[row];
          free_there = sent;
          free_e = std::max(free_e, sent) + path_.experts[row];
          free_back = ready[chunk] = std::max(free_back, free_e) + path_.back[row];
          ++at[chunk];
          ++next_e_[row];
          ++e;
          continue;
        }
      }
      if (a == attention.size()) return -1;  // they wait for each other
      const size_t row = attention[a], chunk = next_a_[row];
      if (at[chunk] != 2 * row) return -1;
      free_a = ready[chunk] = std::max(free_a, ready[chunk]) + path_.attention[row];
      ++at[chunk];
      ++next_a_[row];
      ++a;
    }
    return std::max(free_a, free_back);
  }

 private:
  const Path& path_;
  std::vector<size_t> next_a_, next_e_;
};

ZebraOrders orders_of(const RunShape& shape, const Order& attention, const Order& experts) {
  const int64_t layers = shape.num_layers, width = shape.microbatches / shape.rounds();
  ZebraOrders orders;
  std::vector<int64_t> next(static_cast<size_t>(2 * layers + 1), 0);
  const auto chunk = [&](size_t row) { return Microbatches{next[row]++ * width, width}; };
  for (const uint8_t row : attention) {
    if (row == layers) {
      orders.attention.push_back({ActionKind::kHead, Phase::kForward, -1, chunk(row)});
    } else {
      const bool backward = row > layers;
      orders.attention.push_back({ActionKind::kAttention,
                                  backward ? Phase::kBackward : Phase::kForward,
                                  backward ? 2 * layers - row : row, chunk(row)});
    }
  }
  std::fill(next.begin(), next.end(), 0);
  for (const uint8_t row : experts) {
    const bool backward = row >= layers;
    orders.experts.push_back({ActionKind::kExperts, backward ? Phase::kBackward : Phase::kForward,
                              backward ? 2 * layers - 1 - row : row, chunk(row)});
  }
  return orders;
}

}  // namespace

double count_orders(int64_t layers, int64_t chunks) {
  // The hook length formula, of a rectangle.
  const auto tableaux = [&](int64_t rows) {
    double count = 1;
    int64_t number = 0;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < chunks; ++j) {
        count *= static_cast<double>(++number) / static_cast<double>(i + j + 1);
      }
    }
    return std::round(count);
  };
  return tableaux(2 * layers + 1) * tableaux(2 * layers);
}

OrderSearch search_orders(const RunShape& shape, const ActionTimes& times, size_t most) {
  const auto rows = static_cast<int>(2 * shape.num_layers);
  const std::vector<Order> attention = all_orders(rows + 1, shape.rounds());
  const std::vector<Order> experts = all_orders(rows, shape.rounds());
  const Path path = path_of(shape, times);
  PairClock clock(path, shape.rounds());
  struct Pair {
    double step_s;
    size_t attention, experts;
  };
  OrderSearch found;
  std::vector<Pair> best;  // a heap, the slowest first
  const auto faster = [](const Pair& a, const Pair& b) { return a.step_s < b.step_s; };
  for (size_t a = 0; a < attention.size(); ++a) {
    for (size_t e = 0; e < experts.size(); ++e) {
      const double step_s = clock(attention[a], experts[e]);
      if (step_s < 0) continue;
      ++found.orders;
      if (best.size() == most && step_s >= best.front().step_s) continue;
      best.push_back({step_s, a, e});
      std::push_heap(best.begin(), best.end(), faster);
      if (best.size() <= most) continue;
      std::pop_heap(best.begin(), best.end(), faster);
      best.pop_back();
    }
  }
  for (const Pair& pair : best) {
    ZebraOrders orders = orders_of(shape, attention[pair.attention], experts[pair.experts]);
    const TimedActions timed = time_actions(join_orders(shape, orders, PassExtent::kStep), times);
    found.best.push_back({std::move(orders), time_streams(timed.queue, kStepStreams).makespan_s});
  }
  std::stable_sort(found.best.begin(), found.best.end(),
                   [](const TimedOrder& a, const TimedOrder& b) { return a.step_s < b.step_s; });
  return found;
}

LeastTime least_time(const RunShape& shape, const ActionTimes& times, double bound_s) {
  constexpr int64_t kMostStates = 2'000'000;
  constexpr double kUnit = 1e-6;
  const Path path = path_of(shape, times);
  const auto units = [&](double seconds) { return std::llround(seconds / kUnit); };
  Job job;  // machines: attention, experts, the way there, the way back
  for (size_t row = 0; row < path.attention.size(); ++row) {
    job.push_back({0, units(path.attention[row])});
    if (row == path.experts.size()) break;
    job.push_back({2, units(path.there[row])});
    job.push_back({1, units(path.experts[row])});
    job.push_back({3, units(path.back[row])});
  }
  const std::vector<Job> jobs(static_cast<size_t>(shape.rounds()), job);
  const ShortestSchedule found = shortest_schedule(jobs, 4, units(bound_s) + 1, kMostStates);
  return {kUnit * static_cast<double>(found.makespan), found.certain};
}

}  // namespace pagoda
