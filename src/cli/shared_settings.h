// The settings of a run of several processes: each reads its own, and rank 0's count for all but
// those that are local.
#pragma once

#include <string>

#include "base/options.h"
#include "parallel/rank_group.h"

namespace pagoda {

// Sets the options of `table` to rank 0's, but for local ones. A difference that `before` shows is
// a warning, which rank 0 gives: it is shared_text() of each rank before rank 0 made numbers of
// what its settings leave open. All ranks call it together.
Status take_settings_of_rank_0(const OptionTable& table, const std::string& before,
                               RankGroup& ranks);

// The options that are not local, as a run file.
std::string shared_text(const OptionTable& table);

}  // namespace pagoda
