// A value of a template: what Jinja2 has as a Python object. Values are immutable, but for
// namespaces, and copies share what they hold; so no value can contain itself. A value nests at
// little more than kMaxValueDepth deep, which the evaluator sees to. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace pagoda::jinja {

class Value;
struct LoopState;
struct MacroNode;

// The depth of lists and dictionaries in each other.
inline constexpr int kMaxValueDepth = 100;

// What has a name that nothing was stored under; printed it is empty.
struct Undefined {
  std::shared_ptr<const std::string> what;  // "'x' is undefined"
};
struct None {};

enum class Sequence : uint8_t { kList, kTuple, kView, kRange, kLazy };

struct List {
  Sequence kind = Sequence::kList;
  std::vector<Value> items;
  mutable size_t next = 0;  // kLazy: what was not taken out yet
  int depth = 1;
};
using Pairs = std::vector<std::pair<Value, Value>>;
struct Dict {
  Pairs pairs;  // in the order of insertion, keys differ
  int depth = 1;
  const Value* find(const Value& key) const;  // nullptr: none
  const Value* find(const std::string& key) const;
};
// Variables with a name; owned by the rendering.
struct Namespace {
  std::vector<std::pair<std::string, Value>> members;
};
// A method of a string, list or dictionary that was not called yet.
struct Method {
  std::shared_ptr<const Value> self;
  std::string name;
};
enum class Function : uint8_t { kRange, kNamespace, kDict, kRaise, kNow };

class Value {
 public:
  using Text = std::shared_ptr<const std::string>;

  Value() : state_(Undefined{}) {}
  Value(None none) : state_(none) {}
  Value(bool value) : state_(value) {}
  Value(int64_t value) : state_(value) {}
  Value(double value) : state_(value) {}
  Value(std::string text) : state_(std::make_shared<const std::string>(std::move(text))) {}
  Value(const char* text) : Value(std::string(text)) {}
  Value(Namespace* space) : state_(space) {}
  Value(LoopState* loop) : state_(loop) {}
  Value(const MacroNode* macro) : state_(macro) {}
  Value(Function function) : state_(function) {}
  Value(Method method) : state_(std::make_shared<const Method>(std::move(method))) {}
  // What the filter "safe" gives (MarkupSafe's Markup): a text to which others are added escaped.
  static Value safe(std::string text);
  static Value undefined(std::string what);
  static Value list(std::vector<Value> items, Sequence kind = Sequence::kList);
  // REQUIRES: keys differ.
  static Value dict(Pairs pairs);

  template <typename T>
  const T* get() const {
    return std::get_if<T>(&state_);
  }
  bool is_undefined() const { return get<Undefined>() != nullptr; }
  bool is_none() const { return get<None>() != nullptr; }
  const std::string* text() const;  // nullptr: no string
  bool is_safe() const { return get<Safe>() != nullptr; }
  const List* list() const;
  const Dict* dict() const;
  Namespace* space() const;
  LoopState* loop() const;
  const Method* method() const;
  bool is_number() const;   // a boolean is one, as in Python
  bool is_integer() const;  // a boolean or an integer
  int64_t integer() const;  // REQUIRES: is_integer()
  double real() const;      // REQUIRES: is_number()
  bool truthy() const;
  int depth() const;
  const char* type_name() const;  // as Python says it
  std::string a_type() const;     // "an int"
  std::string undefined_what() const;

 private:
  struct Safe {
    Text text;
  };
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  using MethodPtr = std::shared_ptr<const Method>;
  std::variant<Undefined, None, bool, int64_t, double, Text, Safe, ListPtr, DictPtr, Namespace*,
               LoopState*, const MacroNode*, Function, MethodPtr>
      state_;
};

// Strings are counted in code points; `text` is well-formed UTF-8.
size_t length_of(const std::string& text);
// Byte offset of a code point, text.size() for one behind the end.
size_t offset_of(const std::string& text, size_t index);

}  // namespace pagoda::jinja
