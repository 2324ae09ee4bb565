// Reading and writing the superblocks of one page file, which block on the disk, and the store id
// they hold.
#pragma once

#include <string>

#include "offload/page_layout.h"
#include "offload/storage.h"

namespace pagoda {

// kUnavailable when the system has no random numbers.
Result<StoreId> random_store_id();

// Writes both copies in separate transfers, so that a crash can tear only one, and flushes.
Status write_superblocks(Storage* storage, int file, const Superblock& superblock);

// The superblock, from whichever copy is whole (with a warning if one is not). kIoError when
// neither is, or when they differ. `path` is for messages.
Result<Superblock> read_superblocks(Storage* storage, int file, const std::string& path);

}  // namespace pagoda
