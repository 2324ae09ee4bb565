// Cuts the experts of a run by hidden columns (parallel.sharing = model; HEXA-MoE 3.3), and puts
// them together again. Expert e computes down (swiglu(gate x, up x)), where each hidden column is
// on its own, so that its output is the sum of those of its parts (HiddenParts); in floating point
// another sum than that of the whole expert, so the parts are part of what determines bits, and
// whoever computes them is not. Folders of models and exports have whole experts. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/model_config.h"

namespace pagoda {

// Divides `ffn` hidden columns in proportion to `shares`: equations 1 and 2 of the paper for
// devices of such speeds. Parts are whole tiles of as many columns as divide both ffn and
// kHiddenTile; each ends at the tile that is nearest to where it would end in real numbers.
// Returns no parts for no shares. Refuses (kUsage): shares that are not above 0, and a part
// without a column.
inline constexpr int64_t kHiddenTile = 16;  // columns
Result<HiddenParts> divide_hidden(std::span<const int64_t> shares, int64_t ffn);

// The model with its experts in these parts. Refuses (kUsage) also experts with biases, whose down
// bias would be no part's, and models without experts. No shares: the model as it is.
Result<ModelConfig> with_hidden_parts(ModelConfig config, std::span<const int64_t> shares);

// Copies the part at `place` out of an expert's record, or into it. whole: (3 d f) elements, gate
// (f, d), up (f, d) and down (d, f), as TensorTable has them; part: the same with the columns of
// the part.
void take_part(const ModelConfig& config, int64_t place, const float* whole, float* part);
void put_part(const ModelConfig& config, int64_t place, const float* part, float* whole);

}  // namespace pagoda
