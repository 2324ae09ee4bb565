// The re-index vector, built on the GPU.
#pragma once

#include "kernels/cuda/machine/machine.cuh"

namespace pagoda::PAGODA_MACHINE {

// All members are in device memory.
struct ReindexVector {
  int32_t* offsets;  // (experts + 1): where each expert's rows begin
  int32_t* rows;     // (tokens k): the token of each row; tokens in order within an expert
  int32_t* choices;  // (tokens k): its position in `experts`
};

// Sorts the choices that are not -1 by expert.   experts (tokens, k)
void build_reindex(Queue& queue, const int32_t* experts, int64_t tokens, int64_t k,
                   int64_t num_experts, const ReindexVector& vector);

// The same with given places: expert e's rows begin at first[e]. first (experts), device
void place_rows(Queue& queue, const int32_t* experts, int64_t tokens, int64_t k,
                int64_t num_experts, const int32_t* first, int32_t* rows, int32_t* choices);

// tiles (most_tiles of `rows`, the number of rows at most): the tiles of `offsets`, then no tiles.
void build_tiles(Queue& queue, const int32_t* offsets, int64_t num_experts, int64_t rows,
                 int64_t tile_rows, RowTile* tiles);

}  // namespace pagoda::PAGODA_MACHINE
