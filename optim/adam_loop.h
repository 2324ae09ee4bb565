// The body of an AdamLoop. A file that includes this has said before, by `#pragma GCC target`, what
// it is compiled for; everything here is a template over the lanes of that target, so no two files
// share a function.
#pragma once

#include <cstdint>

#include "optim/adam_kernel.h"
#include "optim/lanes.h"
#include "optim/moments.h"

namespace pagoda {

template <int kCount>
class Fp32Weights {
 public:
  using V = Lanes<kCount>;
  static constexpr int64_t kBytes = 4;
  explicit Fp32Weights(const AdamBlocks& blocks) : weights_(static_cast<float*>(blocks.weights)) {}

  PAGODA_LANES typename V::Pair gradient(const void* gradient, int64_t i) {
    return V::load_floats(static_cast<const float*>(gradient) + i);
  }
  [[gnu::always_inline]] void fetch(int64_t i) const { fetch_ahead<4>(weights_ + i); }
  [[gnu::always_inline]] typename V::Pair load(int64_t i) const {
    return V::load_floats(weights_ + i);
  }
  [[gnu::always_inline]] void store(int64_t i, const typename V::Pair& master) const {
    V::store_floats(weights_ + i, master);
  }

 private:
  float* weights_;
};

// As masters.h splits and joins them; a NaN's weight is not kept a NaN.
template <int kCount>
class Bf16Weights {
 public:
  using V = Lanes<kCount>;
  using Bits = typename V::Bits;
  static constexpr int64_t kBytes = 2;
  explicit Bf16Weights(const AdamBlocks& blocks)
      : weights_(static_cast<bf16*>(blocks.weights)), remainders_(blocks.remainders) {}

  PAGODA_LANES typename V::Pair gradient(const void* gradient, int64_t i) {
    return V::widen(V::load(static_cast<const bf16*>(gradient) + i));
  }
  [[gnu::always_inline]] void fetch(int64_t i) const {
    fetch_ahead<2>(weights_ + i);
    fetch_ahead<2>(remainders_ + i);
  }
  [[gnu::always_inline]] typename V::Pair load(int64_t i) const {
    const Bits weights = V::load(weights_ + i), remainders = V::load(remainders_ + i);
    return {V::floats((weights << 16) + signed_shift(remainders << 16)),
            V::floats((weights & V::kHighHalf) + signed_shift(remainders))};
  }
  [[gnu::always_inline]] void store(int64_t i, const typename V::Pair& master) const {
    const Bits even = V::bits(master.even), odd = V::bits(master.odd);
    V::store(weights_ + i, ((even + 0x8000u) >> 16) | ((odd + 0x8000u) & V::kHighHalf));
    V::store(remainders_ + i, (even & V::kLowHalf) | (odd << 16));
  }

 private:
  PAGODA_LANES Bits signed_shift(Bits v) {
    return __builtin_bit_cast(Bits, V::ints(v) >> 16);
  }

  bf16* weights_;
  int16_t* remainders_;
};

// AdamScalars in all lanes, and the formulas of adam.h.
template <int kCount, bool kFromEnd>
class AdamFormulas {
 public:
  using V = Lanes<kCount>;
  using Floats = typename V::Floats;

  explicit AdamFormulas(const AdamScalars& s)
      : keep_(V::splat(s.keep)),
        lerp_(V::splat(kFromEnd ? s.lerp_rest : s.lerp)),
        beta2_(V::splat(s.beta2)), square_(V::splat(s.square)), root_(V::splat(s.root)),
        root_reciprocal_(V::splat(1.0f / s.root)),
        eps_(V::splat(s.eps)), rate_(V::splat(s.rate)), scale_(V::splat(s.grad_scale)) {}

  [[gnu::always_inline]] void update(const typename V::Pair& grad, typename V::Pair& master,
                                     typename V::Pair& m, typename V::Pair& v) {
    update(grad.even, master.even, m.even, v.even);
    update(grad.odd, master.odd, m.odd, v.odd);
  }
  // Since the construction; as AdamLoop returns it.
  [[gnu::always_inline]] uint32_t largest() const {
    return static_cast<uint32_t>(V::largest_lane(largest_));
  }

 private:
  [[gnu::always_inline]] void update(Floats grad, Floats& master, Floats& m, Floats& v) {
    const Floats g = grad * scale_;
    m = kFromEnd ? g - (g - m) * lerp_ : m + lerp_ * (g - m);
    v = v * beta2_ + (square_ * g) * g;
    master =
        master * keep_ + (rate_ * m) / (V::quotient(V::root(v), root_, root_reciprocal_) + eps_);
    largest_ = V::larger(largest_, V::ints(V::magnitude(master)));
  }

  Floats keep_, lerp_, beta2_, square_, root_, root_reciprocal_, eps_, rate_, scale_;
  typename V::Ints largest_{};
};

template <int kCount, bool kFromEnd, template <int> class Weights, template <int> class Moments>
PAGODA_LANES uint32_t update_blocks(const AdamScalars& scalars, const AdamBlocks& blocks) {
  using V = Lanes<kCount>;
  constexpr int64_t kGroup = 64;  // elements of a Quad of 16 lanes
  AdamFormulas<kCount, kFromEnd> formulas(scalars);
  const Weights<kCount> weights(blocks);
  Moments<kCount> moments(blocks, scalars.noise_key);
  for (int64_t block = 0; block < blocks.count * kMomentBlock; block += kMomentBlock) {
    const int64_t gradient_at = blocks.same_gradient ? block : 0;
    moments.begin_block(block);
    for (int64_t group = block; group < block + kMomentBlock; group += kGroup) {
      const auto* gradient = static_cast<const std::byte*>(blocks.gradient);
      fetch_ahead<Weights<kCount>::kBytes>(gradient + (group - gradient_at) * weights.kBytes);
      weights.fetch(group);
      moments.fetch(group);
      for (int64_t i = group; i < group + kGroup / 2; i += 2 * kCount) {
        typename V::Quad grad = {weights.gradient(blocks.gradient, i - gradient_at),
                                 weights.gradient(blocks.gradient, i - gradient_at + 32)};
        typename V::Quad master = {weights.load(i), weights.load(i + 32)};
        typename V::Quad m, v;
        moments.load(i, m, v);
        formulas.update(grad.low, master.low, m.low, v.low);
        formulas.update(grad.high, master.high, m.high, v.high);
        weights.store(i, master.low);
        weights.store(i + 32, master.high);
        moments.store(i, m, v);
      }
    }
    moments.end_block(block);
  }
  return formulas.largest();
}

template <int kCount, template <int> class Weights, template <int> class Moments>
uint32_t adam_loop(const AdamScalars& scalars, const AdamBlocks& blocks) {
  return scalars.lerp_from_end
             ? update_blocks<kCount, true, Weights, Moments>(scalars, blocks)
             : update_blocks<kCount, false, Weights, Moments>(scalars, blocks);
}

template <int kCount>
constexpr AdamKernel adam_kernel(const char* isa) {
  return {
      isa,
      {{adam_loop<kCount, Fp32Weights, Fp32Moments>, adam_loop<kCount, Fp32Weights, Bf16Moments>,
        adam_loop<kCount, Fp32Weights, ByteMoments>},
       {adam_loop<kCount, Bf16Weights, Fp32Moments>, adam_loop<kCount, Bf16Weights, Bf16Moments>,
        adam_loop<kCount, Bf16Weights, ByteMoments>}}};
}

}  // namespace pagoda
