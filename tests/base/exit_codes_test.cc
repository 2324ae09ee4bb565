// The exit codes are said in four places: the enum, the table, the help and the page for people.
// All four have the same codes, and all but the enum the same words.
#include "base/exit_codes.h"

#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "tests/testing/files.h"

namespace pagoda {
namespace {

using Codes = std::map<int, std::string>;

// Every match of `pattern` in `text`: a number, and words if it has a second group.
Codes found_in(const std::string& text, const char* pattern) {
  const std::regex regex(pattern, std::regex::ECMAScript | std::regex::multiline);
  Codes codes;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) {
    const int code = std::stoi((*at)[1]);
    EXPECT_TRUE(codes.emplace(code, at->size() > 2 ? std::string((*at)[2]) : "").second)
        << code << " comes twice";
  }
  return codes;
}

Codes in_table() {
  Codes codes;
  for (const ExitMeaning& meaning : exit_meanings()) {
    EXPECT_TRUE(codes.emplace(static_cast<int>(meaning.code), meaning.text).second)
        << meaning.text << ": its code comes twice";
  }
  return codes;
}

TEST(ExitCodesTest, TableHasEveryCodeOfTheEnum) {
  const Codes codes = found_in(get_file(PAGODA_STATUS_HEADER), "^  k[A-Za-z]+ = ([0-9]+),");
  EXPECT_GE(codes.size(), 15u);
  Codes table = in_table();
  for (auto& [code, text] : table) text.clear();
  EXPECT_EQ(table, codes);
}

TEST(ExitCodesTest, HelpSaysWhatTheTableSays) {
  EXPECT_EQ(found_in(exit_codes_text(), "^ +([0-9]+)  (.*)$"), in_table());
  EXPECT_NE(exit_codes_text().find(std::string("128 + n  ") + kStoppedBySignal), std::string::npos);
}

TEST(ExitCodesTest, PageSaysWhatTheTableSays) {
  const std::string page = get_file(PAGODA_EXIT_CODES_PAGE);
  EXPECT_EQ(found_in(page, "^\\| ([0-9]+) \\| ([^|]*) \\|"), in_table());
  EXPECT_NE(page.find(std::string("| 128 + n | ") + kStoppedBySignal + " |"), std::string::npos);
}

}  // namespace
}  // namespace pagoda
