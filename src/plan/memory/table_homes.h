// Chooses which rank's memory the tables of a run are at home in: the embedding, and the head
// unless it is the embedding (tied embeddings). Both are computed with at the ends of the pipeline,
// always: lookup on the devices that attend in the stage of the first layer, logits and loss on
// those of the last layer's. There each has its home, too, where that rank's memory has room for
// it. Where it has none, a table's home may be any other rank that has.
//
// A home needs room for weights, gradient and optimizer state at a time. With bf16 weights and fp32
// states these are 2 + 2 + 10 bytes for each of V * d elements: 8.6 GB of a vocabulary of 150,000
// and 4096 numbers a row. The end that computes with a table whose home is away needs the weights
// in its host, 1.2 GB of them, and not the rest; the home's device needs the gradient, and its sum
// in fp32. In each step the weights go from the home to the end, and the sum comes back: 6 bytes an
// element, which an end at home does not send. No bit of a result follows from where a home is.
// Pure.
#pragma once

#include <cstdint>
#include <span>

#include "plan/memory/memory_plan.h"
#include "plan/step/run_shape.h"

namespace pagoda {

struct TableRanks {
  int embedding = -1, head = -1;  // -1: that of the end which computes with it

  bool operator==(const TableRanks&) const = default;
};

// Gives the tables their homes on these ranks: on a device that attends in the table's stage, or
// else on the rank's first one. REQUIRES: with tied embeddings the head's is -1.
void place_tables(const TableRanks& ranks, RunShape& shape);

// Tries the head first, then the embedding: a table whose home's rank has no room for a step goes
// to the rank with the largest memory.host of those that have room for one with it, among equals
// the lowest. All stays at the ends where that does not help: the run is refused as it would be.
// `budgets`: [rank], what memory is given to each; `shape`: of any of them, of a run that trains,
// with its tables at the ends. The same arguments give the same choice.
TableRanks choose_table_ranks(RunShape shape, std::span<const MemoryBudget> budgets,
                              int64_t header_bytes);

}  // namespace pagoda
