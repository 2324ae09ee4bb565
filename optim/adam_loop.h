// The body of an AdamLoop. A file that includes this has set its target before by `#pragma GCC
// target`; everything here is a template over the lanes of that target, so no two files share a
// function.
#pragma once

#include <cstdint>

#include "optim/adam_kernel.h"
#include "optim/lanes.h"
#include "optim/moments.h"

namespace pagoda {

inline constexpr uint32_t kHalfOfBf16Step = 0x8000u;

// Whether all values seen are finite: 0 times any other is NaN, and stays so in a sum.
template <int kCount>
class Finite {
 public:
  using V = Lanes<kCount>;
  [[gnu::always_inline]] void add(const typename V::Pair& values) {
    sum_ = V::exact_product_minus(values.even, typename V::Floats{}, sum_);
    sum_ = V::exact_product_minus(values.odd, typename V::Floats{}, sum_);
  }
  [[gnu::always_inline]] bool all() const {
    return V::largest_lane(V::ints(V::magnitude(sum_))) == 0;
  }

 private:
  typename V::Floats sum_{};
};

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
  [[gnu::always_inline]] void store(int64_t i, const typename V::Pair& master) {
    V::store_floats(weights_ + i, master);
    finite_.add(master);
    finite_.add({V::floats(V::bits(master.even) + kHalfOfBf16Step),
                 V::floats(V::bits(master.odd) + kHalfOfBf16Step)});
  }
  [[gnu::always_inline]] bool finite() const { return finite_.all(); }

 private:
  float* weights_;
  Finite<kCount> finite_;
};

// Splits and joins masters as masters.h does, except that the weight of a NaN need not be a NaN.
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
    return {V::floats((weights << 16) + V::signed_low_half(remainders)),
            V::floats((weights & V::kHighHalf) + V::signed_high_half(remainders))};
  }
  [[gnu::always_inline]] void store(int64_t i, const typename V::Pair& master) {
    const Bits even = V::bits(master.even), odd = V::bits(master.odd);
    const Bits even_rounded = even + kHalfOfBf16Step, odd_rounded = odd + kHalfOfBf16Step;
    V::store(weights_ + i, V::joined_high_halves(even_rounded, odd_rounded));
    V::store(remainders_ + i, V::joined_low_halves(even, odd));
    // A NaN here was made of 16 bits, so rounded it is one still.
    finite_.add({V::floats(even_rounded), V::floats(odd_rounded)});
  }
  [[gnu::always_inline]] bool finite() const { return finite_.all(); }

 private:
  bf16* weights_;
  int16_t* remainders_;
  Finite<kCount> finite_;
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

  // Computes the new moments of an element. Its step follows from them by the functions below.
  [[gnu::always_inline]] void average(Floats grad, Floats& m, Floats& v) const {
    const Floats g = grad * scale_;
    m = kFromEnd ? g - (g - m) * lerp_ : m + lerp_ * (g - m);
    v = v * beta2_ + (square_ * g) * g;
  }
  [[gnu::always_inline]] Floats numerator(Floats m) const { return rate_ * m; }
  PAGODA_LANES Floats root(Floats v) { return V::root(v); }
  [[gnu::always_inline]] Floats moved(Floats master, Floats numerator, Floats root) const {
    return master * keep_ + numerator / (V::quotient(root, root_, root_reciprocal_) + eps_);
  }

 private:
  Floats keep_, lerp_, beta2_, square_, root_, root_reciprocal_, eps_, rate_, scale_;
};

// The values of a quad that wait between the two passes.
template <int kCount>
struct QuadStep {
  typename Lanes<kCount>::Quad numerator, root;
};

