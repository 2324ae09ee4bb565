// The template engine against what Jinja2 makes of the same small templates
// (tests/golden/chat/template_vectors.json, by tools/make_template_vectors.py), and its bounds.
#include "template/template.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "data/template_values.h"
#include "tests/testing/files.h"
#include "tests/testing/sanitizer.h"

namespace pagoda {
namespace {

using jinja::Template;

constexpr jinja::Date kToday{.year = 2026, .month = 11, .day = 23};

const OrderedJson& golden() {
  static const OrderedJson root =
      OrderedJson::parse(get_file(PAGODA_GOLDEN_DIR "/chat/template_vectors.json"));
  return root;
}

const jinja::Variables& variables() {
  static const jinja::Variables made = [] {
    jinja::Variables all;
    for (const auto& [name, value] : golden()["variables"].items()) {
      all.emplace_back(name, template_value(value));
    }
    return all;
  }();
  return made;
}

Result<jinja::Rendered> rendered(const std::string& source) {
  ASSIGN_OR_RETURN(const Template parsed, Template::parse(source));
  return parsed.render(variables(), kToday);
}

std::string error_of(const std::string& source) {
  const auto got = rendered(source);
  return got.ok() ? "no error" : got.status().message();
}

TEST(Template, RendersWhatJinja2Renders) {
  int texts = 0, errors = 0;
  for (const OrderedJson& vector : golden()["vectors"]) {
    const std::string source = vector["template"];
    SCOPED_TRACE(source);
    const auto got = rendered(source);
    const bool refused = vector.contains("error");
    EXPECT_EQ(got.ok(), !refused) << (refused ? vector["error"].get<std::string>()
                                              : got.status().message());
    ++(refused ? errors : texts);
    if (!got.ok() || refused) continue;
    EXPECT_EQ(got.value().text, vector["text"].get<std::string>());
    const OrderedJson spans = got.value().generated;
    EXPECT_EQ(spans, vector.value("generated", OrderedJson::array()));
  }
  EXPECT_GT(texts, 380);
  EXPECT_GT(errors, 50);
}

TEST(Template, HostileTemplatesEndInAnError) {
  for (const OrderedJson& source : golden()["hostile"]) {
    const std::string text = source;
    SCOPED_TRACE(text.substr(0, 200));
    const std::string error = error_of(text);
    EXPECT_NE(error, "no error");
    EXPECT_TRUE(error.starts_with("line ")) << error;
  }
}

// Strings of 256 MiB grow by doubling; beside that, everything is charged before it is made.
TEST(Template, HostileTemplatesTakeBoundedMemory) {
  if (kUnderAddressSanitizer || kUnderThreadSanitizer)
    GTEST_SKIP() << "a sanitizer keeps what is freed";
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 700 * 1024) << "kB, after all of them";
}

TEST(Template, BudgetsDoNotOverflow) {
  jinja::Budget budget;
  EXPECT_TRUE(budget.make(1000).ok());
  EXPECT_EQ(budget.make(SIZE_MAX).message(), "makes more than 268435456 bytes");
  EXPECT_FALSE(budget.make(1).ok()) << "nothing is left";
  EXPECT_EQ(budget.spend(SIZE_MAX).message(), "takes more than 10000000 steps");
  EXPECT_EQ(budget.left().steps, 0);
  jinja::Budget exact({.steps = 5, .made_bytes = 0});
  EXPECT_TRUE(exact.spend(5).ok());
  EXPECT_FALSE(exact.spend(1).ok());
}

TEST(Template, TakesFromABudgetThatIsShared) {
  const Template parsed = Template::parse("{% for x in range(1000) %}{{ x }}{% endfor %}").value();
  jinja::Bounds left = {.steps = 10000, .made_bytes = 1 << 20};
  int rendered = 0;
  while (parsed.render({}, kToday, &left).ok()) ++rendered;
  EXPECT_GT(rendered, 0);
  EXPECT_LT(rendered, 5);
  EXPECT_EQ(left.steps, 0);
}

TEST(Template, ErrorsNameTheLineAndWhatIsWrong) {
  EXPECT_EQ(error_of("a\n{{ zz.y }}"), "line 2: \"zz\" is undefined");
  EXPECT_EQ(error_of("{% if yes %}\n\n{{ 1 + 'a' }}{% endif %}"),
            "line 3: there is no + of int and str");
  EXPECT_EQ(error_of("\n{{ raise_exception('no\x1b[31m') }}"),
            "line 2: the template refuses: no\\x1b[31m");
  EXPECT_EQ(error_of("{# \n #}{% if nothing %}{{ 1|zz }}{% else %}{{ 1|zz }}{% endif %}"),
            "line 2: the filter \"zz\" is not known here");
  EXPECT_EQ(error_of("{{ 1 is zz }}"), "line 1: the test \"zz\" is not known here");
  EXPECT_EQ(error_of("{{ n[1:] }}"), "line 1: an int has no slices");
  EXPECT_EQ(error_of("{{ s.find(missing) }}"),
            "line 1: an argument is an undefined value and no string");
  EXPECT_EQ(error_of("{{ s.zz() }}"), "line 1: calls the method \"zz\", which is not known here");
  EXPECT_EQ(error_of("{% include 'x' %}"), "line 1: the tag \"include\" is not known here");
  EXPECT_EQ(error_of("\xff"), "is not UTF-8");
  EXPECT_EQ(error_of(std::string(jinja::kMaxTemplateBytes + 1, 'a')),
            "is larger than 1048576 bytes");
}

TEST(Template, Dates) {
  const auto date = jinja::Date::parse("2024-02-29");
  ASSERT_TRUE(date.ok());
  EXPECT_EQ(date.value().day, 29);
  for (const char* bad : {"", "2023-02-29", "2024-13-01", "2024-2-29", "24-02-29", "2024-02-29 ",
                          "0000-01-01", "2024-02-2x"}) {
    EXPECT_FALSE(jinja::Date::parse(bad).ok()) << bad;
  }
}

// A block that is captured has no place in the text yet.
TEST(Template, CapturedGenerationIsNotMarked) {
  const auto got = rendered(
      "{% set x %}{% generation %}a{% endgeneration %}{% endset %}"
      "{% macro m() %}{% generation %}b{% endgeneration %}{% endmacro %}"
      "c{{ x }}{{ m() }}{% generation %}d{% endgeneration %}");
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got.value().text, "cabd");
  EXPECT_EQ(got.value().generated, (std::vector<std::pair<size_t, size_t>>{{3, 4}}));
}

TEST(Template, TellsWhetherItMarksGeneration) {
  EXPECT_TRUE(Template::parse("{% if 1 %}{% generation %}{% endgeneration %}{% endif %}")
                  .value()
                  .marks_generation());
  EXPECT_FALSE(Template::parse("{{ generation }}").value().marks_generation());
}

}  // namespace
}  // namespace pagoda
