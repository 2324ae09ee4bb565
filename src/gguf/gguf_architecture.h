// What llama.cpp calls a family, and what it computes whatever a file says (b11739, src/models/). A
// model that it would compute otherwise is refused, so that a file that is written can be trusted.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "model/model_config.h"

namespace pagoda {

// Whether llama.cpp makes the weights of a token's experts sum to 1.
enum class GgufNorms : uint8_t { kNever, kAlways, kAsTold };

struct GgufArchitecture {
  const char* model_type = "";
  const char* name = "";
  GgufNorms norms = GgufNorms::kAlways;
  bool permutes = false;   // rows of queries and keys
  bool expert_ffn = true;  // the width of an expert has an entry of its own
  const char* norm2 = "ffn_norm";
  bool dense_first = false;   // layers without experts come first, and their number is told
  bool granite = false;       // multipliers have entries
  bool windows = false;       // in every other layer from the first on
  bool shares_keys = true;    // there may be fewer heads of keys than of queries
  bool latent = false;        // keys and values come from a latent
  bool convolutions = false;  // layers may be convolutions, which have no heads of keys
};

// kBadData, saying why: llama.cpp has no architecture for the family that is known here, or it
// would compute something of this model otherwise. Any thread may ask.
Result<GgufArchitecture> architecture_of(const ModelConfig& c);

// What llama.cpp computes otherwise of a model that is written all the same, since it has no way to
// tell it and its own converter writes that file too; "": nothing. Any thread may ask.
std::string computed_nearly(const ModelConfig& c);

}  // namespace pagoda
