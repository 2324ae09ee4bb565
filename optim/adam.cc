#include "optim/adam.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/bytes.h"

namespace pagoda {
namespace {

constexpr int64_t kLeastShare = 64;  // blocks worth waking a thread for

constexpr std::byte kZeros[kMomentBlock * sizeof(float)] = {};

// One update of one record.
class Update {
 public:
  Update(const AdamStep& step, const AdamRecord& record, const void* grad, float grad_scale,
         const AdamKernel& kernel)
      : layout_(record.layout), record_(record), gradient_(grad),
        decaying_(adam_scalars(step, grad_scale)), kept_(decaying_),
        loop_(kernel.loop(layout_.weight_dtype, layout_.format)) {
    kept_.keep = 1.0f;
  }

  // Blocks [begin, end) of kMomentBlock elements, the last of which may be a part. Returns what an
  // AdamLoop does.
  bool run(int64_t begin, int64_t end) const {
    bool finite = true;
    const AdamSpan* span = record_.spans.data();
    while (begin < end) {
      while (span->end <= begin * kMomentBlock) ++span;
      const int64_t whole = std::min(end, span->end / kMomentBlock);
      const int64_t next = std::max(whole, begin + 1);
      finite &= whole > begin ? loop_(scalars(*span), blocks(begin, whole - begin))
                              : run_block(begin, span);
      begin = next;
    }
    return finite;
  }

 private:
  // A block by itself, with zeros where the record has ended.
  struct Alone {
    alignas(64) std::byte gradient[kMomentBlock * sizeof(float)] = {};
    alignas(64) std::byte weights[kMomentBlock * sizeof(float)] = {};
    alignas(64) int16_t remainders[kMomentBlock] = {};
    alignas(64) std::byte m[kMomentBlock * sizeof(float)] = {};
    alignas(64) std::byte v[kMomentBlock * sizeof(float)] = {};
    float scales[2] = {};
  };

  const AdamScalars& scalars(const AdamSpan& span) const { return span.decay ? decaying_ : kept_; }
  int64_t weight_bytes() const { return dtype_bytes(layout_.weight_dtype); }
  bool split() const { return layout_.weight_dtype == DType::kBF16; }
  float* scales(int64_t block) const {
    return reinterpret_cast<float*>(record_.state + layout_.scales_at) + 2 * block;
  }

  AdamBlocks blocks(int64_t block, int64_t count) const {
    const int64_t first = block * kMomentBlock;
    const int64_t moments_at = layout_.moments_bytes(first);
    AdamBlocks blocks;
    blocks.count = count;
    blocks.first = first;
    blocks.same_gradient = gradient_ == nullptr;
    blocks.gradient = gradient_ == nullptr
                          ? kZeros
                          : static_cast<const std::byte*>(gradient_) + first * weight_bytes();
    blocks.weights = static_cast<std::byte*>(record_.weights) + first * weight_bytes();
    blocks.remainders =
        reinterpret_cast<int16_t*>(record_.state + layout_.remainders_at) + first;
    blocks.m = record_.state + layout_.m_at + moments_at;
    blocks.v = record_.state + layout_.v_at + moments_at;
    blocks.scales = scales(block);
    return blocks;
  }

  // Updates a block that the record's end or borders of spans cut; `span` holds its first element.
  // The whole block is updated under the rule of each of its spans, and only the span's own weights
  // are kept.
  bool run_block(int64_t block, const AdamSpan* span) const {
    const AdamBlocks stored = blocks(block, 1);
    const int64_t end = std::min(stored.first + kMomentBlock, layout_.num_elements);
    Alone before, after;
    copy_in(stored, end - stored.first, before);
    bool finite = true;
    for (int64_t i = stored.first; i < end; ++span) {
      const int64_t next = std::min(span->end, end);
      after = before;
      finite &= loop_(scalars(*span), in_place_of(stored, after));
      copy_weights_out(after, i - stored.first, next - stored.first, stored);
      i = next;
    }
    copy_moments(in_place_of(stored, after), end - stored.first, stored);
    return finite;
  }

