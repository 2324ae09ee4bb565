#include "train/page_move.h"

#include <algorithm>

namespace pagoda {

bool is_at_home(const RunCheckpoint& checkpoint, const RunShape& shape, int ranks) {
  if (std::ssize(checkpoint.stores) != ranks) return false;
  for (size_t rank = 0; rank < checkpoint.stores.size(); ++rank) {
    for (const PageVersion& version : checkpoint.stores[rank].pages) {
      const size_t record = version.page / 2;        // PageTable::weights() and state()
      if (record >= shape.records.size()) continue;  // the page file refuses it
      if (shape.rank_of(shape.records[record].device) != static_cast<int>(rank)) return false;
    }
  }
  return true;
}

Result<std::vector<int>> store_readers(const RunCheckpoint& checkpoint,
                                       const CheckpointPages& pages, RankGroup& ranks) {
  std::string can;
  for (int64_t s = 0; s < pages.num_stores(); ++s) can += pages.status_of(s).ok() ? '1' : '0';
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.agree(Status(), can));
  std::vector<int> readers;
  for (size_t s = 0; s < checkpoint.stores.size(); ++s) {
    int reader = -1;
    for (int rank = ranks.size() - 1; rank >= 0; --rank) {
      const std::string& of_rank = all[static_cast<size_t>(rank)];
      if (of_rank.size() == can.size() && of_rank[s] == '1') reader = rank;
    }
    const bool same = s < all.size() && all[s].size() == can.size() && all[s][s] == '1';
    readers.push_back(same ? static_cast<int>(s) : reader);
    if (readers.back() >= 0) continue;
    RETURN_IF_ERROR(ranks.agree(pages.status_of(static_cast<int64_t>(s))));
    return Status(Exit::kMismatch, "ranks see other stores than they did; resume again");
  }
  return readers;
}

Status copy_pages(CheckpointPages& pages, const std::vector<int>& readers, Session& session) {
  RankGroup& ranks = session.ranks();
  const RunShape& shape = session.shape();
  int64_t largest = 0;
  for (PageId page = 0; page < 2 * shape.records.size(); ++page) {
    largest = std::max(largest, kPageHeaderBytes + session.pages().pages[page].bytes);
  }
  auto allocated = HostMemory::allocate(largest);
  RETURN_IF_ERROR(ranks.agree(allocated.status()));
  HostMemory memory = allocated.take();
  // After an error of its own a rank goes on, since others wait for what it sends.
  Status mine, passed;
  for (PageId page = 0; page < 2 * shape.records.size() && passed.ok(); ++page) {
    if (!is_durable(shape, page)) continue;
    const int from = readers[static_cast<size_t>(pages.store_of(page))];
    const int to = shape.rank_of(shape.records[session.pages().pages[page].record].device);
    if (from != ranks.rank() && to != ranks.rank()) continue;
    const int64_t payload = session.pages().pages[page].bytes;
    if (from == ranks.rank() && mine.ok()) mine = pages.read(page, memory);
    passed = ranks.pass(from, to, {memory.data() + kPageHeaderBytes, static_cast<size_t>(payload)});
    if (to != ranks.rank() || !mine.ok() || !passed.ok()) continue;
    session.file().write(page, memory.data(), pages.generation(page), Event()).wait();
    mine = session.file().status();
  }
  RETURN_IF_ERROR(passed);
  if (mine.ok()) mine = session.file().sync();
  RETURN_IF_ERROR(ranks.agree(mine));
  session.durable_are_on_disk();
  return Status();
}

}  // namespace pagoda
