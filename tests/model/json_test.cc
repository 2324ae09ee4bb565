#include "model/json.h"

#include <gtest/gtest.h>

namespace pagoda {
namespace {

TEST(Json, RefusesDuplicatesDepthNulAndBadText) {
  const auto message = [](std::string_view text, const JsonLimits& limits = {}) {
    const auto result = parse_json(text, "f", limits);
    return result.ok() ? std::string("accepted") : result.status().message();
  };
  EXPECT_EQ(message(R"({"a":1,"b":{"a":[1,{"c":null}]}})"), "accepted");
  EXPECT_EQ(message(R"({"a":1,"b":2,"a":3})"), "f: byte 16: duplicate key \"a\"");
  EXPECT_NE(message(std::string("{}\0{}", 5)).find("byte 2: invalid JSON: NUL"), std::string::npos);
  EXPECT_NE(message("[1,2").find("f: byte 4: invalid JSON"), std::string::npos);
  EXPECT_NE(message("\"\xC3(\"").find("invalid"), std::string::npos);
  EXPECT_NE(message(R"("\ud800")").find("invalid"), std::string::npos);
  EXPECT_NE(message("[1e999]").find("invalid"), std::string::npos);
  EXPECT_EQ(message(std::string(64, '[') + std::string(64, ']')), "accepted");
  EXPECT_EQ(message(std::string(65, '[') + std::string(65, ']')),
            "f: byte 65: nested deeper than 64");
  EXPECT_NE(message(std::string(500000, '[')).find("nested deeper"), std::string::npos);
  EXPECT_EQ(message("[1,2,3]", {.max_values = 4}), "accepted");
  EXPECT_NE(message("[1,2,3,4]", {.max_values = 4}).find("more than 4 values"), std::string::npos);
  EXPECT_EQ(message("\"abcd\"", {.max_string_bytes = 4}), "accepted");
  EXPECT_NE(message("\"abcde\"", {.max_string_bytes = 4}).find("longer than 4"), std::string::npos);
  EXPECT_NE(message("[1]", {.max_bytes = 2}).find("limit of 2"), std::string::npos);
}

TEST(Json, KeepsValues) {
  const std::string text = R"({"a":[1,-2,3.5,true,null,"x\u00e9"],"b":{},"c":[[],[[]]]})";
  auto result = parse_json(text, "f");
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result.value(), Json::parse(text));
}

}  // namespace
}  // namespace pagoda
