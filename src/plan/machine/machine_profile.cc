#include "plan/machine/machine_profile.h"

#include "base/check.h"
#include "plan/step/task_table.h"

namespace pagoda {
namespace {

// What a part of an expert has of the work on its rows, by its elements. Of parts that are taken
// together (plan/memory/coarse_run.h) it is the mean.
double share_of_expert(const Task& task, const RunShape& shape) {
  const bool computes = task.kind == TaskKind::kExpert || task.kind == TaskKind::kExpertBackward;
  if (!computes || shape.expert_parts == 1) return 1;
  double layer = 0;
  for (int64_t e = 0; e < shape.num_experts; ++e) {
    layer += static_cast<double>(shape.records[shape.expert(task.layer, e)].num_elements);
  }
  const auto own = static_cast<double>(shape.records[task.record].num_elements);
  return own * static_cast<double>(shape.num_experts) /
         (layer * static_cast<double>(shape.expert_parts));
}

}  // namespace

double task_units(const Task& task, const RunShape& shape) {
  const auto elements = [&] {
    return static_cast<double>(shape.records[task.record].trained_elements());
  };
  switch (task_row(task.kind).unit) {
    case TaskUnit::kNothing: return 0;
    case TaskUnit::kTokens: return static_cast<double>(shape.microbatch_tokens);
    case TaskUnit::kChoices: {
      int64_t tokens = 0;  // of the microbatches that the device attends to
      for (int64_t b = task.microbatch; b < task.microbatch + task.microbatches; ++b) {
        if (shape.attending(task.layer, b) == task.device) tokens += shape.microbatch_tokens;
      }
      return static_cast<double>(tokens * shape.experts_per_token);
    }
    case TaskUnit::kRows: return static_cast<double>(task.rows);
    case TaskUnit::kComputedRows:
      return static_cast<double>(task.rows + task.padding) * share_of_expert(task, shape);
    case TaskUnit::kElements: return elements();
    case TaskUnit::kSummedElements:
      return static_cast<double>(task.elements);
    case TaskUnit::kBytes:
      return static_cast<double>(task.bytes);
    case TaskUnit::kUpdatedElements: return elements() * static_cast<double>(task.updates);
  }
  CHECK(false, "no such unit");
}

Cost fit_cost(std::span<const CostSample> samples, double cores) {
  Cost cost;
  cost.cores = cores;
  if (samples.empty()) return cost;
  const auto n = static_cast<double>(samples.size());
  double units = 0, seconds = 0, square = 0, product = 0, origin_square = 0, origin_product = 0;
  for (const CostSample& s : samples) {
    units += s.units / n;
    seconds += s.seconds / n;
  }
  for (const CostSample& s : samples) {
    square += (s.units - units) * (s.units - units);
    product += (s.units - units) * (s.seconds - seconds);
    origin_square += s.units * s.units;
    origin_product += s.units * s.seconds;
  }
  if (square <= 1e-12 * origin_square || product <= 0) {
    cost.fixed_s = seconds;
    return cost;
  }
  cost.unit_s = product / square;
  cost.fixed_s = seconds - cost.unit_s * units;
  if (cost.fixed_s >= 0) return cost;
  cost.fixed_s = 0;
  cost.unit_s = origin_product / origin_square;
  return cost;
}

}  // namespace pagoda
