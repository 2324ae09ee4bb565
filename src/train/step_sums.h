// The sums of a step over all ranks: each rank has those of its microbatches and records, one
// exchange tells them to all, and everybody adds them up in the same order. So loss, norm, and
// whether the step is skipped, are the same bits everywhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/step/run_shape.h"
#include "train/session.h"

namespace pagoda {

struct StepSums {
  std::vector<double> loss_sums;    // [microbatch]
  std::vector<double> square_sums;  // of gradients, in the order of `touched`
};

// The sums of a pass that all ranks have ended, `mine` being how this one did; an error of any is
// the error of all. `touched`: the records whose gradient the pass made, ascending.
Result<StepSums> gather_sums(Session& session, std::span<const int64_t> touched,
                             const Status& mine);

// What a rank tells of the sums, and what it is told: those of its microbatches and records, as the
// ranks' parts of the shape say. Takes the sender's into `sums`; false if it is of another length.
std::string own_sums(const RunShape& shape, std::span<const int64_t> touched,
                     const StepSums& sums);
bool take_sums(const RunShape& shape, int rank, std::span<const int64_t> touched,
               const std::string& told, StepSums& sums);

}  // namespace pagoda
