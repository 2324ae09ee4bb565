// Masters as weight and remainder; moments of 16 and 8 bits.
#include "optim/state_format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "optim/adam.h"
#include "optim/masters.h"
#include "tests/testing/sanitizer.h"
#include "tests/testing/stored_moments.h"

namespace pagoda {
namespace {

constexpr uint64_t kStride = kUnderSanitizer ? 4099 : 1;  // a prime: every low half is met

TEST(Masters, EveryFiniteBitPatternComesBack) {
  constexpr int64_t kChunk = 1 << 16;
  std::vector<float> values(kChunk), back(kChunk);
  std::vector<bf16> weights(kChunk);
  std::vector<int16_t> remainders(kChunk);
  int64_t tested = 0;
  for (uint64_t next = 0; next < uint64_t{1} << 32;) {
    int64_t n = 0;
    for (; n < kChunk && next < uint64_t{1} << 32; next += kStride) {
      const auto bits = static_cast<uint32_t>(next);
      if ((bits & 0x7f800000u) != 0x7f800000u) values[n++] = std::bit_cast<float>(bits);
    }
    split_masters(values.data(), n, weights.data(), remainders.data());
    join_masters(weights.data(), remainders.data(), n, back.data());
    ASSERT_EQ(std::memcmp(values.data(), back.data(), static_cast<size_t>(n) * 4), 0);
    for (int64_t i = 0; i < n; i += 997) {
      ASSERT_EQ(weights[i].bits, bf16_round_weight(values[i]).bits);
    }
    tested += n;
  }
  std::printf("%lld patterns\n", (long long)tested);
  if (kStride == 1) {
    EXPECT_EQ(tested, (int64_t{1} << 32) - 2 * (int64_t{1} << 23));
  }
}

TEST(StateLayout, BytesOfAParameter) {
  constexpr int64_t kN = 1 << 20;
  const auto bytes = [](StateFormat format, DType dtype) {
    const StateLayout layout(format, dtype, kN);
    return static_cast<double>(layout.bytes) / kN + static_cast<double>(dtype_bytes(dtype));
  };
  EXPECT_DOUBLE_EQ(bytes(StateFormat::kFp32, DType::kBF16), 12);
  EXPECT_DOUBLE_EQ(bytes(StateFormat::kBf16, DType::kBF16), 8);
  EXPECT_DOUBLE_EQ(bytes(StateFormat::k8Bit, DType::kBF16), 6 + 8.0 / kMomentBlock);
  EXPECT_DOUBLE_EQ(bytes(StateFormat::kFp32, DType::kF32), 12);
  for (const char* name : {"fp32", "bf16", "8bit"}) {
    StateFormat format;
    ASSERT_TRUE(parse_state_format(name, &format));
    EXPECT_STREQ(state_format_name(format), name);
  }
  StateFormat format;
  EXPECT_FALSE(parse_state_format("fp16", &format));
  for (const char* name : {"fp32", "bf16", "8bit-2"}) {
    ASSERT_TRUE(parse_stored_state(name, &format));
    EXPECT_STREQ(stored_state_name(format), name);
  }
  EXPECT_FALSE(parse_stored_state("8bit", &format)) << "codes of another encoding";
}

using testing::Moment;

// One block of moments, as updates store them.
class Block {
 public:
  explicit Block(StateFormat format)
      : layout_(format, DType::kF32, kMomentBlock), state_(static_cast<size_t>(layout_.bytes)) {}

  // Makes an update with gradient g and the betas; betas of 0 make m = g and v = g * g.
  void update(const std::vector<float>& g, double beta, uint32_t key,
              const AdamKernel& kernel = adam_kernels().front()) {
    ThreadPool pool(1);
    const AdamSpan span{0, kMomentBlock, true};
    const AdamStep step = {.beta1 = beta, .beta2 = beta, .noise_key = key};
    ASSERT_TRUE(adam_update(step, {layout_, {&span, 1}, weights_.data(), state_.data()}, g.data(),
                            1.0f, pool, kernel));
  }
  // What an update with beta 0 stores, after the text of optim/moments.h.
  std::vector<std::byte> expected(const std::vector<float>& g, uint32_t key) const {
    std::vector<std::byte> state(state_.size());
    testing::StoredMoments stored(layout_, state.data());
    std::vector<float> squares;
    for (const float value : g) squares.push_back(value * value);
    stored.set(Moment::kFirst, 0, kMomentBlock, key, g.data());
    stored.set(Moment::kSecond, 0, kMomentBlock, key, squares.data());
    return state;
  }
  const std::vector<std::byte>& state() const { return state_; }
  std::vector<float> moments(Moment moment) {
    const testing::StoredMoments stored(layout_, state_.data());
    std::vector<float> values;
    for (int64_t i = 0; i < kMomentBlock; ++i) values.push_back(stored.get(moment, i));
    return values;
  }

