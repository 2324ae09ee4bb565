#include "plan/zebra/heterogeneous_step.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "plan/refusals.h"

namespace pagoda {
namespace {

constexpr Refusal invalid_step("step on two kinds of devices");

bool is_work(const PassSeconds& pass) {
  return is_amount(pass.forward_s) && is_amount(pass.backward_s) && pass.forward_s > 0 &&
         pass.backward_s > 0;
}

Status check_kind(const char* name, const DeviceKind& kind) {
  if (kind.devices < 1) {
    return invalid_step(strf("%d %s devices; give at least one", kind.devices, name));
  }
  const bool once = is_amount(kind.attention_once.both_s()) &&
                    is_amount(kind.experts_once.both_s()) && is_amount(kind.head_once_s);
  if (!is_work(kind.attention) || !is_work(kind.experts) || !is_amount(kind.head_s) || !once) {
    return invalid_step(
        strf("%s devices: attention takes %g and %g s, experts %g and %g s, the head "
             "%g s, which no device does; measure them again",
             name, kind.attention.forward_s, kind.attention.backward_s, kind.experts.forward_s,
             kind.experts.backward_s, kind.head_s));
  }
  if (kind.most_layers < 0) {
    return invalid_step(
        strf("%s devices hold %d layers; give a count, 0 for any", name, kind.most_layers));
  }
  return Status();
}

Status check_step(const HeterogeneousStep& step) {
  if (step.layers < 1) return invalid_step(strf("%d layers; give at least one", step.layers));
  RETURN_IF_ERROR(check_kind("faster", step.faster));
  RETURN_IF_ERROR(check_kind("slower", step.slower));
  if (!is_amount(step.link_bytes_per_s) || step.link_bytes_per_s == 0 ||
      !is_amount(step.exchange_bytes) || !is_amount(step.boundary_bytes) ||
      !is_amount(step.latency_s)) {
    return invalid_step(
        strf("%g and %g bytes over links of %g bytes/s with %g s of latency; give what "
             "the network has",
             step.exchange_bytes, step.boundary_bytes, step.link_bytes_per_s, step.latency_s));
  }
  if (step.groups < 1 || !is_amount(step.attention_gradient_bytes) ||
      !is_amount(step.expert_gradient_bytes)) {
    return invalid_step(
        strf("%d groups with gradients of %g and %g bytes a layer; give at least one, "
             "and what the model has",
             step.groups, step.attention_gradient_bytes, step.expert_gradient_bytes));
  }
  return Status();
}

Status check_parts(int32_t parts) {
  if (parts >= 1) return Status();
  return invalid_step(strf("an all-to-all in %d parts; give at least one", parts));
}

// A kind's part of the step, in seconds of one device.
struct Share {
  int32_t stream = 0;
  PassSeconds attention;  // zeros: not here
  PassSeconds experts;    // of one of the parts; zeros: not here
  double head_s = 0;
};

constexpr int32_t kNewer = 0, kOlder = 1, kToExperts = 2, kToAttention = 3, kSums = 4,
                  kOlderSums = 5;

// The sums of a layer's gradients over devices.
struct Sums {
  double attention_s = 0, experts_s = 0;
  int32_t experts_stream = kSums;
};

double transfer_s(const HeterogeneousStep& step, double bytes) {
  return step.latency_s + bytes / step.link_bytes_per_s;
}

double sum_s(const HeterogeneousStep& step, double bytes, int32_t devices) {
  if (devices == 1 || bytes == 0) return 0;
  return transfer_s(step, 2 * bytes * (devices - 1) / devices);
}

// A microbatch's times on a device, if `devices` have equal parts of each of `microbatches`.
PassSeconds attention_s(const DeviceKind& kind, int32_t devices, int32_t microbatches) {
  return kind.attention / devices / microbatches + kind.attention_once;
}

PassSeconds experts_s(const DeviceKind& kind, int32_t devices, int32_t microbatches) {
  return (kind.experts / microbatches + kind.experts_once) / devices;
}

double head_s(const DeviceKind& kind, int32_t devices, int32_t microbatches) {
  return kind.head_s / devices / microbatches + kind.head_once_s;
}

// A step in lockstep: each layer has attention of all tokens, an all-to-all, experts, and an
// all-to-all.
class Lockstep {
 public:
  // `back`: the stream of returning transfers; kToExperts: both directions share the rate of a
  // device. `again`: rows go to their experts once more in the backward, ahead of their gradients.
  Lockstep(std::vector<Share> shares, double exchange_s, int32_t back, int32_t parts, Sums sums,
           bool again)
      : shares_(std::move(shares)),
        exchange_s_(exchange_s),
        back_(back),
        parts_(parts),
        sums_(sums),
        again_(again) {}

