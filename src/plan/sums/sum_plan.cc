#include "plan/sums/sum_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"

namespace pagoda {
namespace {

class Summation {
 public:
  // `present`: [shard] whether it has a sum; empty: each has.
  Summation(int64_t shards, int home, std::vector<uint8_t> present = {})
      : shards_(shards), home_(home), present_(std::move(present)) {}

  void chain(int device, int64_t shard, int64_t microbatch, bool first) {
    if (first) open_[shard] = {device, take(device)};
    plan_.steps.push_back({.kind = SumStep::Kind::kChain,
                           .device = device,
                           .buffer = open_[shard].buffer,
                           .microbatch = microbatch,
                           .first = first});
  }
  // The shard's chain is complete.
  void end_chain(int64_t shard) { settle({0, shard}, open_[shard]); }

  SumPlan finish() {
    across_ = true;
    // A sum that another device has a part of waits at its place in the tree, the lowest first.
    while (!waiting_.empty() && !done_) {
      const auto [node, sum] = *waiting_.begin();
      waiting_.erase(waiting_.begin());
      settle(node, sum);
    }
    CHECK(done_);
    plan_.root = root_.device == home_ ? root_.buffer : move(root_, home_).buffer;
    return std::move(plan_);
  }

 private:
  struct Node {
    int64_t level = 0, index = 0;
    auto operator<=>(const Node&) const = default;
  };
  struct Sum {
    int device = 0;
    int64_t buffer = 0;
  };

  int64_t take(int device) {
    std::set<int64_t>& used = used_[device];
    int64_t buffer = 0;
    while (used.contains(buffer)) ++buffer;
    used.insert(buffer);
    plan_.buffers = std::max(plan_.buffers, buffer + 1);
    return buffer;
  }

  Sum move(const Sum& sum, int to) {
    const Sum moved{to, take(to)};
    plan_.steps.push_back({.kind = SumStep::Kind::kMove,
                           .device = sum.device,
                           .buffer = sum.buffer,
                           .other = moved.buffer,
                           .to = to});
    used_[sum.device].erase(sum.buffer);
    return moved;
  }

  Sum add(Sum left, Sum right) {
    if (left.device != right.device) {
      Sum& leaves = right.device == home_ ? left : right;
      leaves = move(leaves, right.device == home_ ? right.device : left.device);
    }
    plan_.steps.push_back({.kind = SumStep::Kind::kAdd,
                           .device = left.device,
                           .buffer = left.buffer,
                           .other = right.buffer});
    used_[left.device].erase(right.buffer);
    return left;
  }

  // Takes a complete sum up the tree, as far as its neighbours are there.
  void settle(Node node, Sum sum) {
    for (;;) {
      const int64_t nodes = (shards_ + (int64_t{1} << node.level) - 1) >> node.level;
      if (nodes == 1) {
        done_ = true;
        root_ = sum;
        return;
      }
      const Node neighbour{node.level, node.index ^ 1};
      if (neighbour.index < nodes && is_present(neighbour)) {
        const auto other = waiting_.find(neighbour);
        const bool there = other != waiting_.end();
        if (!there || (other->second.device != sum.device && !across_)) {
          waiting_[node] = sum;
          return;
        }
        const Sum beside = other->second;
        waiting_.erase(other);
        sum = node.index % 2 == 0 ? add(sum, beside) : add(beside, sum);
      }
      node = {node.level + 1, node.index / 2};
    }
  }

  bool is_present(Node node) const {
    if (present_.empty()) return true;
    const auto end = std::min((node.index + 1) << node.level, shards_);
    const auto leaf = present_.begin();
    return std::find(leaf + (node.index << node.level), leaf + end, 1) != leaf + end;
  }

