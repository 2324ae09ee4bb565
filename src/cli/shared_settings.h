// The settings of a run of several processes: each reads its own, and rank 0's count for all but
// those that are local.
#pragma once

#include <string>

#include "base/options.h"
#include "config/run_config.h"
#include "parallel/rank_group.h"

namespace pagoda {

// Sets the options of `table` to rank 0's, but for local ones. A difference that `before` shows is
// a warning, which rank 0 gives: it is shared_text() of each rank before rank 0 made numbers of
// what its settings leave open. All ranks call it together.
Status take_settings_of_rank_0(const OptionTable& table, const std::string& before,
                               RankGroup& ranks);

// Sets the options of `config`, which `table` has, to rank 0's, and validates what comes of it on
// all ranks. For commands whose settings are numbers from the beginning.
Status share_settings(const OptionTable& table, const RunConfig& config, RankGroup& ranks);

// Settings of how devices send each other rows, and of how ranks wait for each other, which every
// command of several processes reads.
bool is_about_ranks(const Option& option);

// The options that are not local, as a run file.
std::string shared_text(const OptionTable& table);

}  // namespace pagoda
