#include "plan/memory/table_homes.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "plan/memory/coarse_run.h"

namespace pagoda {
namespace {

int home_on(const RunShape& shape, int64_t table, int rank) {
  const DeviceRange own = shape.devices_of(rank);
  for (const int d : shape.attending_devices(shape.stage_of_record(table))) {
    if (own.contains(d)) return d;
  }
  return own.first;
}

// Whether a step goes in the rank's budgets.
bool has_room(const RunShape& shape, int rank, const MemoryBudget& budget, int64_t header_bytes) {
  RunShape own = shape;
  own.rank = rank;
  const RunShape brief = brief_shape(own);
  const LeastSlots least = least_slots(brief, PageTable(brief), header_bytes);
  for (size_t d = 0; d < least.device_bytes.size(); ++d) {
    const int64_t needed = budget.fixed_bytes[d] + least.device_bytes[d];
    if (needed > budget.device_bytes.of(static_cast<int>(d))) return false;
  }
  return least.host_bytes <= budget.host_bytes;
}

// Ranks in the order in which they are asked.
std::vector<int> by_host_memory(std::span<const MemoryBudget> budgets) {
  std::vector<int> ranks(budgets.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::ranges::stable_sort(ranks, [&](int a, int b) {
    return budgets[static_cast<size_t>(a)].host_bytes > budgets[static_cast<size_t>(b)].host_bytes;
  });
  return ranks;
}

}  // namespace

void place_tables(const TableRanks& ranks, RunShape& shape) {
  CHECK(!shape.tied_embeddings || ranks.head < 0);
  const auto place = [&](int64_t table, int rank) {
    if (rank >= 0) shape.records[static_cast<size_t>(table)].device = home_on(shape, table, rank);
  };
  place(shape.embedding(), ranks.embedding);
  place(shape.head(), ranks.head);
}

TableRanks choose_table_ranks(RunShape shape, std::span<const MemoryBudget> budgets,
                              int64_t header_bytes) {
  const auto fits = [&](const RunShape& placed, int rank) {
    return has_room(placed, rank, budgets[static_cast<size_t>(rank)], header_bytes);
  };
  TableRanks chosen;
  std::vector<int> full;  // ranks without room for what is at home there
  for (const bool head : {true, false}) {
    if (head && shape.tied_embeddings) continue;
    const int end = shape.home_rank(head ? shape.head() : shape.embedding());
    if (fits(shape, end)) continue;
    full.push_back(end);
    for (const int rank : by_host_memory(budgets)) {
      if (rank == end) continue;
      TableRanks tried = chosen;
      (head ? tried.head : tried.embedding) = rank;
      RunShape placed = shape;
      place_tables(tried, placed);
      if (!fits(placed, rank)) continue;
      chosen = tried;
      shape = std::move(placed);
      break;
    }
  }
  for (const int rank : full) {
    if (!fits(shape, rank)) return {};
  }
  return chosen;
}

}  // namespace pagoda
