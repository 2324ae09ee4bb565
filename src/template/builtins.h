// What templates may call: filters, tests, methods of strings, lists and dictionaries. Each is one
// row of a table, with its parameters by the names that Jinja2 or Python give them.
// Sources: Jinja2 3.1's documentation, "List of Builtin Filters" and "List of Builtin Tests";
// Python's of str, list and dict; Transformers' "Writing a chat template" for tojson.
//
// Where this differs: integers have 64 bits; upper() and lower() map one code point to one (but for
// the German sharp s); what is made of a safe() text is safe only where it is a sum.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "template/budget.h"
#include "template/value.h"

namespace pagoda::jinja {

struct Arguments {
  std::vector<Value> values;
  std::vector<std::pair<std::string, Value>> named;
};

// The arguments of a call by the places of their parameters; nullptr: not given.
using Given = std::vector<const Value*>;

struct Builtin {
  const char* name;
  // "a b" takes up to two arguments, "!a b" at least one, "!!a b" two. "*" takes any, not placed.
  const char* parameters;
  Result<Value> (*run)(Budget& budget, const Value& self, const Given& given, const Arguments& all);
};

// kBadData when arguments are missing, unknown or too many.
Result<Value> call(const Builtin& builtin, Budget& budget, const Value& self,
                   const Arguments& arguments);

bool is_method(const std::string& name);  // of any type, or of a loop

// kBadData when `name` is not known here; a template may have it where it is never reached.
Result<Value> apply_filter(Budget& budget, const std::string& name, const Value& value,
                           const Arguments& arguments);
Result<bool> apply_test(Budget& budget, const std::string& name, const Value& value,
                        const Arguments& arguments);
Result<Value> call_method(Budget& budget, const Method& method, const Arguments& arguments);

// value.name: a method, else an element. value[key]: an element, else a method.
Result<Value> attribute_of(Budget& budget, const Value& value, const std::string& name);
Result<Value> item_of(Budget& budget, const Value& value, const Value& key);
Result<Value> slice_of(Budget& budget, const Value& value, const Given& bounds);

// The tables, each in a file of its own.
const Builtin* find_text_filter(const std::string& name);
const Builtin* find_sequence_filter(const std::string& name);
const Builtin* find_text_method(const std::string& name);
const Builtin* find_list_method(const std::string& name);
const Builtin* find_dict_method(const std::string& name);

template <size_t n>
const Builtin* find_builtin(const Builtin (&table)[n], const std::string& name) {
  for (const Builtin& builtin : table) {
    if (name == builtin.name) return &builtin;
  }
  return nullptr;
}

}  // namespace pagoda::jinja
