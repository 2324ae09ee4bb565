#include "preview/cluster_changes.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace pagoda {
namespace {

constexpr double kHelpfulGain = 0.02;
constexpr size_t kMostNodes = 64;

struct Change {
  std::string text;
  ClusterSheet cluster;
  ClusterDemand demand;
};

Change with_tokens(const ClusterSheet& cluster, const ClusterDemand& demand, int64_t sequences) {
  return {strf("train.tokens_per_step = %lld", (long long)(sequences * demand.sequence_len)),
          cluster,
          {demand.sequence_len, sequences}};
}

// The cluster with `count` nodes, its own repeated in turn; with two kinds of nodes, `count` is a
// multiple of their number.
Change with_nodes(const ClusterSheet& cluster, const ClusterDemand& demand, size_t count) {
  Change change{strf("%zu such nodes", count), cluster, demand};
  change.cluster.nodes.clear();
  for (size_t i = 0; i < count; ++i) {
    change.cluster.nodes.push_back(cluster.nodes[i % cluster.nodes.size()]);
  }
  return change;
}

Change with_memory(const ClusterSheet& cluster, const ClusterDemand& demand, int64_t times) {
  Change change{strf("%lld times the device memory", (long long)times), cluster, demand};
  if (times == 2) change.text = "twice the device memory";
  for (MachineSheet& node : change.cluster.nodes) {
    node.device.memory = MemorySize::of_bytes(times * node.device_bytes());
  }
  return change;
}

Change with_network(const ClusterSheet& cluster, const ClusterDemand& demand) {
  Change change{"twice the rate of the network", cluster, demand};
  change.cluster.network.gb_s *= 2;
  for (MachineSheet& node : change.cluster.nodes) node.network.gb_s *= 2;
  return change;
}

Change with_links(const ClusterSheet& cluster, const ClusterDemand& demand) {
  Change change{"twice the rate of links inside nodes", cluster, demand};
  for (MachineSheet& node : change.cluster.nodes) node.link.gb_s *= 2;
  return change;
}

// {}: the change does not fit, or changes nothing.
std::optional<ClusterChange> tried(const ClusterPlanner& plan, const Change& change) {
  auto planned = plan(change.cluster, change.demand);
  if (!planned) return {};
  return ClusterChange{change.text, std::move(planned->text), planned->tokens_per_s, 0};
}

bool gpus(const ClusterSheet& cluster) {
  return std::all_of(cluster.nodes.begin(), cluster.nodes.end(),
                     [](const MachineSheet& node) { return node.gpu(); });
}

std::vector<Change> fewer_tokens(const ClusterSheet& cluster, const ClusterDemand& demand) {
  std::vector<Change> changes;
  for (int64_t n = demand.sequences; n % 2 == 0;) {
    n /= 2;
    changes.push_back(with_tokens(cluster, demand, n));
  }
  return changes;
}

std::vector<Change> more_nodes(const ClusterSheet& cluster, const ClusterDemand& demand) {
  std::vector<Change> changes;
  const size_t now = cluster.nodes.size(), step = cluster.equal_nodes() ? 1 : now;
  for (size_t n = now + step; n <= kMostNodes; n = n < 2 * now ? n + step : 2 * n) {
    changes.push_back(with_nodes(cluster, demand, n));
  }
  return changes;
}

std::vector<Change> more_memory(const ClusterSheet& cluster, const ClusterDemand& demand) {
  std::vector<Change> changes;
  for (int64_t times = 2; gpus(cluster) && times <= 16; times *= 2) {
    changes.push_back(with_memory(cluster, demand, times));
  }
  return changes;
}

}  // namespace

std::vector<ClusterChange> cluster_helps(const ClusterPlanner& plan, const ClusterSheet& cluster,
                                         const ClusterDemand& demand, double tokens_per_s) {
  std::vector<Change> changes = {with_tokens(cluster, demand, 2 * demand.sequences),
                                 with_network(cluster, demand), with_links(cluster, demand),
                                 with_nodes(cluster, demand, 2 * cluster.nodes.size())};
  if (gpus(cluster)) changes.push_back(with_memory(cluster, demand, 2));
  std::vector<ClusterChange> helpful;
  for (const Change& change : changes) {
    auto found = tried(plan, change);
    if (!found) continue;
    found->gain = found->tokens_per_s / tokens_per_s - 1;
    if (found->gain >= kHelpfulGain) helpful.push_back(std::move(*found));
  }
  std::stable_sort(helpful.begin(), helpful.end(),
                   [](const auto& a, const auto& b) { return a.gain > b.gain; });
  return helpful;
}

std::vector<ClusterChange> cluster_fits_with(const ClusterPlanner& plan,
                                             const ClusterSheet& cluster,
                                             const ClusterDemand& demand) {
  std::vector<ClusterChange> found;
  for (const auto& kind :
       {fewer_tokens(cluster, demand), more_nodes(cluster, demand), more_memory(cluster, demand)}) {
    for (const Change& change : kind) {
      auto fits = tried(plan, change);
      if (!fits) continue;
      found.push_back(std::move(*fits));
      break;
    }
  }
  return found;
}

}  // namespace pagoda
