#include "plan/zebra/zebra_join.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "plan/refusals.h"

namespace pagoda {
namespace {

constexpr Refusal invalid_groups("zebra groups");

Status check_groups(std::span<const ZebraGroup> groups) {
  RETURN_IF_ERROR(check_integer("the number of groups", static_cast<int64_t>(groups.size())));
  for (const ZebraGroup& group : groups) {
    RETURN_IF_ERROR(check_zebra(group));
    if (!group.backward) return invalid_groups("one has no backward, so no gradients to sum");
    const bool alike = group.layers == groups.front().layers &&
                       group.last_layer_experts == groups.front().last_layer_experts;
    if (!alike)
      return invalid_groups("they have other layers than each other; all train one model");
  }
  return Status();
}

// [layer] when all groups have the gradients that tasks of this kind make; 0 for a layer without
// any.
std::vector<double> complete_s(const std::vector<ZebraStep>& groups, TaskKind kind,
                               int32_t layers) {
  std::vector<double> ends_s(static_cast<size_t>(layers), 0);
  for (const ZebraStep& group : groups) {
    for (size_t t = 0; t < group.plan.tasks.size(); ++t) {
      if (group.plan.tasks[t].kind != kind) continue;
      double& end_s = ends_s[static_cast<size_t>(group.plan.tasks[t].layer)];
      end_s = std::max(end_s, group.times.end_s[t]);
    }
  }
  return ends_s;
}

// The end of all sums, one layer after the other from the last on.
double summed_s(const std::vector<double>& complete, double reduce_s) {
  if (reduce_s == 0) return 0;
  double end_s = 0;
  for (size_t i = complete.size(); i-- > 0;) {
    if (complete[i] > 0) end_s = std::max(end_s, complete[i]) + reduce_s;
  }
  return end_s;
}

Result<double> alone_s(ZebraGroup group, int32_t microbatches) {
  group.microbatches = microbatches;
  ASSIGN_OR_RETURN(const ZebraStep step, best_zebra(group));
  return step.times.makespan_s;
}

}  // namespace

Result<JoinedStep> best_zebra_join(const ZebraJoin& join) {
  RETURN_IF_ERROR(check_groups(join.groups));
  RETURN_IF_ERROR(check_amount("the sum of attention gradients", join.attention_reduce_s));
  RETURN_IF_ERROR(check_amount("the sum of expert gradients", join.expert_reduce_s));
  JoinedStep joined;
  double computed_s = 0;
  for (ZebraGroup group : join.groups) {
    group.times.attention_reduce_s = group.times.expert_reduce_s = 0;
    ASSIGN_OR_RETURN(ZebraStep step, best_zebra(group));
    computed_s = std::max(computed_s, step.times.makespan_s);
    joined.groups.push_back(std::move(step));
  }
  const int32_t layers = join.groups.front().layers;
  const double attention_s = summed_s(
      complete_s(joined.groups, TaskKind::kAttentionBackward, layers), join.attention_reduce_s);
  const double experts_s =
      summed_s(complete_s(joined.groups, TaskKind::kExpertBackward, layers), join.expert_reduce_s);
  joined.attention_wait_s = std::max(0.0, attention_s - computed_s);
  joined.step_s = std::max({computed_s, attention_s, experts_s});
  return joined;
}

Result<std::vector<int32_t>> share_microbatches(std::span<const ZebraGroup> groups,
                                                int32_t microbatches) {
  RETURN_IF_ERROR(check_groups(groups));
  for (const ZebraGroup& group : groups) {
    if (!group.sizes.empty()) return invalid_groups("microbatches that are shared out are equal");
  }
  if (microbatches < static_cast<int64_t>(groups.size())) {
    return invalid_groups(strf("%d microbatches for %zu groups; give each at least one",
                               microbatches, groups.size()));
  }
  RETURN_IF_ERROR(check_integer("microbatches", microbatches));
  std::vector<int32_t> shares(groups.size(), 1);
  std::vector<double> next_s;  // [group] its time with one more
  for (const ZebraGroup& group : groups) {
    ASSIGN_OR_RETURN(const double seconds, alone_s(group, 2));
    next_s.push_back(seconds);
  }
  for (auto left = microbatches - static_cast<int32_t>(groups.size()); left > 0; --left) {
    const auto soonest =
        static_cast<size_t>(std::min_element(next_s.begin(), next_s.end()) - next_s.begin());
    ++shares[soonest];
    ASSIGN_OR_RETURN(next_s[soonest], alone_s(groups[soonest], shares[soonest] + 1));
  }
  return shares;
}

}  // namespace pagoda
