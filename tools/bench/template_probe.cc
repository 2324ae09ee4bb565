// Asked by tools/make_template_vectors.py --check. For each line {"template", "variables"} of
// standard input it prints {"text", "generated"} or {"error"}.
#include <iostream>
#include <nlohmann/json.hpp>

#include "data/template_values.h"
#include "template/template.h"

namespace pagoda {
namespace {

Result<jinja::Rendered> rendered(const OrderedJson& asked) {
  ASSIGN_OR_RETURN(const jinja::Template parsed, jinja::Template::parse(asked["template"]));
  jinja::Variables variables;
  for (const auto& [name, value] : asked["variables"].items()) {
    variables.emplace_back(name, template_value(value));
  }
  return parsed.render(variables, {.year = 2026, .month = 11, .day = 23});
}

void answer(const std::string& line) {
  const auto got = rendered(OrderedJson::parse(line));
  OrderedJson out;
  if (got.ok()) {
    out["text"] = got.value().text;
    if (!got.value().generated.empty()) out["generated"] = got.value().generated;
  } else {
    out["error"] = got.status().message();
  }
  std::cout << out.dump() << "\n";
}

}  // namespace
}  // namespace pagoda

int main() {
  for (std::string line; std::getline(std::cin, line);) pagoda::answer(line);
}
