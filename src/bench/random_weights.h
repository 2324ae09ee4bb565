// Weights that cost little to make: drawn like those of `pagoda init`, but the same million values
// again and again.
#pragma once

#include <vector>

#include "train/weights.h"

namespace pagoda {

class RandomWeights final : public WeightSource {
 public:
  explicit RandomWeights(const ModelConfig& config);
  const ModelConfig& config() const override { return config_; }
  std::string name() const override { return "random weights"; }
  Status read_record(int64_t record, float* out) override;

 private:
  ModelConfig config_;
  TensorTable table_;
  std::vector<float> values_;
};

}  // namespace pagoda
