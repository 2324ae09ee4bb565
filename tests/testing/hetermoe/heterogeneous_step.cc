#include "tests/testing/hetermoe/heterogeneous_step.h"

#include <algorithm>
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

// A step whose layers have attention of all tokens, then their experts.
TimedStreams in_lockstep(PaperTimes times, int32_t layers) {
  RunShape shape;
  shape.num_layers = layers;
  shape.is_moe.assign(static_cast<size_t>(layers), 1);
  shape.microbatches = 1;
  TimedStreams run;
  run.streams = {{"faster devices", StreamUse::kComputing},
                 {"slower devices", StreamUse::kComputing},
                 {times.one_wire ? "all-to-alls" : "to experts", StreamUse::kTransfer},
                 {"from experts", StreamUse::kTransfer},
                 {"sums of gradients", StreamUse::kSums},
                 {"sums of experts' gradients", StreamUse::kSums}};
  run.tasks = time_on_paper(layer_major(shape, PassExtent::kStep), std::move(times)).queue;
  run.times = time_streams(run.tasks, kPaperStreams);
  return run;
}

PassSeconds both_ways(double seconds) { return {seconds, seconds}; }

// A step with everything on each of `devices` devices: of both kinds, or of one.
TimedStreams spread_step(const HeterogeneousStep& step, bool faster, bool slower, int32_t devices,
                         int32_t parts) {
  const auto of = [&](const DeviceKind& kind) {
    return ChunkTimes::Kind{attention_s(kind, devices, 1), experts_s(kind, devices, parts),
                            head_s(kind, devices, 1)};
  };
  // One device sends nothing.
  const double bytes = step.exchange_bytes / devices * (devices - 1) / devices / parts;
  ChunkTimes chunk;
  if (faster) chunk.faster = of(step.faster);
  if (slower) chunk.slower = of(step.slower);
  chunk.to_experts = chunk.to_attention = both_ways(devices == 1 ? 0 : transfer_s(step, bytes));
  PaperTimes times;
  times.of = [chunk](int32_t, int32_t) { return chunk; };
  times.parts = parts;
  times.send_again = times.one_wire = true;
  times.attention_sum_s = sum_s(step, step.attention_gradient_bytes, devices * step.groups);
  times.experts_sum_s = sum_s(step, step.expert_gradient_bytes / devices, step.groups);
  times.experts_sums = PaperStream::kSums;
  return in_lockstep(std::move(times), step.layers);
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
  if (exchange_s > 0) times.transfer_fixed = step.latency_s / exchange_s;
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
  ChunkTimes chunk;
  chunk.faster.attention = attention_s(step.faster, m, 1);
  chunk.faster.head_s = head_s(step.faster, m, 1);
  chunk.slower.experts = experts_s(step.slower, n, parts);
  chunk.to_experts = chunk.to_attention =
      both_ways(transfer_s(step, step.exchange_bytes / std::min(m, n) / parts));
  PaperTimes times;
  times.of = [chunk](int32_t, int32_t) { return chunk; };
  times.parts = parts;
  times.attention_sum_s = sum_s(step, step.attention_gradient_bytes, m * step.groups);
  times.experts_sum_s = sum_s(step, step.expert_gradient_bytes / n, step.groups);
  return in_lockstep(std::move(times), step.layers);
}

Result<TimedStreams> expert_parallel_streams(const HeterogeneousStep& step, int32_t parts) {
  RETURN_IF_ERROR(check_step(step));
  RETURN_IF_ERROR(check_parts(parts));
  return spread_step(step, true, true, step.faster.devices + step.slower.devices, parts);
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
      const bool faster = kind == &step.faster;
      return spread_step(step, faster, !faster, kind->devices, parts).times.makespan_s;
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
