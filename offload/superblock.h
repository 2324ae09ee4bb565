// Reading and writing superblocks, which blocks on the disk, and what they say: a store's id and
// its layout.
#pragma once

#include <string>
#include <vector>

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

// The superblock of file `index` of a store.
Superblock superblock_of(const PageLayout& layout, const std::vector<PageSpec>& pages, int slots,
                         const StoreId& id, size_t index);

struct FoundStore {
  StoreId id = {};
  PageLayout layout;
};

// What the superblocks of a store's open files say, if they are those of `store_id` and of these
// pages and agree with the files' lengths; else kMismatch. `paths` are for messages.
Result<FoundStore> read_store(Storage* storage, const std::vector<int>& files,
                              const std::vector<std::string>& paths, const std::string& store_id,
                              const std::vector<PageSpec>& pages, int slots);

}  // namespace pagoda
