#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "data/template_values.h"
#include "template/template.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/testing/files.h"

namespace pagoda {

void fuzz_template(std::string_view input) {
  static const OrderedJson golden =
      OrderedJson::parse(get_file(PAGODA_GOLDEN_DIR "/chat/template_vectors.json"));
  static const jinja::Variables variables = [] {
    jinja::Variables all;
    for (const auto& [name, value] : golden["variables"].items()) {
      all.emplace_back(name, template_value(value));
    }
    return all;
  }();
  const auto parsed = jinja::Template::parse(std::string(input));
  if (!parsed.ok()) return;
  const auto rendered = parsed.value().render(variables, jinja::Date());
  if (!rendered.ok()) return;
  CHECK(first_invalid_utf8(rendered.value().text) == std::string::npos);
  for (const auto& [begin, end] : rendered.value().generated) {
    CHECK(begin <= end && end <= rendered.value().text.size());
  }
}

std::vector<std::string> template_seeds() {
  const OrderedJson golden =
      OrderedJson::parse(get_file(PAGODA_GOLDEN_DIR "/chat/template_vectors.json"));
  std::vector<std::string> seeds;
  for (const OrderedJson& vector : golden["vectors"]) seeds.push_back(vector["template"]);
  return seeds;
}

}  // namespace pagoda
