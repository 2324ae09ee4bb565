// What train.micro_batch_tokens = "auto" becomes before anything else is done with a configuration.
#pragma once

#include "config/run_config.h"

namespace pagoda {

// A number stays. `resume`: that of the run's newest checkpoint, whatever the planner would choose
// by now: other microbatches are other bits. Else the planner's choice for the model in
// config.model.path on what config.train.device will compute on (choose_micro_batch_tokens,
// this_machine_sheet), within the budgets that the run will have; it is logged. The errors of
// those, and of read_model_sizes.
Status choose_micro_batch(RunConfig& config, bool resume);

// Where nothing is trained a microbatch is all that there is of a step: train.tokens_per_step,
// which was not asked for, becomes as long. With `any` the microbatch was not asked for either, and
// becomes as many whole rows as it has room for, at least one; "auto" becomes one.
void take_microbatch_as_step(RunConfig& config, bool any);

}  // namespace pagoda
