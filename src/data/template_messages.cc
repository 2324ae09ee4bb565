#include "data/template_messages.h"

#include <nlohmann/json.hpp>

#include "model/json.h"

namespace pagoda {

namespace {

using jinja::Value;

// What a text spells as JSON, if it spells an object or a list.
void replace_by_spelled(OrderedJson* value) {
  if (!value->is_string()) return;
  const std::string& text = value->get_ref<const std::string&>();
  if (!text.starts_with('{') && !text.starts_with('[')) return;
  if (!parse_json(text, "a tool").ok()) return;
  *value = OrderedJson::parse(text);
}

void spell_arguments(OrderedJson* calls) {
  replace_by_spelled(calls);
  if (!calls->is_array()) return;
  for (OrderedJson& call : *calls) {
    if (!call.is_object()) continue;
    OrderedJson& function = call.contains("function") ? call["function"] : call;
    if (function.is_object() && function.contains("arguments")) {
      replace_by_spelled(&function["arguments"]);
    }
  }
}

OrderedJson message_of(const Turn& turn, RowKind kind, const OrderedJson& json,
                       const RowFields& fields) {
  OrderedJson made = {{"role", name_of(turn.role)}, {"content", turn.content}};
  if (turn.list.empty()) return made;
  const OrderedJson& message = json.at(turn.list).at(turn.index);
  const bool named = kind == RowKind::kConversations;
  const std::string& role = fields[named ? RowField::kFrom : RowField::kRole];
  const std::string& content = fields[named ? RowField::kValue : RowField::kContent];
  const auto given = message.find(content);
  if (given == message.end()) {
    made.erase("content");
  } else if (!given->is_array()) {  // its parts are joined in turn.content
    made["content"] = *given;
  }
  for (const auto& [name, value] : message.items()) {
    const bool taken = name == role || name == content || name == "role" || name == "content";
    const bool training = name == fields[RowField::kTrain] || name == fields[RowField::kWeight];
    if (!taken && !training) made[name] = value;
  }
  if (made.contains("tool_calls")) spell_arguments(&made["tool_calls"]);
  return made;
}

}  // namespace

std::vector<Value> template_messages(const Row& row, const OrderedJson& json,
                                     const RowFields& fields) {
  std::vector<Value> messages;
  for (const Turn& turn : row.turns) {
    messages.push_back(template_value(message_of(turn, row.kind, json, fields)));
  }
  return messages;
}

Value template_tools(const OrderedJson& json, const RowFields& fields) {
  OrderedJson tools = json.value(fields[RowField::kTools], OrderedJson());
  replace_by_spelled(&tools);
  if (!tools.is_array() || tools.empty()) return Value(jinja::None{});
  return template_value(tools);
}

}  // namespace pagoda
