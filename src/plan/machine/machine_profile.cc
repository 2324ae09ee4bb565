#include "plan/machine/machine_profile.h"

#include <array>
#include <limits>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "plan/step/task_table.h"

namespace pagoda {
namespace {

bool computes_expert(TaskKind kind) {
  return kind == TaskKind::kExpert || kind == TaskKind::kExpertBackward;
}

// What a part of an expert is of it, by its elements. Of parts that are taken together
// (plan/memory/coarse_run.h) it is the mean. 1 for tasks of anything else.
double share_of_expert(const Task& task, const RunShape& shape) {
  const bool of_expert = computes_expert(task.kind) || task.kind == TaskKind::kGradient;
  if (!of_expert || task.expert < 0 || shape.expert_parts == 1) return 1;
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
      return static_cast<double>(task.rows + task.padding) *
             (computes_expert(task.kind) ? share_of_expert(task, shape) : 1);
    case TaskUnit::kElements: return elements();
    case TaskUnit::kSummedElements:
      return static_cast<double>(task.elements);
    case TaskUnit::kBytes: {
      // What comes from another rank is where it belongs when it is there (parallel/mpi_link.h).
      const bool there =
          task.kind == TaskKind::kReceive && shape.rank_of(task.peer) != shape.rank_of(task.device);
      return there ? 0 : static_cast<double>(task.bytes);
    }
    case TaskUnit::kUpdatedElements: return elements() * static_cast<double>(task.updates);
  }
  CHECK(false, "no such unit");
}

double MachineProfile::joined_s(const Task& task, const RunShape& shape) const {
  Cost cost = of(task);
  cost.fixed_s *= share_of_expert(task, shape);
  return cost.joined_s(task_units(task, shape));
}

double MachineProfile::adding_s(const Task& task, const RunShape& shape) const {
  if (task.kind != TaskKind::kExpertBackward || task.first || !shape.pages_expert_sums()) return 0;
  Task adding = task;
  adding.kind = TaskKind::kAddSums;
  const int64_t elements = shape.records[static_cast<size_t>(task.record)].num_elements;
  return of(adding).unit_s * static_cast<double>(elements) / 3;
}

namespace {

constexpr size_t kTerms = 3;  // fixed, unit, start
using Terms = std::array<double, kTerms>;

Terms terms_of(const CostSample& s) { return {s.tasks, s.units, 1}; }

double times(const Terms& a, const Terms& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

// The best factors of the terms of a bit mask, the others 0, by Gauss's elimination. {}: terms
// depend on each other, or a factor is negative.
std::optional<Terms> factors_of(std::array<Terms, kTerms> squares, Terms products, unsigned mask) {
  constexpr double kDependent = 1e-10;
  const auto used = [&](size_t i) { return (mask >> i & 1) != 0; };
  const std::array<Terms, kTerms> whole = squares;
  for (size_t i = 0; i < kTerms; ++i) {
    if (!used(i)) continue;
    if (squares[i][i] <= kDependent * whole[i][i]) return {};
    for (size_t j = i + 1; j < kTerms; ++j) {
      if (!used(j)) continue;
      const double factor = squares[j][i] / squares[i][i];
      for (size_t k = i; k < kTerms; ++k) squares[j][k] -= factor * squares[i][k];
      products[j] -= factor * products[i];
    }
  }
  Terms factors = {};
  for (size_t i = kTerms; i-- > 0;) {
    if (!used(i)) continue;
    factors[i] = (products[i] - times(squares[i], factors)) / squares[i][i];
    if (factors[i] < 0) return {};
  }
  return factors;
}

}  // namespace

Cost fit_cost(std::span<const CostSample> samples, double cores) {
  constexpr double kNoBetter = 1 - 1e-9;
  std::array<Terms, kTerms> squares = {};
  Terms products = {};
  for (const CostSample& s : samples) {
    const Terms terms = terms_of(s);
    for (size_t i = 0; i < kTerms; ++i) {
      for (size_t j = 0; j < kTerms; ++j) squares[i][j] += terms[i] * terms[j];
      products[i] += terms[i] * s.seconds;
    }
  }
  Terms best = {};
  double least = std::numeric_limits<double>::infinity();
  for (unsigned mask = 1; mask < 1U << kTerms; ++mask) {
    const std::optional<Terms> factors = factors_of(squares, products, mask);
    if (!factors) continue;
    double left = 0;
    for (const CostSample& s : samples) {
      const double error = s.seconds - times(*factors, terms_of(s));
      left += error * error;
    }
    if (left >= kNoBetter * least) continue;
    least = left;
    best = *factors;
  }
  return {.fixed_s = best[0], .unit_s = best[1], .cores = cores, .start_s = best[2]};
}

}  // namespace pagoda
