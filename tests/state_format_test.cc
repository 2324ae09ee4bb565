// Masters as weight and remainder; moments of 16 and 8 bits.
#include "optim/state_format.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "optim/masters.h"
#include "optim/moments.h"

namespace pagoda {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kStride = 4099;  // a prime: every low half is met
#else
constexpr uint64_t kStride = 1;
#endif

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
}

std::vector<float> wide_values(bool negative) {
  std::mt19937 random(5);
  std::normal_distribution<float> exponent(0, 4), sign;
  std::vector<float> values;
  for (int64_t i = 0; i < kMomentBlock; ++i) {
    const float value = std::exp2(exponent(random));
    values.push_back(negative && sign(random) < 0 ? -value : value);
  }
  values[3] = 0;
  return values;
}

void round_16(const std::vector<float>& in, uint32_t key, std::vector<float>& out) {
  std::vector<bf16> kept(in.size());
  round_moments(in.data(), kMomentBlock, key, 512, kept.data());
  widen_moments(kept.data(), kMomentBlock, out.data());
}
void round_first(const std::vector<float>& in, uint32_t key, std::vector<float>& out) {
  std::vector<uint8_t> codes(in.size());
  const float scale = encode_first_moments(in.data(), kMomentBlock, key, 512, codes.data());
  decode_first_moments(codes.data(), scale, kMomentBlock, out.data());
}
void round_second(const std::vector<float>& in, uint32_t key, std::vector<float>& out) {
  std::vector<uint8_t> codes(in.size());
  const float scale = encode_second_moments(in.data(), kMomentBlock, key, 512, codes.data());
  decode_second_moments(codes.data(), scale, kMomentBlock, out.data());
}

struct Format {
  const char* name;
  void (*round)(const std::vector<float>& in, uint32_t key, std::vector<float>& out);
  bool negative;
  double step;      // largest distance of neighbours, relative to the value
  double smallest;  // below this share of the largest magnitude neighbours are as far as this
};
const Format kFormats[] = {{"bf16", round_16, true, 0x1p-7, 0},
                           {"8-bit m", round_first, true, 0x1p-3, 0x1p-15},
                           {"8-bit v", round_second, false, 0x1p-3, 0x1p-31}};

// To one of the two neighbours, and to each so often that the mean is the value.
TEST(Moments, RoundToNeighboursAndRightOnAverage) {
  constexpr int kDraws = 4000;
  for (const Format& format : kFormats) {
    const std::vector<float> values = wide_values(format.negative);
    double largest = 0;
    for (float value : values) largest = std::max<double>(largest, std::abs(value));
    std::vector<float> out(values.size());
    std::vector<double> mean(values.size());
    for (int draw = 0; draw < kDraws; ++draw) {
      format.round(values, static_cast<uint32_t>(draw) * 2654435761u, out);
      for (size_t i = 0; i < values.size(); ++i) {
        const double width = std::max(std::abs(values[i]) * format.step,
                                      values[i] != 0 ? format.smallest * largest : 0);
        ASSERT_LE(std::abs(double{out[i]} - values[i]), width) << format.name << " element " << i;
        mean[i] += double{out[i]} / kDraws;
      }
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const double width = std::max(std::abs(values[i]) * format.step, format.smallest * largest);
      // The mean of draws that are at most `width` apart: 6 standard deviations of half of that.
      EXPECT_NEAR(mean[i], values[i], 3 * width / std::sqrt(kDraws))
          << format.name << " element " << i;
    }
  }
}

TEST(Moments, APositiveSecondMomentIsNeverZero) {
  std::vector<float> values(kMomentBlock, 1e-30f), out(kMomentBlock);
  values[0] = 1.0f;
  round_second(values, 9, out);
  EXPECT_EQ(out[0], 1.0f);
  for (float value : out) EXPECT_GT(value, 0);
}

TEST(Moments, ZerosStayZeros) {
  const std::vector<float> values(kMomentBlock, 0.0f);
  for (const Format& format : kFormats) {
    std::vector<float> out(kMomentBlock, 1.0f);
    format.round(values, 3, out);
    EXPECT_EQ(out, values) << format.name;
  }
}

// The average of beta 0.999, whose new share is far below a step, goes where it goes in fp32.
TEST(Moments, ASlowAverageDoesNotStandStill) {
  for (const Format& format : kFormats) {
    std::vector<float> average(kMomentBlock, 0.0f);
    for (uint32_t t = 0; t < 4000; ++t) {
      for (float& value : average) value = 0.999f * value + 0.001f * 1.0f;
      const std::vector<float> exact = average;
      format.round(exact, t * 40503u, average);
    }
    double mean = 0;
    for (float value : average) mean += double{value} / kMomentBlock;
    const double want = 1 - std::pow(0.999, 4000);
    // Each step's rounding error is at most a step and is forgotten at 0.999 a step: variance
    // step^2 / 4 / (1 - 0.999^2), over 256 elements; 6 standard deviations.
    EXPECT_NEAR(mean, want, 6 * format.step / 2 / std::sqrt(0.002) / 16) << format.name;
  }
}

}  // namespace
}  // namespace pagoda
