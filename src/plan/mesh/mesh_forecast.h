// Predicts how long a step takes and what share of the machine it uses: the performance estimator
// of Piper (section IV-C) for its pipeline of expert-parallel groups. The schedule of the stages is
// simulated (plan/mesh/pipeline_order.h) instead of the closed form, (M + PP - 1) times the slowest
// stage, which is the same if stages are equal. Planned only: `pagoda plan` simulates it, and no
// run executes it yet. Pure.
//
// Equation (12), corrected: MFU = F_model / (peak G t_compute) x t_compute / t_step, where the
// compute fraction is 1 - (t_comm + t_bubble) / t_step. The printed one has a stray b and leaves
// out the bubble. Nothing overlaps: a stage either computes or sends. Tokens are assumed to choose
// all experts equally often. What a stage computes takes the time that the machine's sheet gives it
// (plan/machine/pass_cost.h).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "plan/machine/machine_sheet.h"
#include "plan/machine/model_cost.h"
#include "plan/mesh/cluster.h"
#include "plan/mesh/pipeline_order.h"
#include "plan/mesh/stage_memory.h"

namespace pagoda {

// How the EP devices of a group share a layer's experts. Either each has some experts, and rows
// travel; or each has a part of every expert, and weights (data-centric) or rows to all
// (model-centric) travel, as in HEXA-MoE (plan/mesh/data_model_centric.h).
enum class ExpertSharing : uint8_t { kRows, kDataCentric, kModelCentric };

// Seconds of a step of the stage that works longest.
struct MeshTimes {
  double compute_s = 0;        // recomputation included
  double communication_s = 0;  // all-to-alls, transfers between stages, gradients of the copies
  double bubble_s = 0;         // waiting for other stages

  double step_s() const { return compute_s + communication_s + bubble_s; }
};

// The time of a stage for one microbatch. Communication: all-to-alls, and the transfer to the next
// stage or, in the backward, to the one before.
struct StageWork {
  double forward_compute_s = 0, forward_communication_s = 0;
  double backward_compute_s = 0, backward_communication_s = 0;
  double gradients_s = 0;  // once a step, after its last backward: rings of the copies

  StageSeconds seconds() const {
    return {forward_compute_s + forward_communication_s,
            backward_compute_s + backward_communication_s};
  }
};

struct MeshForecast {
  MeshTimes times;
  double tokens = 0;               // tokens of a step on all devices
  double model_flops = 0;          // F_model
  double hardware_efficiency = 0;  // F_model / (peak G compute)
  double compute_fraction = 0;     // compute / step
  double mfu = 0;                  // their product
  std::vector<StageWork> stages;
  PipelineRun run;
};

// How to run a mesh and its batch.
struct MeshChoices {
  ExpertSharing sharing = ExpertSharing::kRows;
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  std::vector<uint8_t> recomputed;  // [layers] 1: computed again before its backward; empty: none
};

// Equation (12). kUsage: no device, flops or a peak not above zero, times that are negative or no
// numbers, no time for computing.
Result<MeshForecast> mesh_utilisation(double model_flops, double peak_flops_per_s, int64_t devices,
                                      const MeshTimes& times);

// The work of a stage for a microbatch: the passes through its layers, embedding and head on the
// first and the last stage, and for each MoE layer two all-to-alls in each pass (the cheaper of
// flat and hierarchical). A layer that is computed again has kept its input alone: its backward
// takes longer, and has a third all-to-all, which sends rows to their experts once more. A stage
// that sends does not compute. [PP]. Returns the errors of forecast_mesh. O(layers * nodes * EP +
// PP * devices).
Result<std::vector<StageWork>> stage_works(const ModelCost& model, const Mesh& mesh,
                                           const PipelineBatch& batch,
                                           const ClusterProfile& cluster, const MachineSheet& node,
                                           const MeshChoices& choices = {});

// The step ends when every stage has done its part of the schedule and has then summed its
// gradients in rings: replicated ones among EP x DP devices and those of experts among DP, two
// bytes each. A ring is as slow as its slowest link. kUsage: the errors of check_cluster,
// check_mesh, check_batch and expert_group; kPaper, which no run has; `recomputed` of a wrong
// length. REQUIRES: node.check(). O(stage_works + PP M).
Result<MeshForecast> forecast_mesh(const ModelCost& model, const Mesh& mesh,
                                   const PipelineBatch& batch, const ClusterProfile& cluster,
                                   const MachineSheet& node, const MeshChoices& choices = {});

}  // namespace pagoda
