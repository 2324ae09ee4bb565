// Memory of a device that trains one stage of a pipeline, its experts divided among EP devices:
// equations (1) to (5) and constraint (11) of Piper (section III-A), over any layers
// (plan/machine/model_cost.h). (3) and (4) are stage_memory with the two schedules; (2) is either
// of them with one stage and one microbatch; (1) is (2) with one device; (5) is stage 0 less stage
// PP - 1. Pure.
//
// The printed equations mix two readings of b: attention's activations as if every device brought b
// sequences, experts' as if the EP devices together did. SequencesOf says which one is meant.
// Tokens are assumed to choose all experts equally often.
//
// Copies (DP) divide nothing. Memory that is allocated for the time of one layer only, logits of
// the head, and the framework's own memory are not counted.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/machine/model_cost.h"
#include "plan/mesh/cluster.h"
#include "plan/mesh/pipeline_order.h"

namespace pagoda {

enum class SequencesOf : uint8_t {
  kRank,   // each device of an expert-parallel group brings b sequences of its own
  kGroup,  // the EP devices of a group bring b sequences together
  // The printed equations, with attention by kRank and experts by kGroup. No run is like that; for
  // the paper's figures.
  kPaper,
};

struct PipelineBatch {
  int64_t sequence_len = 0;          // s, tokens
  int64_t microbatch_sequences = 0;  // b / M
  int64_t microbatches = 0;          // M, microbatches of a step
  SequencesOf of = SequencesOf::kRank;
};

struct MemoryOptions {
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  bool flash_attention = true;
  // Bytes on the device for each parameter: 16 in mixed precision (2 of weights, 2 of gradients, 4
  // of fp32 weights, 8 of moments); less if state is stored shorter or elsewhere.
  double replicated_bytes = 16;
  double expert_bytes = 16;
};

// Parameters on each device of a stage.
struct StageParameters {
  int64_t replicated = 0;
  int64_t experts = 0;
};
// REQUIRES: EP divides the experts, 0 <= stage < PP <= the number of layers. O(layers / PP).
StageParameters stage_parameters(const ModelCost& model, const Mesh& mesh, int64_t stage);

struct StageMemory {
  StageParameters parameters;
  int64_t parameter_bytes = 0;  // parameters with gradients and state
  int64_t in_flight = 0;        // the most microbatches at once
  // Activations of one microbatch: all, those of each of the stage's layers, and those of a layer's
  // input, which a layer that is computed again has to keep.
  int64_t microbatch_bytes = 0;
  std::vector<int64_t> layer_bytes;
  int64_t input_bytes = 0;

  int64_t peak_bytes() const { return parameter_bytes + in_flight * microbatch_bytes; }
};

// kUsage: degrees or counts that are not positive, EP that does not divide the sequences of kGroup.
Status check_batch(const PipelineBatch& batch, const Mesh& mesh);

// The memory of each device of stage `stage`; layers by stage_layers. Returns the errors of
// check_batch, and kUsage: more stages than layers, EP that does not divide the experts, bytes of a
// parameter that are negative or no number, more bytes than can be counted. O(layers).
Result<StageMemory> stage_memory(const ModelCost& model, const Mesh& mesh,
                                 const PipelineBatch& batch, const MemoryOptions& options,
                                 int64_t stage);

// The stage that needs most memory, the first among equals. (With equal layers that is stage 0.)
struct FullestStage {
  int64_t stage = 0;
  int64_t peak_bytes = 0;
};
Result<FullestStage> fullest_stage(const ModelCost& model, const Mesh& mesh,
                                   const PipelineBatch& batch, const MemoryOptions& options);

}  // namespace pagoda
