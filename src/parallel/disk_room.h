// Says whether the disks of all ranks have room for new files beside what is on them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/rank_group.h"

namespace pagoda {

// All ranks call it together, each with the folders of its new files and the bytes that these take
// in all of them, and get the same. Ranks share the room of one disk: a host's, and that of the
// run's folder, which all have in common. A disk that does not say how much is free is believed to
// have room. kIoError if a rank tells what is no room of disks.
Result<bool> have_disk_room(RankGroup& ranks, const std::vector<std::string>& directories,
                            int64_t bytes, const std::string& run_folder);

}  // namespace pagoda