// Updates a block in two passes. The first keeps the unit that takes roots busy, the second the
// unit that divides and those that make codes, so that few operations wait for a long one.
template <int kCount, bool kFromEnd, template <int> class Weights, template <int> class Moments>
class AdamBlock {
 public:
  using V = Lanes<kCount>;
  AdamBlock(const AdamScalars& scalars, const AdamBlocks& blocks)
      : gradient_(static_cast<const std::byte*>(blocks.gradient)),
        same_gradient_(blocks.same_gradient),
        formulas_(scalars),
        weights_(blocks),
        moments_(blocks, scalars.noise_key) {}

  [[gnu::always_inline]] void update(int64_t block) {
    const int64_t gradient_at = same_gradient_ ? block : 0;
    moments_.begin_block(block);
    for (int64_t group = block; group < block + kMomentBlock; group += kGroup) {
      fetch_ahead<Weights<kCount>::kBytes>(gradient_ + (group - gradient_at) * weights_.kBytes);
      moments_.fetch(group);
      for (int64_t i = group; i < group + kGroup / 2; i += 2 * kCount) average(i, gradient_at);
    }
    moments_.end_block(block);
    for (int64_t group = block; group < block + kMomentBlock; group += 2 * kGroup) {
      weights_.fetch(group);
      weights_.fetch(group + kGroup);
      for (int64_t i = group; i < group + kGroup / 2; i += 2 * kCount) {
        move(i);
        move(i + kGroup);
        moments_.convert(i);
      }
    }
  }
  [[gnu::always_inline]] bool finite() const { return weights_.finite(); }

 private:
  static constexpr int64_t kGroup = 64;  // elements of a Quad of 16 lanes

  [[gnu::always_inline]] void average(int64_t i, int64_t gradient_at) {
    QuadStep<kCount>& step = steps_[quad_slot<kCount>(i)];
    const int64_t at = i - gradient_at;
    typename V::Quad m, v;
    moments_.load(i, m, v);
    average(weights_.gradient(gradient_, at), m.low, v.low, step.numerator.low, step.root.low);
    average(weights_.gradient(gradient_, at + 32), m.high, v.high, step.numerator.high,
            step.root.high);
    moments_.store(i, m, v);
  }
  [[gnu::always_inline]] void average(const typename V::Pair& grad, typename V::Pair& m,
                                      typename V::Pair& v, typename V::Pair& numerator,
                                      typename V::Pair& root) {
    formulas_.average(grad.even, m.even, v.even);
    formulas_.average(grad.odd, m.odd, v.odd);
    numerator = {formulas_.numerator(m.even), formulas_.numerator(m.odd)};
    root = {formulas_.root(v.even), formulas_.root(v.odd)};
  }

  [[gnu::always_inline]] void move(int64_t i) {
    const QuadStep<kCount>& step = steps_[quad_slot<kCount>(i)];
    move(i, step.numerator.low, step.root.low);
    move(i + 32, step.numerator.high, step.root.high);
  }
  [[gnu::always_inline]] void move(int64_t i, const typename V::Pair& numerator,
                                   const typename V::Pair& root) {
    typename V::Pair master = weights_.load(i);
    master = {formulas_.moved(master.even, numerator.even, root.even),
              formulas_.moved(master.odd, numerator.odd, root.odd)};
    weights_.store(i, master);
  }

  const std::byte* gradient_;
  const bool same_gradient_;
  const AdamFormulas<kCount, kFromEnd> formulas_;
  Weights<kCount> weights_;
  Moments<kCount> moments_;
  QuadStep<kCount> steps_[kQuads<kCount>];
};

template <int kCount, bool kFromEnd, template <int> class Weights, template <int> class Moments>
PAGODA_LANES bool update_blocks(const AdamScalars& scalars, const AdamBlocks& blocks) {
  AdamBlock<kCount, kFromEnd, Weights, Moments> block(scalars, blocks);
  for (int64_t i = 0; i < blocks.count; ++i) block.update(i * kMomentBlock);
  return block.finite();
}

template <int kCount, template <int> class Weights, template <int> class Moments>
bool adam_loop(const AdamScalars& scalars, const AdamBlocks& blocks) {
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
