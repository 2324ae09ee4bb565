#include "model/hidden_parts.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/testing/tiny_config.h"
#include "tests/testing/tiny_run.h"

namespace pagoda {
namespace {

using Columns = std::vector<int64_t>;

Columns divided(const Columns& shares, int64_t ffn) {
  return divide_hidden(shares, ffn).take().columns;
}

// Tiles have 16 columns, or as many as divide f too; counted by hand.
TEST(HiddenParts, AreSharesInWholeTiles) {
  EXPECT_EQ(divided({1}, 768), (Columns{768}));
  EXPECT_EQ(divided({10, 6}, 768), (Columns{480, 288}));
  EXPECT_EQ(divided({3, 1}, 64), (Columns{48, 16}));
  EXPECT_EQ(divided({1, 1, 1}, 768), (Columns{256, 256, 256}));
  // 48 tiles: the first ends at 48 / 7 = 6.9, the second at 3 * 48 / 7 = 20.6.
  EXPECT_EQ(divided({1, 2, 4}, 768), (Columns{7 * 16, 14 * 16, 27 * 16}));
  EXPECT_EQ(divided({1, 2}, 24), (Columns{8, 16}));  // tiles of 8
  EXPECT_EQ(divided({2, 1}, 9), (Columns{6, 3}));    // of 1
  EXPECT_TRUE(divided({}, 24).empty());
}

TEST(HiddenParts, RefusesPartsWithoutColumns) {
  for (const Columns& shares : {Columns{1, 0}, {-1, 2}, {1, 1, 1, 1}, {100, 1}}) {
    const auto parts = divide_hidden(shares, 24);
    ASSERT_FALSE(parts.ok());
    EXPECT_EQ(parts.status().code(), Exit::kUsage);
    EXPECT_NE(parts.status().message().find("parallel.hidden_shares"), std::string::npos);
  }
}

// d = 32, f = 24. Elements of the whole say where they are: gate and up (f, d), down (d, f).
TEST(HiddenParts, HaveTheirRowsAndColumns) {
  const ModelConfig whole = ModelConfig::parse(kTinyConfig, "config").take();
  const ModelConfig cut = with_hidden_parts(whole, Columns{1, 2}).take();
  EXPECT_EQ(cut.parts.columns, (Columns{8, 16}));
  const int64_t d = 32, f = 24;
  std::vector<float> elements(static_cast<size_t>(3 * d * f));
  std::iota(elements.begin(), elements.end(), 0.0f);
  std::vector<float> joined(elements.size(), -1.0f);
  for (const int64_t p : {1, 0}) {
    const int64_t first = p == 0 ? 0 : 8, own = p == 0 ? 8 : 16;
    std::vector<float> part(static_cast<size_t>(3 * d * own), -1.0f);
    take_part(cut, 2 * 5 + p, elements.data(), part.data());
    for (int64_t column = 0; column < own; ++column) {
      for (int64_t i = 0; i < d; ++i) {
        const auto at = [&](int64_t element) { return part[static_cast<size_t>(element)]; };
        const auto is = [](int64_t element) { return static_cast<float>(element); };
        ASSERT_EQ(at(column * d + i), is((first + column) * d + i));
        ASSERT_EQ(at((own + column) * d + i), is((f + first + column) * d + i));
        ASSERT_EQ(at(2 * own * d + i * own + column), is(2 * f * d + i * f + first + column));
      }
    }
    put_part(cut, 2 * 5 + p, part.data(), joined.data());
  }
  EXPECT_EQ(joined, elements);
}

TEST(HiddenParts, AreRecordsOfTheirOwn) {
  const ModelConfig whole = ModelConfig::parse(kTinyConfig, "config").take();
  const ModelConfig cut = with_hidden_parts(whole, Columns{1, 2}).take();
  const TensorTable before = TensorTable::make(whole), after = TensorTable::make(cut);
  // Two layers of 24 experts.
  EXPECT_EQ(after.records.size(), before.records.size() + 2 * 24);
  EXPECT_EQ(after.total_parameters(), before.total_parameters());
  EXPECT_EQ(after.active_parameters(cut), before.active_parameters(whole));
  const RecordSpec& part = after.records[static_cast<size_t>(after.expert(2, 2 * 7 + 1))];
  EXPECT_EQ(part.name(), "layer 2, expert 7, part 1");
  EXPECT_EQ(part.num_elements, 3 * 32 * 16);
  EXPECT_EQ(after.tensors[static_cast<size_t>(part.first_tensor)].name,
            "model.layers.2.mlp.experts.7.gate_proj.weight");
  EXPECT_FALSE(with_hidden_parts(whole, Columns{1, 1, 1, 1}).ok());
}

}  // namespace
}  // namespace pagoda
