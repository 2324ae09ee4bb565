#include "data/row.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/edit_distance.h"
#include "base/log.h"
#include "model/json.h"

namespace pagoda {

namespace {

constexpr double kMaxWeight = 1000;

constexpr const char* kKindNames[] = {"auto",        "text",   "messages", "conversations",
                                      "instruction", "prompt", "question", "tokens"};
constexpr const char* kFieldNames[] = {
    "text",   "messages",   "role",     "content",         "conversations", "from",
    "value",  "train",      "weight",   "instruction",     "input",         "output",
    "prompt", "completion", "question", "answer",          "system",        "history",
    "tools",  "input_ids",  "labels",   "completion_mask", "attention_mask"};
static_assert(std::size(kFieldNames) == kRowFields);
constexpr const char* kRoleNames[] = {"system", "developer", "user", "assistant", "tool",
                                      "function"};

// Spellings of ShareGPT rows and of other collections.
constexpr std::pair<const char*, Role> kRoleSpellings[] = {
    {"system", Role::kSystem},       {"developer", Role::kDeveloper}, {"user", Role::kUser},
    {"human", Role::kUser},          {"assistant", Role::kAssistant}, {"gpt", Role::kAssistant},
    {"chatgpt", Role::kAssistant},   {"bard", Role::kAssistant},      {"bing", Role::kAssistant},
    {"model", Role::kAssistant},     {"tool", Role::kTool},           {"observation", Role::kTool},
    {"function", Role::kFunction},
};

Status bad(std::string why) { return Status(Exit::kBadData, std::move(why)); }

std::string quoted(const std::string& text) { return "\"" + printable(text, 60) + "\""; }

// A member that is there and not null, or nullptr.
const Json* member(const Json& object, const std::string& name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

Result<std::string> text_member(const Json& object, const std::string& name) {
  const Json* value = member(object, name);
  if (value == nullptr) return bad("has no " + quoted(name));
  if (!value->is_string()) return bad(quoted(name) + " is not a text");
  return value->get_ref<const std::string&>();
}

Result<std::string> part_text(const Json& part) {
  ASSIGN_OR_RETURN(const std::string type, text_member(part, "type"));
  if (type == "text") return text_member(part, "text");
  return bad("is of type " + quoted(type) + "; only texts are read");
}

// A text, or a list of parts that are texts (as the chat API of OpenAI has them): one text.
Result<std::string> content_member(const Json& message, const std::string& name) {
  const Json* parts = member(message, name);
  if (parts == nullptr || !parts->is_array()) return text_member(message, name);
  std::string content;
  for (size_t i = 0; i < parts->size(); ++i) {
    const auto text = part_text((*parts)[i]);
    if (!text.ok()) return bad(quoted(name) + strf(" part %zu ", i + 1) + text.status().message());
    content += text.value();
  }
  return content;
}

// Data sets spell "none" in all these ways.
bool says_nothing(const Json& value) { return value.empty() || value == "" || value == "[]"; }

// A field that would change what the model sees.
Status refuse_unrendered(const Json& object, const std::string& name) {
  const Json* value = member(object, name);
  if (value == nullptr || says_nothing(*value)) return Status();
  return bad("has " + quoted(name) + ", which no chat preset renders; write it into the content as "
             "the model should see it");
}

Result<Role> role_of(const std::string& spelling) {
  for (const auto& [name, role] : kRoleSpellings) {
    if (spelling == name) return role;
  }
  return bad("unknown role " + quoted(spelling) +
             "; known are system, developer, user (human), assistant (gpt), tool and function");
}

Status read_marks(const Json& message, const RowFields& fields, Turn* turn) {
  if (const Json* train = member(message, fields[RowField::kTrain])) {
    if (!train->is_boolean())
      return bad(quoted(fields[RowField::kTrain]) + " is not true or false");
    turn->train = train->get<bool>();
  }
  if (const Json* weight = member(message, fields[RowField::kWeight])) {
    const double value = weight->is_number() ? weight->get<double>() : -1;
    if (!(value >= 0 && value <= kMaxWeight)) {
      return bad(quoted(fields[RowField::kWeight]) + " is not a number from 0 to 1000");
    }
    turn->weight = static_cast<float>(value);
  }
  return Status();
}

constexpr const char* kTemplateOnly[] = {"tool_calls", "function_call", "reasoning_content",
                                         "thinking"};

Result<Turn> read_turn(const Json& message, const RowFields& fields, RowField role_field,
                       RowField content_field, bool for_template) {
  if (!message.is_object()) return bad("is not an object");
  Turn turn;
  bool more = false;
  for (const char* name : kTemplateOnly) {
    if (!for_template) RETURN_IF_ERROR(refuse_unrendered(message, name));
    const Json* value = member(message, name);
    more |= value != nullptr;
    if (value != nullptr && !says_nothing(*value)) turn.template_only.push_back(name);
  }
  ASSIGN_OR_RETURN(const std::string role, text_member(message, fields[role_field]));
  ASSIGN_OR_RETURN(turn.role, role_of(role));
  if (!more || member(message, fields[content_field]) != nullptr) {
    ASSIGN_OR_RETURN(turn.content, content_member(message, fields[content_field]));
  }
  RETURN_IF_ERROR(read_marks(message, fields, &turn));
  return turn;
}

Status read_turns(const Json& messages, const RowFields& fields, RowField role_field,
                  RowField content_field, const std::string& list, Row* out) {
  if (!messages.is_array()) return bad("the messages are not a list");
  for (size_t i = 0; i < messages.size(); ++i) {
    auto turn = read_turn(messages[i], fields, role_field, content_field, out->for_template);
    if (!turn.ok()) return bad(strf("message %zu: ", i + 1) + turn.status().message());
    turn->list = list;
    turn->index = i;
    out->turns.push_back(turn.take());
  }
  return Status();
}

void add_turn(Role role, const std::string& content, Row* out) {
  Turn& turn = out->turns.emplace_back();
  turn.role = role;
  turn.content = content;
}

Status add_turn(const Json& row, Role role, const std::string& name, Row* out) {
  ASSIGN_OR_RETURN(const std::string content, text_member(row, name));
  add_turn(role, content, out);
  return Status();
}

Status read_system(const Json& row, const RowFields& fields, Row* out) {
  const Json* system = member(row, fields[RowField::kSystem]);
  if (system == nullptr || *system == "") return Status();
  return add_turn(row, Role::kSystem, fields[RowField::kSystem], out);
}

// Earlier questions and answers.
Status read_history(const Json& row, const RowFields& fields, Row* out) {
  const std::string& name = fields[RowField::kHistory];
  const Json* history = member(row, name);
  if (history == nullptr || says_nothing(*history)) return Status();
  if (!history->is_array()) return bad(quoted(name) + " is not a list");
  for (size_t i = 0; i < history->size(); ++i) {
    const Json& pair = (*history)[i];
    const bool texts =
        pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string();
    if (!texts) return bad(quoted(name) + strf(" %zu: is not a pair of texts", i + 1));
    add_turn(Role::kUser, pair[0], out);
    add_turn(Role::kAssistant, pair[1], out);
  }
  out->separator = nullptr;  // only a template says where an answer ends
  return Status();
}

// What came before, a question and its answer.
Status read_pair(const Json& row, const RowFields& fields, RowField question, RowField answer,
                 Row* out) {
  out->separator = "\n";
  RETURN_IF_ERROR(read_history(row, fields, out));
  RETURN_IF_ERROR(add_turn(row, Role::kUser, fields[question], out));
  return add_turn(row, Role::kAssistant, fields[answer], out);
}

Status read_instruction(const Json& row, const RowFields& fields, Row* out) {
  RETURN_IF_ERROR(read_pair(row, fields, RowField::kInstruction, RowField::kOutput, out));
  if (member(row, fields[RowField::kInput]) == nullptr) return Status();
  ASSIGN_OR_RETURN(const std::string input, text_member(row, fields[RowField::kInput]));
  std::string& asked = out->turns[out->turns.size() - 2].content;
  if (!input.empty()) asked += "\n" + input;
  return Status();
}

// The half of a prompt row, a text or a list of messages.
Status read_half(const Json& row, const RowFields& fields, RowField field, Role role, Row* out) {
  const Json* half = member(row, fields[field]);
  if (half == nullptr || !half->is_array()) return add_turn(row, role, fields[field], out);
  out->separator = nullptr;
  return read_turns(*half, fields, RowField::kRole, RowField::kContent, fields[field], out);
}

Status read_prompt(const Json& row, const RowFields& fields, Row* out) {
  out->separator = "";
  RETURN_IF_ERROR(read_half(row, fields, RowField::kPrompt, Role::kUser, out));
  for (Turn& turn : out->turns) turn.given = true;
  return read_half(row, fields, RowField::kCompletion, Role::kAssistant, out);
}

Status read_kind(const Json& row, const RowFields& fields, Row* out) {
  switch (out->kind) {
    case RowKind::kAuto:
    case RowKind::kTokens:
      break;
    case RowKind::kText: {
      ASSIGN_OR_RETURN(out->text, text_member(row, fields[RowField::kText]));
      return Status();
    }
    case RowKind::kMessages:
    case RowKind::kConversations: {
      const bool messages = out->kind == RowKind::kMessages;
      const std::string& name =
          fields[messages ? RowField::kMessages : RowField::kConversations];
      const Json* list = member(row, name);
      if (list == nullptr) return bad("has no " + quoted(name));
      return read_turns(*list, fields, messages ? RowField::kRole : RowField::kFrom,
                        messages ? RowField::kContent : RowField::kValue, name, out);
    }
    case RowKind::kInstruction:
      return read_instruction(row, fields, out);
    case RowKind::kPrompt:
      return read_prompt(row, fields, out);
    case RowKind::kQuestion:
      return read_pair(row, fields, RowField::kQuestion, RowField::kAnswer, out);
  }
  CHECK(false, "a row of no kind");
  return Status();
}

}  // namespace

const char* name_of(RowKind kind) { return kKindNames[static_cast<size_t>(kind)]; }
const char* name_of(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

RowFields::RowFields() { std::copy_n(kFieldNames, kRowFields, names_.begin()); }

std::string RowFields::key() const {
  constexpr size_t kFirst = 19;
  std::string key;
  for (size_t i = 0; i < kRowFields; ++i) {
    if (i < kFirst) key += "; " + names_[i];
    if (i >= kFirst && names_[i] != kFieldNames[i]) {
      key += strf("; %s=", kFieldNames[i]) + names_[i];
    }
  }
  return key;
}

Result<RowFields> RowFields::parse(const std::string& mapping) {
  RowFields fields;
  std::vector<std::string> seen;
  for (size_t at = 0; at < mapping.size();) {
    const size_t comma = std::min(mapping.find(',', at), mapping.size());
    const std::string pair = mapping.substr(at, comma - at);
    at = comma + 1;
    const size_t equals = pair.find('=');
    const std::string name = pair.substr(0, equals);
    const auto known = std::find(std::begin(kFieldNames), std::end(kFieldNames), name);
    if (equals == std::string::npos || equals + 1 == pair.size()) {
      return Status(Exit::kUsage, quoted(pair) + " is not NAME=FIELD, for example prompt=query");
    }
    if (known == std::end(kFieldNames)) {
      const std::string near =
          nearest_word(name, {std::begin(kFieldNames), std::end(kFieldNames)});
      return Status(Exit::kUsage, quoted(name) + " is no field of a row" +
                                      (near.empty() ? "" : ", did you mean " + quoted(near) + "?"));
    }
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
      return Status(Exit::kUsage, quoted(name) + " is mapped twice");
    }
    seen.push_back(name);
    fields.names_[static_cast<size_t>(known - std::begin(kFieldNames))] = pair.substr(equals + 1);
  }
  return fields;
}

RowKind kind_of(const Json& row, const RowFields& fields) {
  const auto has = [&](RowField field) { return member(row, fields[field]) != nullptr; };
  if (has(RowField::kMessages)) return RowKind::kMessages;
  if (has(RowField::kConversations)) return RowKind::kConversations;
  if (has(RowField::kPrompt) && has(RowField::kCompletion)) return RowKind::kPrompt;
  if (has(RowField::kInstruction) && has(RowField::kOutput)) return RowKind::kInstruction;
  if (has(RowField::kQuestion) && has(RowField::kAnswer)) return RowKind::kQuestion;
  if (has(RowField::kInputIds)) return RowKind::kTokens;
  return has(RowField::kText) ? RowKind::kText : RowKind::kAuto;
}

Result<Row> parse_row(const Json& row, RowKind kind, const RowFields& fields, bool for_template) {
  Row out;
  out.kind = kind;
  out.for_template = for_template;
  if (kind != RowKind::kText) {
    if (!for_template) RETURN_IF_ERROR(refuse_unrendered(row, fields[RowField::kTools]));
    RETURN_IF_ERROR(read_system(row, fields, &out));
  }
  const size_t num_systems = out.turns.size();
  RETURN_IF_ERROR(read_kind(row, fields, &out));
  if (kind != RowKind::kText && out.turns.size() == num_systems) return bad("has no messages");
  const auto is_system = [](const Turn& turn) { return turn.role == Role::kSystem; };
  if (num_systems > 0 && std::any_of(out.turns.begin() + 1, out.turns.end(), is_system)) {
    return bad("has " + quoted(fields[RowField::kSystem]) + " and a system message; keep one");
  }
  return out;
}

}  // namespace pagoda