 private:
  StateLayout layout_;
  std::vector<std::byte> state_;
  std::vector<float> weights_ = std::vector<float>(kMomentBlock, 1.0f);
};

std::vector<float> wide_values() {
  std::mt19937 random(5);
  std::normal_distribution<float> exponent(0, 4), sign;
  std::vector<float> values;
  for (int64_t i = 0; i < kMomentBlock; ++i) {
    const float value = std::exp2(exponent(random));
    values.push_back(sign(random) < 0 ? -value : value);
  }
  values[3] = 0;
  return values;
}

struct Format {
  const char* name;
  StateFormat format;
  Moment moment;
  double step;      // largest distance of neighbours, relative to the value
  double smallest;  // near this share of a block's scale neighbours are as far as this
};
const Format kFormats[] = {{"bf16 m", StateFormat::kBf16, Moment::kFirst, 0x1p-7, 0},
                           {"bf16 v", StateFormat::kBf16, Moment::kSecond, 0x1p-7, 0},
                           {"8-bit m", StateFormat::k8Bit, Moment::kFirst, 0x1p-3, 0x1p-15},
                           {"8-bit v", StateFormat::k8Bit, Moment::kSecond, 0x1p-3, 0x1p-31}};
// Such a share is one of the block's scale, the power of two that its largest is below 1.875 of.
double scale_of(double largest) {
  const double power = std::exp2(std::floor(std::log2(largest)));
  return largest < (1.875 - 0x1p-13) * power ? power : 2 * power;
}

// Rounds to one of the two neighbours, with such shares that the mean is the value; a v below the
// smallest code counts as the smallest.
TEST(Moments, RoundToNeighboursAndRightOnAverage) {
  constexpr int kDraws = 4000;
  const std::vector<float> gradients = wide_values();
  for (const Format& format : kFormats) {
    std::vector<double> values(gradients.begin(), gradients.end()), mean(values.size());
    double largest = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      if (format.moment == Moment::kSecond) values[i] = gradients[i] * gradients[i];
      largest = std::max(largest, std::abs(values[i]));
    }
    const double smallest = format.smallest * scale_of(largest);
    for (double& value : values) {
      if (format.moment == Moment::kSecond) value = std::max(value, smallest);
    }
    const auto width = [&](size_t i) { return (std::abs(values[i]) + smallest) * format.step; };
    Block block(format.format);
    for (int draw = 0; draw < kDraws; ++draw) {
      block.update(gradients, 0, static_cast<uint32_t>(draw) * 2654435761u);
      const std::vector<float> out = block.moments(format.moment);
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_LE(std::abs(double{out[i]} - values[i]), width(i) * (1 + 1e-6))
            << format.name << " element " << i;
        mean[i] += double{out[i]} / kDraws;
      }
    }
    for (size_t i = 0; i < values.size(); ++i) {
      // The mean of draws that are at most `width` apart: 6 standard deviations of half of that.
      EXPECT_NEAR(mean[i], values[i], 3 * width(i) / std::sqrt(kDraws) + 1e-6 * std::abs(values[i]))
          << format.name << " element " << i;
    }
  }
}

// Largest magnitudes, and squares of such, at the borders of a scale, for scales of all sizes.
TEST(Moments, BordersOfScalesAreTheSameOnEveryIsa) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> part(-1, 1);
  std::vector<float> borders;
  for (const uint32_t mantissa : {0u, 0x6ffbffu, 0x6ffc00u, 0x6fffffu, 0x700000u, 0x7fffffu}) {
    const float border = std::bit_cast<float>(0x3f800000u | mantissa);
    for (const float value : {border, std::sqrt(border), std::sqrt(2 * border)}) {
      for (const float toward : {0.0f, value, 4.0f}) {
        borders.push_back(std::nextafter(value, toward));
      }
    }
  }
  for (const float power : {0x1p-70f, 0x1p-20f, 1.0f, 0x1p62f}) {
    for (const float border : borders) {
      std::vector<float> gradients(kMomentBlock);
      for (float& value : gradients) value = part(random) * power;
      gradients[random() % kMomentBlock] = border * -power;
      const auto key = static_cast<uint32_t>(random());
      for (const AdamKernel& kernel : adam_kernels()) {
        Block block(StateFormat::k8Bit);
        block.update(gradients, 0, key, kernel);
        ASSERT_EQ(block.state() == block.expected(gradients, key), true)
            << kernel.isa << ", largest " << border << " * " << power << ", key " << key;
        const std::vector<float> found = block.moments(Moment::kFirst);
        for (size_t i = 0; i < found.size(); ++i) {  // a scale is below 4 * power
          ASSERT_NEAR(found[i], gradients[i], std::abs(gradients[i]) / 8 + power * 0x1p-16);
        }
      }
    }
  }
}

TEST(Moments, APositiveSecondMomentIsNeverZero) {
  std::vector<float> gradients(kMomentBlock, 1e-15f);
  gradients[0] = 1.0f;
  Block block(StateFormat::k8Bit);
  block.update(gradients, 0, 9);
  const std::vector<float> out = block.moments(Moment::kSecond);
  EXPECT_EQ(out[0], 1.0f);
  for (float value : out) EXPECT_GT(value, 0);
}

TEST(Moments, ZerosStayZeros) {
  const std::vector<float> zeros(kMomentBlock, 0.0f);
  for (const Format& format : kFormats) {
    Block block(format.format);
    block.update(zeros, 0.9, 3);
    EXPECT_EQ(block.moments(format.moment), zeros) << format.name;
  }
}

// The average of beta 0.999, whose new share is far below a step, goes where it goes in fp32.
TEST(Moments, ASlowAverageDoesNotStandStill) {
  const std::vector<float> ones(kMomentBlock, 1.0f);
  for (const Format& format : kFormats) {
    Block block(format.format);
    for (uint32_t t = 0; t < 4000; ++t) block.update(ones, 0.999, t * 40503u);
    double mean = 0;
    for (float value : block.moments(format.moment)) mean += double{value} / kMomentBlock;
    const double want = 1 - std::pow(0.999, 4000);
    // Each step's rounding error is at most a step and is forgotten at 0.999 a step: variance
    // step^2 / 4 / (1 - 0.999^2), over 256 elements; 6 standard deviations.
    EXPECT_NEAR(mean, want, 6 * format.step / 2 / std::sqrt(0.002) / 16) << format.name;
  }
}

}  // namespace
}  // namespace pagoda
