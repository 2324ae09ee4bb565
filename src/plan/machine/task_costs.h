// What the tasks of a run cost on a machine by its sheet: operations over rates, bytes over rates,
// and weights once for each product however many rows it has. What a measured step's tasks cost is
// fitted from them instead (fit_cost). Pure.
//
// The forward of attention and the first product of an MLP are computed again in the backward, as
// the trainer does unless a layer keeps them: an expert's backward is 16 d f operations for a row
// (its gate and up again, two products for each of three), attention's three times its forward's
// projections and 3.5 times its scores.
#pragma once

#include <cstdint>

#include "plan/machine/machine_profile.h"
#include "plan/machine/machine_sheet.h"
#include "plan/machine/model_shape.h"

namespace pagoda {

// How much coarser than the run itself its shape is (plan/memory/coarse_run.h): what was in so many
// tasks is in one, and what each of those costs before it works counts as often.
struct Coarseness {
  int64_t experts = 1;       // neighbours, taken as one
  int64_t microbatches = 1;  // likewise
  int64_t blocks = 1;        // of an expert's rows
  bool operator==(const Coarseness&) const = default;
};

struct StepWork {
  int64_t sequence_len = 0;  // tokens that see each other
  int64_t peers = 1;         // equal devices side by side, of which this is one: rows go all over
  bool state_on_device = false;
  Coarseness coarseness;
  int64_t group_blocks = 1;  // of the run, whose experts in a group have their launches in common
  double dispatches = 1;  // of the run, for each that is a task here; combines likewise
  double kept_share = 0;  // of the layers: those that keep what their backward reads
};

// Of one device with its part of the machine (share_of_device). A CPU's tasks take all its cores.
// REQUIRES: sheet.check(), check_model(model), 0 < sequence_len. Of layers with different widths
// the mean.
MachineProfile task_costs(const MachineSheet& sheet, const ModelShape& model, const RunShape& run,
                          const StepWork& work);

}  // namespace pagoda
