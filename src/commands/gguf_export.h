// Writes a model as a GGUF file.
#pragma once

#include <string>

#include "gguf/gguf_file.h"
#include "gguf/gguf_model.h"
#include "train/weights.h"

namespace pagoda {

// `original`: the folder that the weights' model came from. Returns the errors of
// describe_for_gguf(), add_tokenizer_entries() and GgufWriter; kDiverged names a tensor that is not
// finite; exit_of_signal() after a stop was asked for. Whatever fails, no file of that name is left
// behind, or the one that was there stays.
Status export_gguf(WeightSource& source, const HfFolder& original, const std::string& path,
                   GgufType type);

// The part of it that writes: what `model` describes, with weights of the table.
Status write_gguf(WeightSource& source, const TensorTable& table, GgufModel model,
                  const std::string& path);

}  // namespace pagoda
