#include "model/hidden_parts.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace pagoda {
namespace {

// Calls of_row(first element in the whole, first element in the part, elements) for each run of
// neighbours that both have.
template <typename OfRow>
void for_rows(const ModelConfig& config, int64_t place, const OfRow& of_row) {
  const std::vector<int64_t>& columns = config.parts.columns;
  const int64_t d = config.hidden_size, f = config.moe_intermediate_size;
  const int64_t p = place % config.parts.count(), own = columns[static_cast<size_t>(p)];
  const int64_t first = std::accumulate(columns.begin(), columns.begin() + p, int64_t{0});
  of_row(first * d, int64_t{0}, own * d);     // gate
  of_row((f + first) * d, own * d, own * d);  // up
  for (int64_t row = 0; row < d; ++row) {     // down
    of_row(2 * f * d + row * f + first, 2 * own * d + row * own, own);
  }
}

}  // namespace

Result<HiddenParts> divide_hidden(std::span<const int64_t> shares, int64_t ffn) {
  HiddenParts parts;
  const int64_t tile = std::gcd(ffn, kHiddenTile), tiles = ffn / tile;
  __int128 all = 0;
  for (const int64_t share : shares) {
    if (share < 1) return Status(Exit::kUsage, "parallel.hidden_shares: they are above 0");
    all += share;
  }
  __int128 until = 0;
  int64_t done = 0;  // tiles
  for (const int64_t share : shares) {
    until += share;
    const auto end = static_cast<int64_t>((2 * until * tiles + all) / (2 * all));
    if (end == done) {
      return Status(Exit::kUsage,
                    strf("parallel.hidden_shares: a part would have no column, since an expert has "
                         "%lld tiles of %lld; name fewer shares, or more equal ones",
                         (long long)tiles, (long long)tile));
    }
    parts.columns.push_back((end - done) * tile);
    done = end;
  }
  return parts;
}

Result<ModelConfig> with_hidden_parts(ModelConfig config, std::span<const int64_t> shares) {
  if (shares.empty()) return config;
  if (config.num_moe_layers() == 0)
    return Status(Exit::kUsage, "parallel.sharing = model: the model has no experts");
  if (config.family->limited_experts) {
    return Status(Exit::kUsage, strf("parallel.sharing = model: experts of %s have biases, and are "
                                     "not cut into parts; use rows or data",
                                     config.family->model_type));
  }
  ASSIGN_OR_RETURN(config.parts, divide_hidden(shares, config.moe_intermediate_size));
  return config;
}

void take_part(const ModelConfig& config, int64_t place, const float* whole, float* part) {
  for_rows(config, place, [&](int64_t in_whole, int64_t in_part, int64_t count) {
    std::copy_n(whole + in_whole, count, part + in_part);
  });
}

void put_part(const ModelConfig& config, int64_t place, const float* part, float* whole) {
  for_rows(config, place, [&](int64_t in_whole, int64_t in_part, int64_t count) {
    std::copy_n(part + in_part, count, whole + in_whole);
  });
}

}  // namespace pagoda
