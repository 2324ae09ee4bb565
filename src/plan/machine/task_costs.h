// The costs of a run's tasks on a machine, by its sheet (plan/machine/work_cost.h). The costs of a
// measured step's tasks are fitted to samples instead (fit_cost). Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/machine/machine_profile.h"
#include "plan/machine/machine_sheet.h"
#include "plan/machine/model_shape.h"
#include "plan/step/assignment.h"

namespace pagoda {

// How much coarser than the run itself its shape is (plan/memory/coarse_run.h). One task does the
// work of several; the fixed cost of each of those still counts.
struct Coarseness {
  int64_t experts = 1;       // neighbouring experts that are taken as one
  int64_t microbatches = 1;  // neighbouring microbatches that are taken as one
  int64_t blocks = 1;        // blocks of an expert's rows that are taken as one
  bool operator==(const Coarseness&) const = default;
};

struct CostSettings {
  int64_t sequence_len = 0;  // tokens that see each other
  bool state_on_device = false;
  Coarseness coarseness;
  int64_t group_blocks = 1;  // row blocks in a group of the run; its experts share launches
  double dispatches = 1;  // dispatches of the run for each dispatch task here; combines too
  double messages = 1;    // transfers of the run between devices for each one here
  double kept_share = 0;  // share of layers that save what their backward reads
  // Devices that may be unlike; empty: a CPU that takes all cores, or GPUs that are alike.
  std::vector<DeviceSetup> devices = {};
};

// The profile of the machine's devices, all of which are alike but for those of `work`. A
// CPU's tasks take all its cores, but where several devices have threads of their own. REQUIRES:
// sheet.check(), check_model(model), 0 < sequence_len.
MachineProfile task_costs(const MachineSheet& sheet, const ModelShape& model, const RunShape& run,
                          const CostSettings& work);

// What a device of these costs does in a second, forward and backward: tokens of a microbatch that
// it attends to in a layer, and rows of experts, of which each has an even share of a microbatch's.
// REQUIRES of row_speed: the run has experts.
double token_speed(const TaskCosts& costs, const RunShape& run);
double row_speed(const TaskCosts& costs, const RunShape& run);

}  // namespace pagoda
