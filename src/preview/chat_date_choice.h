// Replaces an empty data.chat_date by a day where the chat template asks for one, before anything
// else is done with a configuration, so that a run says which day its data tell.
#pragma once

#include "config/run_config.h"

namespace pagoda {

// Leaves a day as it is, and an empty one where the template of config.model.path is not run or
// does not ask. With `resume` it becomes that of the run's newest checkpoint, else today. Returns
// the errors of finding that checkpoint; a template that cannot be read is not judged here.
Status choose_chat_date(RunConfig& config, bool resume);

}  // namespace pagoda
