// The time of one step on two kinds of devices in the strategies that HeterMoE (section 6) compares
// zebra parallelism with. All are timed from the same few numbers, so that they differ only by
// their actions: EP and DistEP are layer_major() (plan/step/action.h), as runs execute it, with
// experts on all devices or on those that do not attend. What a run takes is the simulator's to say
// (plan/forecast/simulator.h); this is for the settings of the paper's figures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "tests/testing/hetermoe/zebra.h"

namespace pagoda {

// The devices of a kind, and the times of one of them by itself for all tokens of the step. Work
// divides evenly over devices and microbatches.
struct DeviceKind {
  int32_t devices = 1;
  PassSeconds attention;  // one layer without its experts
  PassSeconds experts;    // all experts of one layer
  double head_s = 0;
  int32_t most_layers = 0;  // whole layers that one device can hold (pipelines); 0: any number
  // The times of weights that are read and kernels that are launched, for each microbatch whatever
  // its tokens. Those of experts divide over devices that have experts of their own.
  PassSeconds attention_once = {}, experts_once = {};
  double head_once_s = 0;
};

struct HeterogeneousStep {
  int32_t layers = 1;         // all with experts
  DeviceKind faster, slower;  // zebra: attention devices, expert devices
  // Bytes of a layer's dispatch, and again of its combine: tokens, times experts of a token, times
  // the bytes of a row.
  double exchange_bytes = 0;
  double boundary_bytes = 0;    // between two stages of a pipeline: tokens times the bytes of a row
  double link_bytes_per_s = 1;  // rate of a device, each way
  double latency_s = 0;         // latency of any transfer
  // Data parallelism: the number of groups of these devices, each with the same number of tokens.
  // Gradients are summed over all devices with the same weights, each layer's as soon as they are
  // complete, in rings (2 (k - 1) / k of the bytes each way for k devices) that slow nothing else.
  int32_t groups = 1;
  double attention_gradient_bytes = 0;  // of a layer
  double expert_gradient_bytes = 0;     // gradients of all experts of a layer
};

// The step's zebra group. An all-to-all takes the time of the side with fewer devices.
Result<ZebraGroup> zebra_group(const HeterogeneousStep& step, int32_t microbatches,
                               int32_t experts);

// DistEP: attention on the faster devices and experts on the slower ones, one after the other.
// Transfers and experts overlap in `parts` of the tokens. Expert devices keep the rows that came.
// O(layers parts).
Result<double> disaggregated_step_s(const HeterogeneousStep& step, int32_t parts);

// EP: everything on every device in equal shares, so that all wait for the slowest one at each
// all-to-all, which moves (E - 1) / E of the rows of E devices. Rows are not kept: the backward
// sends them once more. O(layers parts).
Result<double> expert_parallel_step_s(const HeterogeneousStep& step, int32_t parts);

// The same steps with the tasks of each stream.
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
// The best of 1 to most_parts parts; the fewest among equals.
Result<PartedStep> best_disaggregated(const HeterogeneousStep& step, int32_t most_parts);
Result<PartedStep> best_expert_parallel(const HeterogeneousStep& step, int32_t most_parts);

// EP (Ideal): EP on each kind by itself with its best number of parts. The throughputs are added,
// and no gradients are summed between the kinds.
Result<double> ideal_step_s(const HeterogeneousStep& step, int32_t most_parts);

struct PipelineStep {
  int32_t pipelines = 1;              // gcd of the two numbers of devices; each has its own tokens
  std::vector<int32_t> stage_layers;  // [stage], the faster devices first
  double step_s = 0;
  TimedStreams streams;  // streams of one of the pipelines
};
// Pipelines of whole layers with one device for each stage. Layers are divided so that the slowest
// stage is as fast as possible. All forwards come first, then all backwards (with equal stages that
// takes as long as 1F1B, which holds fewer activations). O(layers stages + stages microbatches).
// kDoesNotFit: the stages cannot hold the layers.
Result<PipelineStep> pipeline_step(const HeterogeneousStep& step, int32_t microbatches);

}  // namespace pagoda
