#include "base/options.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "base/edit_distance.h"
#include "base/number_text.h"
#include "base/random.h"

namespace pagoda {
namespace {

enum class Colour : uint8_t { kRed, kGreen };

struct Sample {
  std::string name = "a";
  std::vector<std::string> paths;
  int64_t count = 3;
  double rate = 0.5;
  bool on = false;
  MemorySize room;
  MemorySizes rooms;
  Colour colour = Colour::kRed;

  void declare(OptionTable& table) {
    table.section("one", "First");
    table.add("name", name, Affects::kResults, "a name");
    table.add("paths", paths, Affects::kRunOnly, "paths");
    table.add("count", count, Affects::kResults, "how many", "things");
    table.section("two", "Second");
    table.add("rate", rate, Affects::kResults, "a rate");
    table.add("on", on, Affects::kResults, "a switch");
    table.add("room", room, Affects::kRunOnly, "a size");
    table.add("rooms", rooms, Affects::kRunOnly, "a size of each");
    table.add("colour", colour, {"red", "green"}, Affects::kResults, "a colour");
  }
};

class OptionsTest : public testing::Test {
 protected:
  OptionsTest() { sample_.declare(table_); }
  Status assign(const char* key, std::vector<std::string> texts) {
    const Option* option = table_.find(key);
    CHECK(option != nullptr);
    return option->assign(texts);
  }
  Sample sample_;
  OptionTable table_;
};

TEST_F(OptionsTest, AssignsEveryType) {
  EXPECT_TRUE(assign("one.name", {"b c"}).ok());
  EXPECT_TRUE(assign("one.paths", {"x", "y"}).ok());
  EXPECT_TRUE(assign("one.count", {"-7"}).ok());
  EXPECT_TRUE(assign("two.rate", {"1e-3"}).ok());
  EXPECT_TRUE(assign("two.on", {"true"}).ok());
  EXPECT_TRUE(assign("two.room", {"2GiB"}).ok());
  EXPECT_TRUE(assign("two.colour", {"green"}).ok());
  EXPECT_EQ(sample_.name, "b c");
  EXPECT_EQ(sample_.paths, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(sample_.count, -7);
  EXPECT_EQ(sample_.rate, 1e-3);
  EXPECT_TRUE(sample_.on);
  EXPECT_EQ(sample_.room.resolve(0, 0), 2 * kGiB);
  EXPECT_EQ(sample_.colour, Colour::kGreen);
}

TEST_F(OptionsTest, WrongValuesNameTheKeyAndChangeNothing) {
  struct Case {
    const char* key;
    std::vector<std::string> texts;
  };
  for (const Case& c :
       {Case{"one.count", {"3.5"}}, Case{"one.count", {""}}, Case{"one.count", {"3", "4"}},
        Case{"one.count", {}}, Case{"one.count", {"99999999999999999999"}},
        Case{"one.count", {"3 "}}, Case{"two.rate", {"nan"}}, Case{"two.rate", {"inf"}},
        Case{"two.rate", {"1e999"}}, Case{"two.on", {"1"}}, Case{"two.room", {"two"}},
        Case{"two.colour", {"blue"}}, Case{"one.name", {"\xff"}},
        Case{"one.name", {std::string("a\0b", 3)}}}) {
    const Status status = assign(c.key, c.texts);
    ASSERT_FALSE(status.ok()) << c.key << " took " << (c.texts.empty() ? "nothing" : c.texts[0]);
    EXPECT_EQ(status.code(), Exit::kUsage);
    EXPECT_TRUE(status.message().starts_with(std::string(c.key) + ":")) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
  EXPECT_EQ(sample_.count, 3);
  EXPECT_EQ(sample_.rate, 0.5);
  EXPECT_EQ(sample_.name, "a");
}

TEST_F(OptionsTest, CheckDoesNotAssign) {
  EXPECT_TRUE(table_.find("one.count")->check({"9"}).ok());
  EXPECT_EQ(sample_.count, 3);
}

TEST_F(OptionsTest, TextsAndDefaults) {
  EXPECT_EQ(table_.find("one.count")->default_text, "3");
  ASSERT_TRUE(assign("one.count", {"8"}).ok());
  EXPECT_EQ(table_.find("one.count")->default_text, "3");
  EXPECT_EQ(table_.find("one.count")->text(), "8");
  ASSERT_TRUE(assign("one.paths", {"a\"b", "c\\d\n"}).ok());
  EXPECT_EQ(table_.find("one.paths")->toml(), "[\"a\\\"b\", \"c\\\\d\\u000A\"]");
  EXPECT_EQ(table_.find("two.rate")->toml(), "0.5");
  EXPECT_EQ(table_.find("two.colour")->toml(), "\"red\"");
  EXPECT_EQ(table_.find("two.room")->toml(), "\"auto\"");
}

// One size is a text, several are a list; commas and lists say the same.
TEST_F(OptionsTest, SizesOfEachOrOfSeveral) {
  const Option& rooms = *table_.find("two.rooms");
  EXPECT_EQ(rooms.toml(), "\"auto\"");
  ASSERT_TRUE(assign("two.rooms", {"50%"}).ok());
  EXPECT_EQ(rooms.toml(), "\"50%\"");
  EXPECT_EQ(sample_.rooms.of(7).resolve(1000, 0), 500);
  EXPECT_EQ(sample_.rooms, MemorySizes(MemorySize::of_percent(50)));
  for (const std::vector<std::string>& texts :
       {std::vector<std::string>{"1GiB", "auto", "25%"}, {"1GiB,auto,25%"}, {"1GiB", "auto,25%"}}) {
    ASSERT_TRUE(assign("two.rooms", texts).ok());
    EXPECT_EQ(rooms.toml(), "[\"1GiB\", \"auto\", \"25%\"]");
    EXPECT_EQ(rooms.text(), "1GiB auto 25%");
    ASSERT_EQ(sample_.rooms.listed().size(), 3u);
    EXPECT_EQ(sample_.rooms.of(0).resolve(1000, 77), kGiB);
    EXPECT_EQ(sample_.rooms.of(1).resolve(1000, 77), 77);
    EXPECT_EQ(sample_.rooms.of(2).resolve(1000, 77), 250);
    sample_.rooms = MemorySizes();
  }
}

TEST_F(OptionsTest, SuggestsTheNearestKey) {
  EXPECT_EQ(table_.suggestion("one.cuont"), ", did you mean \"one.count\"?");
  EXPECT_EQ(table_.suggestion("count"), ", did you mean \"one.count\"?");
  EXPECT_EQ(table_.suggestion("two.count"), ", did you mean \"one.count\"?");
  EXPECT_EQ(table_.suggestion("zebra.stripes"), "");
  EXPECT_EQ(table_.suggestion(std::string(100000, 'x')), "");
}

TEST(EditDistance, KnownPairs) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2);
  EXPECT_EQ(edit_distance("same", "same"), 0);
}

TEST(MemorySize, ParsesAndPrintsBack) {
  struct Case {
    const char* text;
    int64_t bytes;  // bytes for a total of 1000
    const char* canonical;
  };
  for (const Case& c :
       {Case{"24GiB", 24 * kGiB, "24GiB"}, Case{"1.5GiB", 1536 * kMiB, "1536MiB"},
        Case{"512MiB", 512 * kMiB, "512MiB"}, Case{"24GB", 24000000000, "23437500KiB"},
        Case{"80%", 800, "80%"}, Case{"12.5%", 125, "12.5%"}, Case{"100%", 1000, "100%"},
        Case{"4097", 4097, "4097B"}, Case{"2 TiB", 2048 * kGiB, "2TiB"}, Case{"0", 0, "0B"},
        Case{"9007199254740993B", 9007199254740993, "9007199254740993B"},
        Case{"auto", 77, "auto"}}) {
    Result<MemorySize> size = MemorySize::parse(c.text);
    ASSERT_TRUE(size.ok()) << c.text;
    EXPECT_EQ(size->resolve(1000, 77), c.bytes) << c.text;
    EXPECT_EQ(size->text(), c.canonical) << c.text;
    Result<MemorySize> again = MemorySize::parse(size->text());
    ASSERT_TRUE(again.ok());
    EXPECT_EQ(*again, *size) << c.text;
  }
}

TEST(MemorySize, PercentagesOfTheLargestTotal) {
  EXPECT_EQ(MemorySize::of_percent(100).resolve(INT64_MAX, 0), INT64_MAX);
  const int64_t most = MemorySize::of_percent(99.9).resolve(INT64_MAX, 0);
  EXPECT_GT(most, INT64_MAX / 1000 * 998);
  EXPECT_LT(most, INT64_MAX);
}

TEST(MemorySize, RefusesWhatIsNoSize) {
  for (const char* text : {"", "GiB", "-1GiB", "1.5.2GiB", "24gib", "24 G", "0%", "101%", "1e3",
                           "9999999TiB", "99999999999999999999999", "%", "Auto", "1GiB "}) {
    EXPECT_FALSE(MemorySize::parse(text).ok()) << text;
  }
}

TEST(NumberText, RealsComeBackExactly) {
  constexpr uint64_t kSeed = 11;
  SCOPED_TRACE("seed 11");
  for (uint64_t i = 0; i < 20000; ++i) {
    const auto bits = philox(kSeed, RandomPurpose::kTest, i, 0);
    const double value = std::bit_cast<double>(uint64_t{bits[0]} << 32 | bits[1]);
    if (!std::isfinite(value)) continue;
    double back = 0;
    ASSERT_TRUE(parse_real(real_text(value), back)) << real_text(value);
    ASSERT_EQ(std::bit_cast<uint64_t>(back), std::bit_cast<uint64_t>(value)) << real_text(value);
  }
  EXPECT_EQ(real_text(1), "1.0");
  EXPECT_EQ(real_text(-0.0), "-0.0");
}

TEST(NumberText, WholeNumbersAtTheEdges) {
  int64_t value = 0;
  EXPECT_TRUE(parse_int64("-9223372036854775808", value));
  EXPECT_EQ(value, std::numeric_limits<int64_t>::min());
  EXPECT_FALSE(parse_int64("9223372036854775808", value));
  EXPECT_TRUE(parse_int64("+5", value));
  EXPECT_EQ(value, 5);
  for (const char* text : {"++5", "+-5", " 5", "0x5", "5a", "", "+"}) {
    EXPECT_FALSE(parse_int64(text, value)) << text;
  }
}

}  // namespace
}  // namespace pagoda
