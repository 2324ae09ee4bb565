// Ways to train a model on a cluster, best first: every mesh of pipeline x experts x data that
// constraints (7) to (10) allow and every number of microbatches, pruned by memory (11) and ranked
// by the estimated time of a step, which for the same step is to rank by MFU (Piper, sections
// III-C, III-D and IV-C). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/stage_memory.h"
#include "plan/step_estimate.h"

namespace pagoda {

struct StepDemand {
  int64_t sequence_len = 0;  // tokens
  int64_t sequences = 0;     // of a step, all devices together
};

struct RankedMesh {
  Mesh mesh;
  PipelineBatch batch;  // by rank
  FullestStage fullest;
  StepEstimate estimate;
};

// Equal times: the smaller PP, then EP, then fewer microbatches. Left out are meshes whose EP x DP
// do not divide the sequences, and groups of EP that the nodes cannot hold alike (expert_group).
// kDoesNotFit naming the least memory that any would take when none fits; kUsage when none divides
// the sequences, and the errors of check_cluster, estimate_step and fullest_stage.
// O(meshes * divisors of the sequences) estimates and memory checks.
Result<std::vector<RankedMesh>> ranked_meshes(const ModelCost& model,
                                              const ClusterProfile& cluster,
                                              const DeviceRates& rates,
                                              const MemoryOptions& memory,
                                              const StepDemand& demand);

}  // namespace pagoda
