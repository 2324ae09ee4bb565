#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace pagoda {
namespace {

// Against the definition by code points: every encoding of a scalar value is valid, and shortest
// forms are the only ones.
TEST(Utf8, KnowsEveryScalarValue) {
  for (uint32_t code = 0; code < 0x120000; ++code) {
    std::string s;
    if (code < 0x80) {
      s = {static_cast<char>(code)};
    } else if (code < 0x800) {
      s = {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
    } else if (code < 0x10000) {
      s = {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
           static_cast<char>(0x80 | (code & 63))};
    } else {
      s = {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
           static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
    }
    if (code < 0x110000 && !(code >= 0xD800 && code < 0xE000)) {
      std::string written;
      append_utf8(code, &written);
      ASSERT_EQ(written, s) << code;
      const std::string framed = "a" + s + "b";
      const CodePoint ahead = code_point_at(framed, 1);
      const CodePoint behind = code_point_before(framed, 1 + s.size());
      ASSERT_TRUE(ahead.value == code && ahead.bytes == s.size()) << code;
      ASSERT_TRUE(behind.value == code && behind.bytes == s.size()) << code;
    }
    const bool scalar = code < 0x110000 && !(code >= 0xD800 && code < 0xE000);
    ASSERT_EQ(first_invalid_utf8(s), scalar ? std::string::npos : 0u) << "code point " << code;
    ASSERT_EQ(first_invalid_utf8("ab" + s + "c"), scalar ? std::string::npos : 2u) << code;
    ASSERT_TRUE(s.size() == 1 || first_invalid_utf8(s.substr(0, s.size() - 1)) == 0) << code;
  }
  for (const char* overlong : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\x80",
                               "\xFE", "\xF5\x80\x80\x80"}) {
    EXPECT_EQ(first_invalid_utf8(overlong), 0u);
  }
}

// The example of the Unicode Standard, section 3.9, table 3-11, and truncated sequences.
TEST(Utf8, ReplacesMaximalSubparts) {
  const std::string mark = "\xEF\xBF\xBD";
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"),
            mark + mark + mark + mark + "A");
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            mark + mark + mark + mark + mark + mark + mark + mark + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            mark + mark + mark + mark + mark + mark + mark + mark + "A");
  EXPECT_EQ(replace_invalid_utf8("a\xF0\x9F\x98"), "a" + mark);
  EXPECT_EQ(replace_invalid_utf8("\u4e2d\U0001f600"), "\u4e2d\U0001f600");
}

}  // namespace
}  // namespace pagoda
