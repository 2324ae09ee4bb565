// Sizes as text: what a message names as enough must be enough when it is typed back.
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <random>

#include "base/memory_size.h"

namespace pagoda {
namespace {

TEST(Bytes, Format) {
  EXPECT_EQ(format_bytes(4097), "4097 B");
  EXPECT_EQ(format_bytes(12 * kKiB + 51), "12.0 KiB");
  EXPECT_EQ(format_bytes_up(12 * kKiB + 51), "12.1 KiB");
  EXPECT_EQ(format_bytes(3 * kMiB / 2), "1.50 MiB");
}

TEST(Bytes, RoundedUpIsEnoughAndNotMuchMore) {
  constexpr uint32_t kSeed = 5;
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 20000; ++i) {
    const int bits = 1 + static_cast<int>(random() % 45);
    // Sizes next to whole hundredths too, where rounding is at its worst.
    int64_t bytes = static_cast<int64_t>(random() >> (64 - bits));
    if (i % 3 == 0) bytes = bytes / kMiB * kMiB + static_cast<int64_t>(random() % 3);
    const std::string text = format_bytes_up(bytes);
    const auto size = MemorySize::parse(text);
    ASSERT_TRUE(size.ok()) << text;
    const int64_t typed = size.value().resolve(0, 0);
    ASSERT_GE(typed, bytes) << text << ", seed " << kSeed;
    // One hundredth of the unit (a tenth of 10 KiB at the least) and one for the safe side.
    ASSERT_LE(static_cast<double>(typed - bytes), 0.0201 * static_cast<double>(bytes)) << text;
  }
}

}  // namespace
}  // namespace pagoda
