// Replaces train.micro_batch_tokens = "auto" and train.shards = "auto" by numbers, before anything
// else is done with a configuration.
#pragma once

#include "config/run_config.h"
#include "parallel/rank_group.h"

namespace pagoda {

// Leaves numbers as they are. train.shards becomes that of the run's newest checkpoint with
// `resume`, else RunConfig::sums(). For train.micro_batch_tokens: with `resume` "auto" becomes the
// number of the run's newest checkpoint, whatever the planner would choose now, since other
// microbatches give other bits; otherwise it becomes the planner's choice
// (choose_micro_batch_tokens) for the model in config.model.path on the device of
// config.train.devices (this_machine_sheet), within the run's budgets; the choice is logged. With
// several ranks, which all call it together with rank 0's settings, it is the least of what each
// chooses for its own machine; all else is rank 0's to do, and only its numbers are whole.
// Returns the errors of these functions and of read_model_sizes.
Status choose_micro_batch(RunConfig& config, bool resume, RankGroup& ranks);

// For commands that do not train, where a step is one microbatch: sets train.tokens_per_step to a
// microbatch's tokens. With `any`, which means that nobody asked for a microbatch either, that
// becomes as many whole rows as it has room for, at least one; "auto" becomes one row.
void take_microbatch_as_step(RunConfig& config, bool any);

}  // namespace pagoda