  int64_t shards_;
  int home_;
  std::vector<uint8_t> present_;
  bool across_ = false, done_ = false;
  Sum root_;
  SumPlan plan_;
  std::map<int64_t, Sum> open_;            // [shard] its chain
  std::map<Node, Sum> waiting_;            // complete, for their neighbours
  std::map<int, std::set<int64_t>> used_;  // [device] buffers
};

struct Turn {
  int64_t shard = 0, microbatch = 0;
  bool first = false, last = false;  // of the shard's chain
};

}  // namespace

SumPlan plan_sums(const SumShape& sums, const std::vector<int>& shard_device, int64_t microbatches,
                  int home, bool by_chunks) {
  CHECK(sums.chunks > 0 && microbatches % sums.chunks == 0);
  const int64_t columns = sums.columns(microbatches);
  CHECK(sums.shards > 0 && columns % sums.shards == 0);
  CHECK(shard_device.empty() || std::ssize(shard_device) == sums.shards);
  const int64_t width = columns / sums.shards, length = sums.chunks * width;
  std::map<int, std::vector<Turn>> turns;  // [device]
  for (int64_t shard = 0; shard < sums.shards; ++shard) {
    std::vector<Turn>& own = turns[device_of_shard(shard_device, shard)];
    for (int64_t i = 0; i < length; ++i) {
      const int64_t microbatch = i / width * columns + shard * width + i % width;
      own.push_back({shard, microbatch, i == 0, i + 1 == length});
    }
  }
  const auto in_order = [](const Turn& a, const Turn& b) { return a.microbatch < b.microbatch; };
  for (auto& [device, own] : turns) {
    if (by_chunks) std::sort(own.begin(), own.end(), in_order);
  }
  Summation summation(sums.shards, home);
  for (size_t i = 0, left = turns.size(); left > 0; ++i) {
    left = 0;
    for (const auto& [device, own] : turns) {
      if (i >= own.size()) continue;
      ++left;
      summation.chain(device, own[i].shard, own[i].microbatch, own[i].first);
      if (own[i].last) summation.end_chain(own[i].shard);
    }
  }
  return summation.finish();
}

namespace {

// Names buffers by the shards that began them. Moves keep the name.
void name_by_shards(const SumShape& sums, int home, SumPlan& plan) {
  std::map<std::pair<int, int64_t>, int64_t> shard_in;  // [device, buffer]
  for (SumStep& step : plan.steps) {
    int64_t& shard = shard_in[{step.device, step.buffer}];
    if (step.first) shard = step.microbatch % sums.expert_shards;
    step.buffer = shard;
    const bool moves = step.kind == SumStep::Kind::kMove;
    if (moves) shard_in[{step.to, step.other}] = shard;
    if (step.other >= 0) step.other = shard_in[{moves ? step.to : step.device, step.other}];
  }
  plan.root = shard_in[{home, plan.root}];
}

}  // namespace

SumPlan plan_expert_sum(const SumShape& sums, const std::vector<uint8_t>& present,
                        const std::vector<int>& shard_device, int home) {
  CHECK(std::ssize(present) == sums.cells());
  std::vector<uint8_t> shards(static_cast<size_t>(sums.expert_shards), 0);
  for (size_t cell = 0; cell < present.size(); ++cell) {
    shards[cell % shards.size()] |= present[cell];
  }
  Summation summation(sums.expert_shards, home, shards);
  std::vector<uint8_t> begun(shards.size(), 0);
  for (size_t cell = 0; cell < present.size(); ++cell) {
    if (present[cell] == 0) continue;
    const auto shard = static_cast<int64_t>(cell % shards.size());
    const bool first = std::exchange(begun[static_cast<size_t>(shard)], 1) == 0;
    summation.chain(device_of_shard(shard_device, shard), shard, static_cast<int64_t>(cell), first);
    if (sums.chunks == 1) summation.end_chain(shard);
  }
  for (size_t shard = 0; shard < shards.size() && sums.chunks > 1; ++shard) {
    if (begun[shard] != 0) summation.end_chain(static_cast<int64_t>(shard));
  }
  SumPlan plan = summation.finish();
  name_by_shards(sums, home, plan);
  return plan;
}

int64_t expert_sum_buffers(const SumShape& sums, bool several_devices) {
  const std::vector<uint8_t> all(static_cast<size_t>(sums.cells()), 1);
  const int64_t on_one = plan_expert_sum(sums, all).buffers;
  if (!several_devices || sums.chunks > 1) return on_one;  // by several chunks, one of each shard
  // A device keeps one of two neighbours waiting at most, until the other is there too.
  return std::max(on_one, (sums.expert_shards + 1) / 2 + 1);
}

}  // namespace pagoda
