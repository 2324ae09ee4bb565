// The executor's updates of weights.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"
#include "kernels/gpu_adam.h"
#include "optim/clip.h"
#include "train/executor.h"

namespace pagoda {

std::vector<AdamSpan> Executor::spans_of(int64_t record) const {
  const RecordSpec& spec = setup_.table.records[record];
  std::vector<AdamSpan> spans;
  for (int64_t t = spec.first_tensor; t < spec.first_tensor + spec.num_tensors; ++t) {
    const TensorSpec& tensor = setup_.table.tensors[t];
    const int64_t end = tensor.offset + tensor.num_elements();
    if (end > setup_.frozen.trained(setup_.table, record)) break;
    const bool decay = tensor.decay && !setup_.frozen.has(t);
    if (!spans.empty() && spans.back().decay == decay) {
      spans.back().end = end;
    } else {
      spans.push_back({tensor.offset, end, decay});
    }
  }
  return spans;
}

void Executor::enqueue_adam(const Task& task, const Lease& lease, Stream& s, Ledger& ledger) {
  const DType dt = setup_.size.dtype;
  const bool with_gradient = task.num_uses > 2;
  const int64_t n = setup_.frozen.trained(setup_.table, task.record);
  const AdamRecord record{.layout = {setup_.adam.state, dt, n},
                          .spans = spans_[task.record],
                          .weights = lease.data(0),
                          .state = lease.data(1)};
  const std::byte* gradient = with_gradient ? lease.data(2) : nullptr;
  const std::vector<Ledger::Step> steps = ledger.apply(task.record);
  if (setup_.size.on_gpu && !task.on_host) {
    enqueue_gpu_adam(record, task, gradient, steps, s);
  } else {
    enqueue_host_adam(record, task, gradient, steps, s);
  }
  const bool trained = !steps.empty() && steps.back().has_gradient;
  if (trained && setup_.adam.correction_speed > 0.0) move_correction(task, record.weights, s);
}

void Executor::enqueue_host_adam(const AdamRecord& record, const Task& task,
                                 const std::byte* gradient, const std::vector<Ledger::Step>& steps,
                                 Stream& s) {
  const double* square_sum = &square_sums_[task.record];
  s.enqueue([this, &s, record, gradient, square_sum, number = task.record, steps] {
    const AdamSettings& settings = setup_.adam;
    for (const Ledger::Step& step : steps) {
      float factor = step.clip_factor;
      if (step.has_gradient && !std::isfinite(*square_sum)) {
        saw_non_finite_ = true;
        return;
      }
      if (step.has_gradient && settings.clip_by_record) {
        factor = clip_factor(std::sqrt(*square_sum), settings.clip_norm);
      }
      const bool finite = adam_update(adam_step(step, number), record,
                                      step.has_gradient ? gradient : nullptr, factor, s.pool());
      if (!finite) weights_overflowed_ = true;
    }
  });
}

// The load is that of the step whose gradient the update has: the next step's is known only when
// its tokens were routed with what this makes.
void Executor::move_correction(const Task& task, void* weights, Stream& s) {
  const int64_t at = setup_.table.offset(task.record, TensorRole::kCorrection);
  if (at < 0) return;
  const int64_t e = setup_.config.num_experts;
  const int32_t* load = load_.data() + setup_.table.records[task.record].layer * e;
  const int64_t total = std::accumulate(load, load + e, int64_t{0});
  if (setup_.size.on_gpu && !task.on_host) {
    int32_t* there = experts_[own(task)].load;
    s.copy(there, load, e * int64_t{sizeof(int32_t)});
    load = there;
  }
  Ops& ops = task.on_host ? cpu_ops() : *setup_.ops[own(task)];
  void* parts = static_cast<std::byte*>(weights) + at * dtype_bytes(setup_.size.dtype);
  ops.move_correction(setup_.size.dtype, load, total, e,
                      static_cast<float>(setup_.adam.correction_speed), parts, s);
}

void Executor::add_load(int64_t layer, Microbatches microbatches, const LayerRouting& routing) {
  int32_t* load = load_.data() + layer * setup_.config.num_experts;
  if (microbatches.first == 0) std::fill_n(load, setup_.config.num_experts, 0);
  for (const auto& counts : routing) {
    for (size_t e = 0; e < counts.size(); ++e) load[e] += static_cast<int32_t>(counts[e]);
  }
}

AdamStep Executor::adam_step(const Ledger::Step& step, int64_t record) const {
  const AdamSettings& settings = setup_.adam;
  return {.lr = step.learning_rate,
          .beta1 = settings.beta1,
          .beta2 = settings.beta2,
          .eps = settings.eps,
          .weight_decay = settings.weight_decay,
          .t = step.t,
          .noise_key = philox(settings.seed, RandomPurpose::kMoments, static_cast<uint64_t>(record),
                              static_cast<uint64_t>(step.t))[0]};
}

// Only for global clipping, whose factors the host knows when it issues the update.
void Executor::enqueue_gpu_adam(const AdamRecord& record, const Task& task,
                                const std::byte* gradient, const std::vector<Ledger::Step>& steps,
                                Stream& s) {
  CHECK(!setup_.adam.clip_by_record);
  int32_t* finite = experts_[own(task)].finite + task.record;
  for (const Ledger::Step& step : steps) {
    gpu_adam(adam_step(step, task.record), record, step.has_gradient ? gradient : nullptr,
             step.clip_factor, finite, s);
    s.copy(&finite_[task.record], finite, sizeof(*finite));
  }
}

bool Executor::weights_overflowed() const {
  return weights_overflowed_ || std::count(finite_.begin(), finite_.end(), 0) > 0;
}

}  // namespace pagoda
