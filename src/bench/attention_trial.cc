#include "bench/attention_trial.h"

#include <vector>

namespace pagoda {
namespace {

std::vector<int32_t> documents(int64_t tokens, int64_t document_len) {
  std::vector<int32_t> start;
  for (int64_t t = 0; t <= tokens; t += document_len) start.push_back(static_cast<int32_t>(t));
  return start;
}

}  // namespace

AttentionTrial::AttentionTrial(const AttentionBenchShape& shape, std::byte* memory, Ops& ops)
    : shape_(shape), ops_(ops) {
  qkv_ = reinterpret_cast<bf16*>(memory);
  dout_ = qkv_ + shape.tokens * shape.stride();
  dqkv_ = dout_ + shape.tokens * shape.width();
  out_ = dqkv_ + shape.tokens * shape.stride();
  lse_ = reinterpret_cast<float*>(out_ + shape.tokens * shape.width());
}

AttentionShape AttentionTrial::of(int64_t tokens) const {
  return {tokens, shape_.heads, shape_.kv_heads, shape_.head_dim, shape_.stride()};
}

void AttentionTrial::forward(int64_t tokens, int64_t document_len, Stream& stream) const {
  const std::vector<int32_t> start = documents(tokens, document_len);
  ops_.attention(DType::kBF16, of(tokens), start.data(), std::ssize(start) - 1, qkv_,
                 qkv_ + shape_.width(), qkv_ + shape_.width() + shape_.kv_width(), out_, lse_,
                 stream);
  stream.synchronize();
}

void AttentionTrial::backward(int64_t tokens, int64_t document_len, Stream& stream) const {
  const std::vector<int32_t> start = documents(tokens, document_len);
  const int64_t k = shape_.width(), v = k + shape_.kv_width();
  ops_.attention_backward(DType::kBF16, of(tokens), start.data(), std::ssize(start) - 1, qkv_,
                          qkv_ + k, qkv_ + v, out_, lse_, dout_, dqkv_, dqkv_ + k, dqkv_ + v,
                          stream);
  stream.synchronize();
}

}  // namespace pagoda
