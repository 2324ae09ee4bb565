// What of text from outside a terminal is shown in place of obeying it.
#include "base/terminal_text.h"

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/utf8.h"

namespace pagoda {
namespace {

std::string utf8(uint32_t code_point) {
  std::string text;
  append_utf8(code_point, &text);
  return text;
}

TEST(TerminalText, ShowsControlsAndMarksOfDirection) {
  const std::pair<std::string, const char*> cases[] = {{"\x1b[2J", "\\x1b[2J"},
                                                       {std::string(1, '\0'), "\\x00"},
                                                       {"a\rb\x07", "a\\x0db\\x07"},
                                                       {"\x7f", "\\u007f"},
                                                       {utf8(0x80), "\\u0080"},
                                                       {utf8(0x9B) + "31m", "\\u009b31m"},
                                                       {utf8(0x61C), "\\u061c"},
                                                       {utf8(0x200E), "\\u200e"},
                                                       {utf8(0x200F), "\\u200f"},
                                                       {utf8(0x202A), "\\u202a"},
                                                       {utf8(0x202E) + "x", "\\u202ex"},
                                                       {utf8(0x2066), "\\u2066"},
                                                       {utf8(0x2069), "\\u2069"},
                                                       {"\xff"
                                                        "a\xc3",
                                                        "\\xffa\\xc3"},
                                                       {"\x9b"
                                                        "1m",
                                                        "\\x9b1m"},
                                                       {"\xed\xa0\x80", "\\xed\\xa0\\x80"}};
  for (const auto& [text, shown] : cases) {
    EXPECT_EQ(terminal_text(text), shown);
    EXPECT_EQ(printable(text), shown);
    EXPECT_EQ(terminal_text(shown), shown) << "is shown a second time";
  }
}

TEST(TerminalText, LeavesEveryOtherCharacter) {
  for (const uint32_t c : {0x20u, 0x7Eu, 0xA0u, 0xE9u, 0x200Du, 0x2029u, 0x202Fu, 0x2065u, 0x206Au,
                           0x4E2Du, 0x1F409u, 0x10FFFFu}) {
    EXPECT_EQ(terminal_text("a" + utf8(c) + "b"), "a" + utf8(c) + "b") << c;
  }
  EXPECT_EQ(terminal_text("a\n\tb"), "a\n\tb");
  EXPECT_EQ(printable("a\n\tb"), "a\\x0a\\x09b") << "a word stays in its line";
}

TEST(TerminalText, AWordIsCutBetweenCharacters) {
  EXPECT_EQ(printable("abcd", 3), "abc...");
  EXPECT_EQ(printable("abc", 3), "abc");
  EXPECT_EQ(printable(utf8(0x4E2D) + utf8(0x4E2D), 2), utf8(0x4E2D) + "...");
}

// Whatever a line was made of, and whether anybody thought of it.
TEST(TerminalText, GoesOutInEveryLineOfTheLog) {
  testing::internal::CaptureStderr();
  log_info("wrote out\x1b[2J" + utf8(0x202E) + "\xff\nforged");
  log_warn(utf8(0x9B) + "2J");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "wrote out\\x1b[2J\\u202e\\xff\\x0aforged\nwarning: \\u009b2J\n");
}

TEST(TerminalText, GoesOutInResultsAndCharactersOfJsonStayTheSame) {
  testing::internal::CaptureStdout();
  print_result("{\"a\": \"" + utf8(0x9B) + "\"}\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "{\"a\": \"\\u009b\"}\n");
}

}  // namespace
}  // namespace pagoda
