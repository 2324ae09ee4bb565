// What one step takes on two kinds of devices, spread in the strategies that HeterMoE (section 6)
// compares zebra parallelism with. All are simulated from the same few numbers, so that they differ
// by their schedules only. Planned only: `pagoda plan` simulates it, and no run executes it yet.
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/zebra/zebra.h"

namespace pagoda {

// Devices of a kind, and what one of them takes by itself for all tokens of the step: work divides
// evenly over devices and microbatches.
struct DeviceKind {
  int32_t devices = 1;
  PassSeconds attention;  // of one layer, all but its experts
  PassSeconds experts;    // of one layer, all of them
  double head_s = 0;
  int32_t most_layers = 0;  // whole layers that one device can hold (pipelines); 0: any number
};

struct HeterogeneousStep {
  int32_t layers = 1;         // all with experts
  DeviceKind faster, slower;  // zebra: attention devices, expert devices
  // Of a layer's dispatch, and of its combine: tokens, times experts of a token, times the bytes of
  // a row.
  double exchange_bytes = 0;
  double boundary_bytes = 0;    // between two stages of a pipeline: tokens times the bytes of a row
  double link_bytes_per_s = 1;  // of a device, each way
  double latency_s = 0;         // of a transfer of any kind
  // Data parallelism: as many groups of these devices, each with as many tokens. Gradients are
  // summed over all devices with the same weights, each layer's as soon as they are complete, in
  // rings (2 (k - 1) / k of the bytes each way for k devices) that slow nothing else.
  int32_t groups = 1;
  double attention_gradient_bytes = 0;  // of a layer
  double expert_gradient_bytes = 0;     // of a layer, all its experts
};

// The step's zebra group: an all-to-all takes what the side with fewer devices takes.
Result<ZebraGroup> zebra_group(const HeterogeneousStep& step, int32_t microbatches,
                               int32_t experts);

// DistEP: attention on the faster devices, experts on the slower, one after the other, transfers
// and experts in `parts` of the tokens that overlap. O(layers parts).
Result<double> disaggregated_step_s(const HeterogeneousStep& step, int32_t parts);

// EP: everything on every device in equal shares, so that all wait for the slowest at each
// all-to-all, which moves (E - 1) / E of the rows of E devices. O(layers parts).
Result<double> expert_parallel_step_s(const HeterogeneousStep& step, int32_t parts);

// The same, with what each stream does when.
enum class StreamUse : uint8_t { kComputing, kTransfer, kSums };
struct TimedStreams {
  struct Stream {
    std::string name;
    StreamUse use = StreamUse::kComputing;
  };
  std::vector<Stream> streams;
  std::vector<StreamTask> tasks;
  StreamTimes times;
};
Result<TimedStreams> disaggregated_streams(const HeterogeneousStep& step, int32_t parts);
Result<TimedStreams> expert_parallel_streams(const HeterogeneousStep& step, int32_t parts);

struct PartedStep {
  int32_t parts = 1;
  double step_s = 0;
};
// The best of 1 to most_parts; of equal ones the fewest.
Result<PartedStep> best_disaggregated(const HeterogeneousStep& step, int32_t most_parts);
Result<PartedStep> best_expert_parallel(const HeterogeneousStep& step, int32_t most_parts);

// EP (Ideal): EP on each kind by itself, with the parts best for it; the throughputs added, and
// nothing summed between the kinds.
Result<double> ideal_step_s(const HeterogeneousStep& step, int32_t most_parts);

struct PipelineStep {
  int32_t pipelines = 1;              // gcd of the two numbers of devices; each has its tokens
  std::vector<int32_t> stage_layers;  // [stage], the faster devices first
  double step_s = 0;
  TimedStreams streams;  // of one of the pipelines
};
// Pipelines of whole layers, a device a stage, layers given out so that the slowest stage is as
// fast as can be; all forwards, then all backwards (with equal stages as long as 1F1B, which holds
// fewer activations). O(layers stages + stages microbatches). kDoesNotFit: the stages cannot hold
// the layers.
Result<PipelineStep> pipeline_step(const HeterogeneousStep& step, int32_t microbatches);

}  // namespace pagoda
