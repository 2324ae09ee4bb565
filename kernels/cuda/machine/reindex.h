// Index arithmetic that host and GPU share: how rows sorted by expert, and documents, are cut into
// tiles. Nothing is padded and nothing dropped: a tile ends where its expert or document does.
// Where HEXA-MoE (3.2) pads every expert's part of the re-index vector to whole tiles with -1, here
// the last tile of an expert knows how many rows it has.
#pragma once

#include <cstdint>
#include <vector>

#if defined(__CUDACC__)
#define PAGODA_BOTH __host__ __device__ inline
#else
#define PAGODA_BOTH inline
#endif

namespace pagoda {

// Rows [row, row + rows) of a call, all of one expert; expert -1: no tile.
struct RowTile {
  int32_t expert, row, rows;
};

PAGODA_BOTH int64_t tiles_of(int64_t rows, int64_t tile_rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

// Rows [row, row + rows) of queries or keys and their document [begin, end).
struct DocumentTile {
  int32_t row, rows, begin, end;
};

// The tiles of all documents, each cut from its own first row; the last ones first, whose causal
// rows are the longest.
inline std::vector<DocumentTile> document_tiles(const int32_t* document_start, int64_t documents,
                                                int32_t tile_rows) {
  std::vector<DocumentTile> tiles;
  for (int64_t d = documents - 1; d >= 0; --d) {
    const int32_t begin = document_start[d], end = document_start[d + 1];
    const auto cuts = static_cast<int32_t>(tiles_of(end - begin, tile_rows));
    for (int32_t i = cuts - 1; i >= 0; --i) {
      const int32_t row = begin + i * tile_rows, left = end - row;
      tiles.push_back({row, left < tile_rows ? left : tile_rows, begin, end});
    }
  }
  return tiles;
}

}  // namespace pagoda
