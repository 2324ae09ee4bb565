// target[column] += sum over rows of term(row, column), in kRowBlock blocks of rows in order. ESS
// (HEXA-MoE 3.1), the gradient of a bias and that of a norm's weight have this shape.
//
// A block owns some columns and walks the rows; each of kLanes threads of a column sums every
// kLanes-th row of a row block in order, and the lanes are joined in order. Every column belongs to
// one block, so sums depend neither on timing nor on the number of columns that a block owns.
#pragma once

#include "kernels/cuda/machine/numbers.cuh"
#include "kernels/ops.h"

namespace pagoda::PAGODA_MACHINE {

template <typename Term, int kThreadCount = 256>
struct ColumnSums {
  static constexpr int kThreads = kThreadCount, kLanes = 8, kColumns = kThreads / kLanes;
  static constexpr int kSharedBytes = kThreads * 4;

  // Sums rows [first, end) of the columns from `column0` on into target (columns).
  PAGODA_GPU static void run(const Term& term, int64_t first, int64_t end, int64_t row_block,
                             int64_t column0, int64_t columns, bool add, float* target) {
    float* sums = reinterpret_cast<float*>(shared_memory());
    const int lane = thread_number() / kColumns;
    const int64_t column = column0 + thread_number() % kColumns;
    const bool mine = lane == 0 && column < columns;
    float total = mine && add ? target[column] : 0.0f;
    for (int64_t block = first; block < end; block += row_block) {
      const int64_t block_end = smaller(end, block + row_block);
      float sum = 0.0f;
      if (column < columns) {
        for (int64_t row = block + lane; row < block_end; row += kLanes) sum += term(row, column);
      }
      sums[thread_number()] = sum;
      sync_block();
      if (lane == 0) {
        for (int i = 1; i < kLanes; ++i) sum += sums[thread_number() + i * kColumns];
        total += sum;
      }
      sync_block();
    }
    if (mine) target[column] = total;
  }

  Term term;
  int64_t rows, row_block, columns;
  float* target;
  PAGODA_GPU void operator()() const {
    run(term, 0, rows, row_block, block_number() * kColumns, columns, true, target);
  }
};

template <typename Term>
void add_column_sums(Queue& queue, const Term& term, int64_t rows, int64_t row_block,
                     int64_t columns, float* target) {
  using Kernel = ColumnSums<Term>;
  if (rows == 0) return;
  queue.launch(div_ceil(columns, Kernel::kColumns), Kernel{term, rows, row_block, columns, target});
}

}  // namespace pagoda::PAGODA_MACHINE
