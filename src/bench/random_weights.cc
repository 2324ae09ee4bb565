#include "bench/random_weights.h"

#include <algorithm>

#include "base/random.h"

namespace pagoda {
namespace {

constexpr int64_t kValues = 1000003;  // a prime: neither rows nor tensors begin alike

}  // namespace

RandomWeights::RandomWeights(const ModelConfig& config)
    : config_(config), table_(TensorTable::make(config)), values_(kValues) {
  for (size_t i = 0; i < values_.size(); ++i) {
    values_[i] = static_cast<float>(config.initializer_range) *
                 random_normal(0, RandomPurpose::kInit, 0, i);
  }
}

Status RandomWeights::read_record(int64_t record, float* out) {
  const RecordSpec& spec = table_.records[static_cast<size_t>(record)];
  for (int64_t t = spec.first_tensor; t < spec.first_tensor + spec.num_tensors; ++t) {
    const TensorSpec& tensor = table_.tensors[static_cast<size_t>(t)];
    float* to = out + tensor.offset;
    const int64_t count = tensor.num_elements();
    if (tensor.init != TensorInit::kNormal) {
      std::fill_n(to, count, tensor.init == TensorInit::kOnes ? 1.0f : 0.0f);
      continue;
    }
    for (int64_t done = 0, from = t * 7919 % kValues; done < count; from = 0) {
      const int64_t piece = std::min(kValues - from, count - done);
      std::copy_n(values_.data() + from, piece, to + done);
      done += piece;
    }
  }
  return Status();
}

}  // namespace pagoda