  static AdamBlocks in_place_of(const AdamBlocks& stored, Alone& alone) {
    AdamBlocks blocks = stored;
    blocks.gradient = alone.gradient;
    blocks.weights = alone.weights;
    blocks.remainders = alone.remainders;
    blocks.m = alone.m;
    blocks.v = alone.v;
    blocks.scales = alone.scales;
    return blocks;
  }

  // Copies the first n elements.
  void copy_in(const AdamBlocks& from, int64_t n, Alone& to) const {
    const auto size = static_cast<size_t>(n * weight_bytes());
    std::memcpy(to.gradient, from.gradient, size);
    std::memcpy(to.weights, from.weights, size);
    if (split()) std::memcpy(to.remainders, from.remainders, static_cast<size_t>(n) * 2);
    copy_moments(from, n, in_place_of(from, to));
  }
  void copy_moments(const AdamBlocks& from, int64_t n, const AdamBlocks& to) const {
    const auto size = static_cast<size_t>(layout_.moments_bytes(n));
    std::memcpy(to.m, from.m, size);
    std::memcpy(to.v, from.v, size);
    if (layout_.format == StateFormat::k8Bit) std::memcpy(to.scales, from.scales, 2 * 4);
  }
  void copy_weights_out(const Alone& from, int64_t begin, int64_t end,
                        const AdamBlocks& to) const {
    std::memcpy(static_cast<std::byte*>(to.weights) + begin * weight_bytes(),
                from.weights + begin * weight_bytes(),
                static_cast<size_t>((end - begin) * weight_bytes()));
    if (!split()) return;
    std::memcpy(to.remainders + begin, from.remainders + begin,
                static_cast<size_t>(end - begin) * sizeof(int16_t));
  }

  const StateLayout& layout_;
  const AdamRecord& record_;
  const void* gradient_;
  AdamScalars decaying_, kept_;
  AdamLoop loop_;
};

}  // namespace

AdamScalars adam_scalars(const AdamStep& s, float grad_scale) {
  const auto t = static_cast<double>(s.t);
  const double lerp = 1.0 - s.beta1;
  AdamScalars c;
  c.keep = static_cast<float>(1.0 - s.lr * s.weight_decay);
  c.lerp = static_cast<float>(lerp);
  c.lerp_from_end = lerp >= 0.5;
  c.lerp_rest = 1.0f - c.lerp;
  c.beta2 = static_cast<float>(s.beta2);
  c.square = static_cast<float>(1.0 - s.beta2);
  c.root = static_cast<float>(std::sqrt(1.0 - std::pow(s.beta2, t)));
  c.eps = static_cast<float>(s.eps);
  c.rate = static_cast<float>(-(s.lr / (1.0 - std::pow(s.beta1, t))));
  c.grad_scale = grad_scale;
  c.noise_key = s.noise_key;
  return c;
}

bool adam_update(const AdamStep& step, const AdamRecord& record, const void* grad,
                 float grad_scale, ThreadPool& pool, const AdamKernel& kernel) {
  const int64_t n = record.layout.num_elements;
  CHECK(step.t >= 1 && n < int64_t{1} << 32);
  const Update update(step, record, grad, grad_scale, kernel);
  const int64_t blocks = div_ceil(n, kMomentBlock);
  // Each thread has one stretch: memory is fastest when arrays are read without a break.
  const int64_t shares = std::clamp<int64_t>(blocks / kLeastShare, 1, pool.threads());
  std::atomic<bool> finite{true};
  pool.parallel_for(shares, [&](int64_t share) {
    if (!update.run(blocks * share / shares, blocks * (share + 1) / shares)) finite = false;
  });
  return finite;
}

}  // namespace pagoda
