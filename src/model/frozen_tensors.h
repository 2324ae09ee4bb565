// The tensors that a run does not train (train.freeze). What is frozen keeps its bits in the
// compute dtype: it has no gradient, its norm counts in no clipping, and weight decay leaves it
// alone.
//
// A record's optimizer state and gradient end with its last tensor that trains. So a record that is
// frozen as a whole, as an expert or the embedding, has neither, and a router, the last tensor of
// its layer unless that has a shared expert, takes no room in them. A frozen tensor before others
// that train keeps its place there, with zeros.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/tensors.h"

namespace pagoda {

struct FrozenTensors {
  std::vector<uint8_t> tensors;   // [tensor] 1: it is frozen; empty: none is
  std::vector<int64_t> trailing;  // [record] elements at its end that are frozen; empty likewise
  int64_t elements = 0;           // of all frozen tensors

  bool has(int64_t tensor) const {
    return !tensors.empty() && tensors[static_cast<size_t>(tensor)] != 0;
  }
  // Whether nothing trains of the record's elements [begin, end).
  bool covers(const TensorTable& table, int64_t record, int64_t begin, int64_t end) const;
  // The elements of the record up to the last one that trains.
  int64_t trained(const TensorTable& table, int64_t record) const {
    const int64_t all = table.records[static_cast<size_t>(record)].num_elements;
    return trailing.empty() ? all : all - trailing[static_cast<size_t>(record)];
  }
};

// The words that stand for tensors by what they are for: "attention", "router", ...
std::vector<std::string> freeze_words();

// Finds the tensors that the patterns name. A pattern is one of freeze_words(), or a tensor's name
// on the hub in which * stands for any characters and ? for one. kUsage if one names no tensor that
// would train, with the nearest word, or if nothing is left to train.
Result<FrozenTensors> freeze_tensors(const TensorTable& table,
                                     const std::vector<std::string>& patterns);

}  // namespace pagoda
