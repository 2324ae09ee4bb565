#include "preview/equal_copies.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "plan/machine/work_cost.h"

namespace pagoda {
namespace {

// What the layout of one copy makes of all.
EqualCopies copies_of(const RanksForecast& one, int64_t count, int64_t devices, double sums_s) {
  EqualCopies all{count, devices, sums_s};
  all.step_s = one.step.step_s() + sums_s;
  all.tokens_per_s = static_cast<double>(count * one.tokens) / all.step_s;
  all.mfu = one.flops / (one.peak_flops_per_s * all.step_s);
  const Resource busiest = one.step.bottleneck();
  all.bottleneck = sums_s > one.step.busy_s(busiest) ? "sums" : resource_name(busiest);
  return all;
}

// None: the copies would have parts of microbatches, or each too many devices, or no layout fits.
std::optional<DividedCluster> divide(const ModelSizes& model, RunConfig config,
                                     const ClusterSheet& cluster, int64_t count,
                                     const CoarseLimits& limits) {
  if (config.train.tokens_per_step % (count * config.train.micro_batch_tokens) != 0) return {};
  ClusterSheet part = cluster;
  part.nodes.resize(cluster.nodes.size() / static_cast<size_t>(count));
  config.train.tokens_per_step /= count;
  config.equal_copies = count;
  config.total_devices = devices_of_nodes(config, part);
  if (config.total_devices > kMostDevices) return {};
  const std::vector<RunConfig> configs(part.nodes.size(), config);
  LayoutSearch found = search_layouts(model, configs, part, limits);
  if (found.runs.empty()) return {};
  const SearchedLayout& best = found.runs.front();
  const std::vector<PlannedRun> ranks = planned_ranks(model, best.configs, part).take();
  const double sums_s = seconds_between_copies(ranks.front(), part, count);
  const EqualCopies copies = copies_of(best.forecast, count, config.total_devices, sums_s);
  return DividedCluster{copies, std::move(found)};
}

}  // namespace

std::string EqualCopies::text() const {
  return strf(
      "%lld equal copies of %lld devices, one simulated; sums between copies added, %.3g s "
      "of a step's %.4g",
      (long long)count, (long long)devices, sums_s, step_s);
}

double seconds_between_copies(const PlannedRun& one, const ClusterSheet& part, int64_t count) {
  if (count == 1) return 0;
  const RunShape& shape = one.shape;
  std::vector<double> elements(part.nodes.size(), 0);  // [rank] that are at home there
  for (int64_t r = 0; r <= shape.head(); ++r) {
    elements[static_cast<size_t>(shape.home_rank(r))] +=
        static_cast<double>(shape.records[static_cast<size_t>(r)].trained_elements());
  }
  constexpr double kSumBytes = sizeof(float);
  const auto others = static_cast<double>(count - 1);
  const auto weight_bytes = static_cast<double>(shape.dtype_bytes);
  double longest_s = 0;
  for (size_t r = 0; r < elements.size(); ++r) {
    const MachineSheet& node = part.nodes[r];
    const Cost link =
        WorkClock::link(node.network_gb_s(part.network.gb_s), part.network.latency_us);
    const WorkClock clock(node, static_cast<double>(one.sequence_len));
    // What comes over one link, to the device behind it.
    const double received = others * elements[r] / static_cast<double>(node.network_links());
    const double there_s = link.seconds(kSumBytes * received);
    const double back_s = link.seconds(weight_bytes * received);
    const double adding_s = clock.cost(sums_work(), 0, 1).seconds(received);
    longest_s = std::max(longest_s, there_s + adding_s + back_s);
  }
  return longest_s;
}

std::vector<DividedCluster> divide_cluster(const ModelSizes& model, const RunConfig& whole,
                                           const ClusterSheet& cluster,
                                           const CoarseLimits& limits) {
  std::vector<DividedCluster> divided;
  const int64_t nodes = std::ssize(cluster.nodes);
  for (int64_t count = 1; count <= nodes; ++count) {
    if (nodes % count != 0) continue;
    auto next = divide(model, whole, cluster, count, limits);
    if (!next) continue;
    const bool faster = divided.empty() || next->copies.step_s < divided.front().copies.step_s;
    divided.insert(faster ? divided.begin() : divided.end(), std::move(*next));
    if (!faster) break;
  }
  return divided;
}

}  // namespace pagoda
