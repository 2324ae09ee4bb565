// Asked by tools/make_template_vectors.py --check, check_template_spans.py and
// check_answer_places.py. For each line of standard input it prints what comes of it, or {"error"}:
//   {"template", "variables"}                         {"text", "generated"}
//   {"template", "row", "bos", "eos", "special"}      {"rows": [{"text", "spans"}, ...]}, of the
//                                                     row's conversation as training data has it
#include <iostream>
#include <nlohmann/json.hpp>

#include "data/template_chat.h"
#include "data/template_values.h"
#include "model/json.h"
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

Result<OrderedJson> trained_rows(const OrderedJson& asked) {
  ChatTemplate chat;
  ASSIGN_OR_RETURN(chat.program, jinja::Template::parse(asked["template"]));
  chat.special.begin_of_text = asked["bos"];
  chat.special.end_of_text = asked["eos"];
  chat.today = {.year = 2026, .month = 11, .day = 23};
  const std::string source = asked["row"].dump();
  TemplateOptions options;
  options.special_tokens = asked["special"].get<std::vector<std::string>>();
  ASSIGN_OR_RETURN(const Json json, parse_json(source, "row"));
  ASSIGN_OR_RETURN(const Row row, parse_row(json, RowKind::kMessages, options.fields, true));
  OrderedJson out = {{"rows", OrderedJson::array()}};
  RETURN_IF_ERROR(render_rows(chat, row, source, options, [&](const TemplateRow& made) {
    OrderedJson spans = OrderedJson::array();
    for (const TrainedSpan& span : made.spans) spans.push_back({span.begin, span.end});
    out["rows"].push_back({{"text", made.text}, {"spans", spans}});
    return Status();
  }));
  return out;
}

void answer(const std::string& line) {
  const OrderedJson asked = OrderedJson::parse(line);
  OrderedJson out;
  if (asked.contains("row")) {
    auto rows = trained_rows(asked);
    out = rows.ok() ? rows.take() : OrderedJson{{"error", rows.status().message()}};
    std::cout << out.dump() << "\n";
    return;
  }
  const auto got = rendered(asked);
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
