// Makes a random batch to take a step on.
#pragma once

#include <random>

#include "train/step_runner.h"

namespace pagoda {

// Few tokens are frequent, so that experts' loads differ; one document a microbatch.
StepBatch random_batch(const Session& session, std::mt19937& random);

}  // namespace pagoda
