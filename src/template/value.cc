#include "template/value.h"

#include <algorithm>

#include "base/utf8.h"
#include "template/compare.h"

namespace pagoda::jinja {

const Value* Dict::find(const Value& key) const {
  if (const std::string* name = key.text()) return find(*name);
  for (const auto& [k, value] : pairs) {
    if (equal_scalars(k, key)) return &value;
  }
  return nullptr;
}

const Value* Dict::find(const std::string& key) const {
  for (const auto& [k, value] : pairs) {
    const std::string* name = k.text();
    if (name != nullptr && *name == key) return &value;
  }
  return nullptr;
}

Value Value::undefined(std::string what) {
  Value value;
  value.state_ = Undefined{std::make_shared<const std::string>(std::move(what))};
  return value;
}

Value Value::list(std::vector<Value> items, Sequence kind) {
  auto list = std::make_shared<List>();
  for (const Value& item : items) list->depth = std::max(list->depth, 1 + item.depth());
  list->kind = kind;
  list->items = std::move(items);
  Value value;
  value.state_ = ListPtr(std::move(list));
  return value;
}

Value Value::dict(Pairs pairs) {
  auto dict = std::make_shared<Dict>();
  for (const auto& [key, item] : pairs) {
    dict->depth = std::max({dict->depth, 1 + key.depth(), 1 + item.depth()});
  }
  dict->pairs = std::move(pairs);
  Value value;
  value.state_ = DictPtr(std::move(dict));
  return value;
}

const std::string* Value::text() const {
  if (const Safe* safe = get<Safe>()) return safe->text.get();
  const Text* text = get<Text>();
  return text != nullptr ? text->get() : nullptr;
}

Value Value::safe(std::string text) {
  Value value;
  value.state_ = Safe{std::make_shared<const std::string>(std::move(text))};
  return value;
}

const List* Value::list() const {
  const ListPtr* list = get<ListPtr>();
  return list != nullptr ? list->get() : nullptr;
}

const Dict* Value::dict() const {
  const DictPtr* dict = get<DictPtr>();
  return dict != nullptr ? dict->get() : nullptr;
}

Namespace* Value::space() const {
  Namespace* const* space = get<Namespace*>();
  return space != nullptr ? *space : nullptr;
}

LoopState* Value::loop() const {
  LoopState* const* loop = get<LoopState*>();
  return loop != nullptr ? *loop : nullptr;
}

const Method* Value::method() const {
  const MethodPtr* method = get<MethodPtr>();
  return method != nullptr ? method->get() : nullptr;
}

bool Value::is_integer() const { return get<bool>() != nullptr || get<int64_t>() != nullptr; }
bool Value::is_number() const { return is_integer() || get<double>() != nullptr; }

int64_t Value::integer() const {
  const bool* flag = get<bool>();
  return flag != nullptr ? (*flag ? 1 : 0) : *get<int64_t>();
}

double Value::real() const {
  const double* value = get<double>();
  return value != nullptr ? *value : static_cast<double>(integer());
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return real() != 0;
  if (const std::string* t = text()) return !t->empty();
  if (const List* l = list()) return l->kind == Sequence::kLazy || !l->items.empty();
  if (const Dict* d = dict()) return !d->pairs.empty();
  return true;
}

int Value::depth() const {
  if (const List* l = list()) return l->depth;
  if (const Dict* d = dict()) return d->depth;
  return method() != nullptr ? 1 + method()->self->depth() : 0;
}

const char* Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (get<bool>() != nullptr) return "bool";
  if (get<int64_t>() != nullptr) return "int";
  if (get<double>() != nullptr) return "float";
  if (text() != nullptr) return is_safe() ? "Markup" : "str";
  if (dict() != nullptr) return "dict";
  if (space() != nullptr) return "Namespace";
  if (loop() != nullptr) return "LoopContext";
  if (get<const MacroNode*>() != nullptr) return "Macro";
  if (const List* l = list()) {
    constexpr const char* kNames[] = {"list", "tuple", "view", "range", "generator"};
    return kNames[static_cast<size_t>(l->kind)];
  }
  return "function";
}

std::string Value::a_type() const {
  if (is_undefined()) return "an undefined value";
  const std::string name = type_name();
  return (name == "int" ? "an " : "a ") + name;
}

std::string Value::undefined_what() const {
  const Undefined* undefined = get<Undefined>();
  if (undefined == nullptr || undefined->what == nullptr) return "a value is undefined";
  return *undefined->what;
}

size_t length_of(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                           [](char byte) { return !is_utf8_continuation(byte); }));
}

size_t offset_of(const std::string& text, size_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (is_utf8_continuation(text[at])) continue;
    if (index == 0) return at;
    --index;
  }
  return at;
}

}  // namespace pagoda::jinja