  TimedStreams run(int32_t layers);

 private:
  void attention(bool backward);
  void head();
  void experts(bool backward);
  int32_t add(int32_t stream, double seconds, std::array<int32_t, 3> after);

  std::vector<Share> shares_;  // at most two
  double exchange_s_;          // of a part
  int32_t back_;
  int32_t parts_;
  Sums sums_;
  bool again_;
  std::vector<StreamTask> tasks_;
  std::array<int32_t, 3> before_ = {-1, -1, -1};  // what the next layer waits for
};

int32_t Lockstep::add(int32_t stream, double seconds, std::array<int32_t, 3> after) {
  tasks_.push_back({stream, seconds, after});
  return static_cast<int32_t>(tasks_.size()) - 1;
}

void Lockstep::attention(bool backward) {
  std::array<int32_t, 3> done = {-1, -1, -1};
  for (size_t s = 0; s < shares_.size(); ++s) {
    const PassSeconds& pass = shares_[s].attention;
    const double seconds = backward ? pass.backward_s : pass.forward_s;
    if (seconds > 0) done[s] = add(shares_[s].stream, seconds, before_);
  }
  before_ = done;
}

void Lockstep::head() {
  std::array<int32_t, 3> done = {-1, -1, -1};
  for (size_t s = 0; s < shares_.size(); ++s) {
    if (shares_[s].attention.forward_s > 0) {
      done[s] = add(shares_[s].stream, shares_[s].head_s, before_);
    }
  }
  before_ = done;
}

void Lockstep::experts(bool backward) {
  std::vector<int32_t> sent;
  for (int32_t q = 0; q < parts_; ++q) {
    if (backward && again_) add(kToExperts, exchange_s_, before_);
    sent.push_back(add(kToExperts, exchange_s_, before_));
  }
  int32_t last = -1;
  std::array<int32_t, 3> done = {-1, -1, -1};
  for (int32_t q = 0; q < parts_; ++q) {
    done = {-1, -1, -1};
    for (size_t s = 0; s < shares_.size(); ++s) {
      const PassSeconds& pass = shares_[s].experts;
      const double seconds = backward ? pass.backward_s : pass.forward_s;
      if (seconds > 0) {
        done[s] = add(shares_[s].stream, seconds, {sent[static_cast<size_t>(q)], -1, -1});
      }
    }
    last = add(back_, exchange_s_, done);
  }
  if (backward && sums_.experts_s > 0) add(sums_.experts_stream, sums_.experts_s, done);
  before_ = {last, -1, -1};
}

TimedStreams Lockstep::run(int32_t layers) {
  for (int32_t i = 0; i < layers; ++i) {
    attention(false);
    experts(false);
  }
  head();
  for (int32_t i = 0; i < layers; ++i) {
    experts(true);
    attention(true);
    if (sums_.attention_s > 0) add(kSums, sums_.attention_s, before_);
  }
  TimedStreams run;
  run.streams = {{"faster devices", StreamUse::kComputing},
                 {"slower devices", StreamUse::kComputing},
                 {back_ == kToExperts ? "all-to-alls" : "to experts", StreamUse::kTransfer},
                 {"from experts", StreamUse::kTransfer},
                 {"sums of gradients", StreamUse::kSums},
                 {"sums of experts' gradients", StreamUse::kSums}};
  run.times = time_streams(tasks_, static_cast<int>(run.streams.size()));
  run.tasks = std::move(tasks_);
  return run;
}

// A step with everything on each of `devices` devices of the given kinds.
TimedStreams spread_step(const HeterogeneousStep& step, const std::vector<const DeviceKind*>& kinds,
                         int32_t devices, int32_t parts) {
  std::vector<Share> shares;
  for (const DeviceKind* kind : kinds) {
    shares.push_back({kind == &step.faster ? kNewer : kOlder, attention_s(*kind, devices, 1),
                      experts_s(*kind, devices, parts), head_s(*kind, devices, 1)});
  }
  // One device sends nothing.
  const double bytes = step.exchange_bytes / devices * (devices - 1) / devices / parts;
  const double exchange_s = devices == 1 ? 0 : transfer_s(step, bytes);
  const Sums sums = {sum_s(step, step.attention_gradient_bytes, devices * step.groups),
                     sum_s(step, step.expert_gradient_bytes / devices, step.groups), kSums};
  return Lockstep(std::move(shares), exchange_s, kToExperts, parts, sums, true).run(step.layers);
}

template <typename StepSeconds>
Result<PartedStep> best_of_parts(int32_t most_parts, const StepSeconds& step_s) {
  RETURN_IF_ERROR(check_parts(most_parts));
  PartedStep best;
  for (int32_t parts = 1; parts <= most_parts; ++parts) {
    ASSIGN_OR_RETURN(const double seconds, step_s(parts));
    if (parts == 1 || seconds < best.step_s) best = {parts, seconds};
  }
  return best;
}

struct Stage {
  PassSeconds pass;  // of a microbatch
  double head_s = 0;
  double sum_s = 0;  // of its gradients, once
};

// Gives one layer after the other to the stage that has all its layers done soonest. `layer`: each
// stage with one layer.
Result<std::vector<int32_t>> divide_layers(const HeterogeneousStep& step,
                                           const std::vector<const DeviceKind*>& stages,
                                           const std::vector<Stage>& layer) {
  std::vector<int32_t> layers(stages.size(), 0);
  for (int32_t i = 0; i < step.layers; ++i) {
    size_t chosen = stages.size();
    double least_s = 0;
    for (size_t s = 0; s < stages.size(); ++s) {
      const DeviceKind& kind = *stages[s];
      if (kind.most_layers > 0 && layers[s] >= kind.most_layers) continue;
      const double stage_s = layer[s].pass.both_s() * (layers[s] + 1) + layer[s].head_s;
      if (chosen == stages.size() || stage_s < least_s) {
        chosen = s;
        least_s = stage_s;
      }
    }
    if (chosen == stages.size()) {
      return Status(Exit::kDoesNotFit,
                    strf("pipeline of %zu stages: they hold %d layers of %d; nothing was placed; "
                         "split layers too, or add devices",
                         stages.size(), i, step.layers));
    }
    ++layers[chosen];
  }
  return layers;
}

TimedStreams pipelined(const std::vector<Stage>& stages, double boundary_s, int32_t microbatches) {
  const auto count = static_cast<int32_t>(stages.size());
  std::vector<StreamTask> tasks;
  const auto add = [&](int32_t stream, double seconds, int32_t after) {
    tasks.push_back({stream, seconds, {after, -1, -1}});
    return static_cast<int32_t>(tasks.size()) - 1;
  };
  std::vector<int32_t> turned;
  for (int32_t j = 0; j < microbatches; ++j) {
    int32_t before = -1;
    for (int32_t s = 0; s < count; ++s) {
      const Stage& stage = stages[static_cast<size_t>(s)];
      before = add(s, stage.pass.forward_s, before);
      if (s + 1 < count) before = add(count + s, boundary_s, before);
    }
    turned.push_back(before);
  }
  for (int32_t j = 0; j < microbatches; ++j) {
    int32_t before = turned[static_cast<size_t>(j)];
    for (int32_t s = count - 1; s >= 0; --s) {
      const Stage& stage = stages[static_cast<size_t>(s)];
      before = add(s, stage.head_s + stage.pass.backward_s, before);
      const bool complete = j + 1 == microbatches;
      if (complete && stage.sum_s > 0) add(3 * count + s, stage.sum_s, before);
      if (s > 0) before = add(2 * count + s, boundary_s, before);
    }
  }
  TimedStreams run;
  const std::pair<const char*, StreamUse> uses[] = {{"", StreamUse::kComputing},
                                                    {", onward", StreamUse::kTransfer},
                                                    {", back", StreamUse::kTransfer},
                                                    {", sums", StreamUse::kSums}};
  for (const auto& [what, use] : uses) {
    for (int32_t s = 0; s < count; ++s) run.streams.push_back({strf("stage %d%s", s, what), use});
  }
  run.times = time_streams(tasks, 4 * count);
  run.tasks = std::move(tasks);
  return run;
}

}  // namespace

Result<ZebraGroup> zebra_group(const HeterogeneousStep& step, int32_t microbatches,
                               int32_t experts) {
  RETURN_IF_ERROR(check_step(step));
  ZebraGroup group;
  group.layers = step.layers;
  group.microbatches = microbatches;
  group.attention_devices = step.faster.devices;
  group.expert_devices = step.slower.devices;
  group.experts = experts;
  RETURN_IF_ERROR(check_zebra_counts(group));
  ZebraTimes& times = group.times;
  times.attention = attention_s(step.faster, step.faster.devices, microbatches);
  times.expert = experts_s(step.slower, step.slower.devices, microbatches);
  times.offloaded_expert = experts_s(step.faster, step.slower.devices, microbatches);
  times.head_s = head_s(step.faster, step.faster.devices, microbatches);
  const int32_t fewer = std::min(step.faster.devices, step.slower.devices);
  const double exchange_s = transfer_s(step, step.exchange_bytes / fewer / microbatches);
  times.dispatch = {exchange_s, exchange_s};
  times.combine = times.dispatch;
  times.attention_reduce_s =
      sum_s(step, step.attention_gradient_bytes, step.faster.devices * step.groups);
  times.expert_reduce_s =
      sum_s(step, step.expert_gradient_bytes / step.slower.devices, step.groups);
  return group;
}

Result<TimedStreams> disaggregated_streams(const HeterogeneousStep& step, int32_t parts) {
  RETURN_IF_ERROR(check_step(step));
  RETURN_IF_ERROR(check_parts(parts));
  const int32_t m = step.faster.devices, n = step.slower.devices;
  std::vector<Share> shares = {
      {kNewer, attention_s(step.faster, m, 1), {}, head_s(step.faster, m, 1)},
      {kOlder, {}, experts_s(step.slower, n, parts), 0}};
  const double exchange_s = transfer_s(step, step.exchange_bytes / std::min(m, n) / parts);
  const Sums sums = {sum_s(step, step.attention_gradient_bytes, m * step.groups),
                     sum_s(step, step.expert_gradient_bytes / n, step.groups), kOlderSums};
  return Lockstep(std::move(shares), exchange_s, kToAttention, parts, sums, false).run(step.layers);
}

Result<TimedStreams> expert_parallel_streams(const HeterogeneousStep& step, int32_t parts) {
  RETURN_IF_ERROR(check_step(step));
  RETURN_IF_ERROR(check_parts(parts));
  const int32_t devices = step.faster.devices + step.slower.devices;
  return spread_step(step, {&step.faster, &step.slower}, devices, parts);
}

Result<double> disaggregated_step_s(const HeterogeneousStep& step, int32_t parts) {
  ASSIGN_OR_RETURN(const TimedStreams run, disaggregated_streams(step, parts));
  return run.times.makespan_s;
}

Result<double> expert_parallel_step_s(const HeterogeneousStep& step, int32_t parts) {
  ASSIGN_OR_RETURN(const TimedStreams run, expert_parallel_streams(step, parts));
  return run.times.makespan_s;
}

Result<PartedStep> best_disaggregated(const HeterogeneousStep& step, int32_t most_parts) {
  return best_of_parts(most_parts,
                       [&](int32_t parts) { return disaggregated_step_s(step, parts); });
}

Result<PartedStep> best_expert_parallel(const HeterogeneousStep& step, int32_t most_parts) {
  return best_of_parts(most_parts,
                       [&](int32_t parts) { return expert_parallel_step_s(step, parts); });
}

Result<double> ideal_step_s(const HeterogeneousStep& step, int32_t most_parts) {
  RETURN_IF_ERROR(check_step(step));
  double steps_per_s = 0;
  for (const DeviceKind* kind : {&step.faster, &step.slower}) {
    const auto alone_s = [&](int32_t parts) -> Result<double> {
      return spread_step(step, {kind}, kind->devices, parts).times.makespan_s;
    };
    ASSIGN_OR_RETURN(const PartedStep best, best_of_parts(most_parts, alone_s));
    steps_per_s += 1 / best.step_s;
  }
  return 1 / steps_per_s;
}

Result<PipelineStep> pipeline_step(const HeterogeneousStep& step, int32_t microbatches) {
  RETURN_IF_ERROR(check_step(step));
  if (microbatches < 1) {
    return invalid_step(strf("%d microbatches; give at least one", microbatches));
  }
  PipelineStep pipeline;
  pipeline.pipelines = std::gcd(step.faster.devices, step.slower.devices);
  std::vector<const DeviceKind*> kinds(
      static_cast<size_t>(step.faster.devices / pipeline.pipelines), &step.faster);
  kinds.insert(kinds.end(), static_cast<size_t>(step.slower.devices / pipeline.pipelines),
               &step.slower);
  std::vector<Stage> stages;  // with one layer
  for (const DeviceKind* kind : kinds) {
    stages.push_back({attention_s(*kind, pipeline.pipelines, microbatches) +
                      kind->experts / pipeline.pipelines / microbatches + kind->experts_once});
  }
  stages.back().head_s = head_s(*kinds.back(), pipeline.pipelines, microbatches);
  ASSIGN_OR_RETURN(pipeline.stage_layers, divide_layers(step, kinds, stages));
  for (size_t s = 0; s < kinds.size(); ++s) {
    stages[s].pass = stages[s].pass * pipeline.stage_layers[s];
    const double layer_bytes = step.attention_gradient_bytes + step.expert_gradient_bytes;
    stages[s].sum_s =
        sum_s(step, layer_bytes * pipeline.stage_layers[s], pipeline.pipelines * step.groups);
  }
  const double share = 1.0 / pipeline.pipelines / microbatches;
  const double boundary_s = transfer_s(step, step.boundary_bytes * share);
  pipeline.streams = pipelined(stages, boundary_s, microbatches);
  pipeline.step_s = pipeline.streams.times.makespan_s;
  return pipeline;
}

}  // namespace pagoda
