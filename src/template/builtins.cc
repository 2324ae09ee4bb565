#include "template/builtins.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/log.h"
#include "base/utf8.h"
#include "template/compare.h"
#include "template/letters.h"
#include "template/value_text.h"

namespace pagoda::jinja {

namespace {

std::vector<std::string_view> words(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find(' '), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

constexpr const char* kTests[] = {
    "==",      "boolean", "callable", "defined",  "divisibleby", "eq",
    "equalto", "even",    "false",    "float",    "ge",          "greaterthan",
    "gt",      "in",      "integer",  "iterable", "le",          "lessthan",
    "lower",   "lt",      "mapping",  "ne",       "none",        "number",
    "odd",     "sameas",  "sequence", "string",   "true",        "undefined",
    "upper",   "!=",      "<",        "<=",       ">",           ">="};

bool is_sequence(const Value& value) {
  const List* list = value.list();
  if (list != nullptr) return list->kind != Sequence::kLazy && list->kind != Sequence::kView;
  return value.text() != nullptr || value.dict() != nullptr || value.is_undefined();
}

Result<bool> test_kind(Budget& budget, const std::string& name, const Value& value) {
  if (name == "defined") return !value.is_undefined();
  if (name == "undefined") return value.is_undefined();
  if (name == "none") return value.is_none();
  if (name == "string") return value.text() != nullptr;
  if (name == "number") return value.is_number();
  if (name == "boolean") return value.get<bool>() != nullptr;
  if (name == "integer") return value.get<int64_t>() != nullptr;
  if (name == "float") return value.get<double>() != nullptr;
  if (name == "true" || name == "false") {
    const bool* flag = value.get<bool>();
    return flag != nullptr && *flag == (name == "true");
  }
  if (name == "mapping") return value.dict() != nullptr;
  if (name == "sequence") return is_sequence(value);
  if (name == "iterable") return is_sequence(value) || value.list() != nullptr;
  if (name == "callable") {
    return value.get<Function>() != nullptr || value.method() != nullptr ||
           value.get<const MacroNode*>() != nullptr;
  }
  if (name == "odd" || name == "even") {
    if (!value.is_integer())
      return failed(strf("%s is neither odd nor even", value.a_type().c_str()));
    return (value.integer() % 2 != 0) == (name == "odd");
  }
  ASSIGN_OR_RETURN(const std::string text, text_of(budget, value));
  return name == "upper" ? all_upper(text) : all_lower(text);
}

// The tests with an argument.
bool is_comparison(const std::string& name) {
  constexpr const char* kNames[] = {
      "==", "eq",       "equalto", "!=", "ne", "in", "divisibleby", "sameas", "<",
      "lt", "lessthan", "<=",      "le", ">",  "gt", "greaterthan", ">=",     "ge"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

// Small numbers and short strings are mostly one object in Python, so all equal ones are here.
bool same_object(const Value& a, const Value& b) {
  if (a.list() != nullptr || b.list() != nullptr) return a.list() == b.list();
  if (a.dict() != nullptr || b.dict() != nullptr) return a.dict() == b.dict();
  return std::string_view(a.type_name()) == b.type_name() && equal_scalars(a, b);
}

Result<bool> test_pair(Budget& budget, const std::string& name, const Value& value,
                       const Value& other) {
  if (name == "==" || name == "eq" || name == "equalto") return equal(budget, value, other);
  if (name == "!=" || name == "ne") {
    ASSIGN_OR_RETURN(const bool same, equal(budget, value, other));
    return !same;
  }
  if (name == "in") return contains(budget, other, value);
  if (name == "sameas") return same_object(value, other);
  if (name == "divisibleby") {
    if (!value.is_integer() || !other.is_integer() || other.integer() == 0) {
      return failed("only integers are divisible, and none by 0");
    }
    return other.integer() == -1 || value.integer() % other.integer() == 0;
  }
  ASSIGN_OR_RETURN(const int sign, order(budget, value, other));
  if (name == "<" || name == "lt" || name == "lessthan") return sign < 0;
  if (name == "<=" || name == "le") return sign <= 0;
  if (name == ">" || name == "gt" || name == "greaterthan") return sign > 0;
  return sign >= 0;
}

const Builtin* method_of(const Value& value, const std::string& name) {
  if (value.text() != nullptr) return find_text_method(name);
  if (value.dict() != nullptr) return find_dict_method(name);
  const List* list = value.list();
  const bool indexed =
      list != nullptr && list->kind != Sequence::kLazy && list->kind != Sequence::kView;
  return indexed ? find_list_method(name) : nullptr;
}

Result<Value> bound_method(Budget& budget, const Value& value, const std::string& name) {
  RETURN_IF_ERROR(budget.make_items(2));
  return Value(Method{std::make_shared<const Value>(value), name});
}

Value no_attribute(const Value& value, const std::string& name) {
  return Value::undefined(
      strf("%s has no attribute \"%s\"", value.a_type().c_str(), printable(name, 60).c_str()));
}

// Position of an index in a sequence, which counts from the end below 0; `size` where there is
// none.
size_t position(int64_t index, size_t size) {
  const auto length = static_cast<int64_t>(size);
  const int64_t at = index < 0 ? index + length : index;
  return at < 0 || at >= length ? size : static_cast<size_t>(at);
}

// The positions that a slice takes, as Python's slice.indices().
Result<std::vector<size_t>> positions(Budget& budget, const Given& bounds, size_t size) {
  int64_t values[3] = {0, 0, 1};
  bool given[3];
  for (size_t i = 0; i < 3; ++i) {
    given[i] = bounds[i] != nullptr && !bounds[i]->is_none();
    if (!given[i]) continue;
    if (!bounds[i]->is_integer()) return failed("the bound of a slice is no integer");
    values[i] = bounds[i]->integer();
  }
  const auto length = static_cast<int64_t>(size);
  const int64_t step = std::clamp(values[2], -length - 1, length + 1);
  if (values[2] == 0) return failed("the step of a slice is 0");
  const int64_t lowest = step < 0 ? -1 : 0, highest = step < 0 ? length - 1 : length;
  const auto place = [&](size_t i, int64_t otherwise) {
    if (!given[i]) return otherwise;
    const int64_t at = values[i] < 0 ? std::max(values[i], -length - 1) + length : values[i];
    return std::clamp(at, lowest, highest);
  };
  const int64_t begin = place(0, step < 0 ? highest : lowest);
  const int64_t end = place(1, step < 0 ? lowest : highest);
  std::vector<size_t> out;
  for (int64_t at = begin; step > 0 ? at < end : at > end; at += step) {
    RETURN_IF_ERROR(budget.make(sizeof(size_t)));
    out.push_back(static_cast<size_t>(at));
  }
  return out;
}

}  // namespace

Result<Value> call(const Builtin& builtin, Budget& budget, const Value& self,
                   const Arguments& arguments) {
  RETURN_IF_ERROR(budget.spend(1));
  std::string_view parameters = builtin.parameters;
  if (parameters == "*") return builtin.run(budget, self, {}, arguments);
  size_t required = 0;
  for (; parameters.starts_with('!'); parameters.remove_prefix(1)) ++required;
  const std::vector<std::string_view> names = words(parameters);
  Given given(std::max<size_t>(names.size(), 1), nullptr);
  if (arguments.values.size() > names.size()) {
    return failed(strf("%s takes at most %zu arguments", builtin.name, names.size()));
  }
  for (size_t i = 0; i < arguments.values.size(); ++i) given[i] = &arguments.values[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      return failed(strf("%s has no argument \"%s\"", builtin.name, printable(name, 60).c_str()));
    }
    given[static_cast<size_t>(found - names.begin())] = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (given[i] == nullptr) return failed(strf("%s lacks an argument", builtin.name));
  }
  return builtin.run(budget, self, given, arguments);
}

bool is_method(const std::string& name) {
  return find_text_method(name) != nullptr || find_list_method(name) != nullptr ||
         find_dict_method(name) != nullptr || name == "cycle";
}

Result<Value> apply_filter(Budget& budget, const std::string& name, const Value& value,
                           const Arguments& arguments) {
  const Builtin* filter = find_text_filter(name);
  if (filter == nullptr) filter = find_sequence_filter(name);
  if (filter == nullptr) {
    return failed("the filter \"" + printable(name, 60) + "\" is not known here");
  }
  return call(*filter, budget, value, arguments);
}

Result<bool> apply_test(Budget& budget, const std::string& name, const Value& value,
                        const Arguments& arguments) {
  RETURN_IF_ERROR(budget.spend(1));
  if (std::find(std::begin(kTests), std::end(kTests), name) == std::end(kTests)) {
    return failed("the test \"" + printable(name, 60) + "\" is not known here");
  }
  const size_t wanted = is_comparison(name) ? 1 : 0;
  if (arguments.values.size() != wanted || !arguments.named.empty()) {
    return failed(strf("the test %s takes %zu arguments", name.c_str(), wanted));
  }
  if (wanted == 0) return test_kind(budget, name, value);
  return test_pair(budget, name, value, arguments.values[0]);
}

Result<Value> call_method(Budget& budget, const Method& method, const Arguments& arguments) {
  const Builtin* builtin = method_of(*method.self, method.name);
  CHECK(builtin != nullptr, "only known methods are bound");
  return call(*builtin, budget, *method.self, arguments);
}

Result<Value> attribute_of(Budget& budget, const Value& value, const std::string& name) {
  if (value.is_undefined()) return failed(value.undefined_what());
  if (method_of(value, name) != nullptr) return bound_method(budget, value, name);
  if (const Dict* dict = value.dict()) {
    RETURN_IF_ERROR(budget.look_up(dict->pairs.size(), name.size()));
    const Value* found = dict->find(name);
    if (found != nullptr) return *found;
  }
  if (const Namespace* space = value.space()) {
    RETURN_IF_ERROR(budget.look_up(space->members.size(), name.size()));
    for (const auto& [member, held] : space->members) {
      if (member == name) return held;
    }
  }
  return no_attribute(value, name);
}

Result<Value> item_of(Budget& budget, const Value& value, const Value& key) {
  if (value.is_undefined()) return failed(value.undefined_what());
  if (const Dict* dict = value.dict()) {
    ASSIGN_OR_RETURN(const Value* found, look_up(budget, *dict, key));
    if (found != nullptr) return *found;
  }
  const List* list = value.list();
  if (key.is_integer() && list != nullptr && list->kind != Sequence::kLazy &&
      list->kind != Sequence::kView) {
    const size_t at = position(key.integer(), list->items.size());
    if (at < list->items.size()) return list->items[at];
  }
  if (const std::string* text = value.text(); text != nullptr && key.is_integer()) {
    RETURN_IF_ERROR(budget.pass(text->size()));
    const size_t at = position(key.integer(), length_of(*text));
    const size_t begin = offset_of(*text, at);
    if (begin < text->size()) return Value(text->substr(begin, code_point_at(*text, begin).bytes));
  }
  if (const std::string* name = key.text()) {
    if (method_of(value, *name) != nullptr) return bound_method(budget, value, *name);
    return value.space() != nullptr ? attribute_of(budget, value, *name)
                                    : Result<Value>(no_attribute(value, *name));
  }
  return Value::undefined(strf("%s has no such element", value.a_type().c_str()));
}

Result<Value> slice_of(Budget& budget, const Value& value, const Given& bounds) {
  if (value.is_undefined()) return failed(value.undefined_what());
  if (const std::string* text = value.text()) {
    RETURN_IF_ERROR(budget.make(text->size()));
    std::vector<size_t> starts;
    for (size_t at = 0; at < text->size(); at += code_point_at(*text, at).bytes) {
      RETURN_IF_ERROR(budget.make(sizeof(size_t)));
      starts.push_back(at);
    }
    ASSIGN_OR_RETURN(const std::vector<size_t> places, positions(budget, bounds, starts.size()));
    std::string out;
    for (const size_t at : places) {
      out.append(*text, starts[at], code_point_at(*text, starts[at]).bytes);
    }
    return Value(std::move(out));
  }
  const List* list = value.list();
  if (list == nullptr || list->kind == Sequence::kLazy || list->kind == Sequence::kView) {
    return failed(value.a_type() + " has no slices");
  }
  ASSIGN_OR_RETURN(const std::vector<size_t> places, positions(budget, bounds, list->items.size()));
  RETURN_IF_ERROR(budget.make_items(places.size()));
  std::vector<Value> items;
  for (const size_t at : places) items.push_back(list->items[at]);
  return Value::list(std::move(items), list->kind);
}

}  // namespace pagoda::jinja
