#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "template/builtins.h"
#include "template/compare.h"
#include "template/letters.h"
#include "template/lexer.h"
#include "template/value_text.h"

namespace pagoda::jinja {

namespace {

template <std::string (*change)(const std::string&)>
Result<Value> changed_text(Budget& budget, const Value& self, const Given&, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string text, text_of(budget, self));
  RETURN_IF_ERROR(budget.make(text.size()));
  return Value(change(text));
}

Result<Value> as_text(Budget& budget, const Value& self, const Given&, const Arguments&) {
  ASSIGN_OR_RETURN(std::string text, text_of(budget, self));
  return Value(std::move(text));
}

Result<Value> as_safe(Budget& budget, const Value& self, const Given&, const Arguments&) {
  ASSIGN_OR_RETURN(std::string text, text_of(budget, self));
  return Value::safe(std::move(text));
}

Result<Value> trim(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string text, text_of(budget, self));
  if (given[0] == nullptr || given[0]->is_none()) return Value(stripped(text, true, true));
  ASSIGN_OR_RETURN(const std::string set, text_of(budget, *given[0]));
  RETURN_IF_ERROR(budget.spend(text.size() * set.size() / kBytesOfStep));
  return Value(stripped_of(text, set, true, true));
}

Result<Value> replace_texts(Budget& budget, const Value& self, const Given& given,
                            const Arguments&) {
  Arguments arguments;
  ASSIGN_OR_RETURN(std::string text, text_of(budget, self));
  for (int i = 0; i < 2; ++i) {
    ASSIGN_OR_RETURN(std::string part, text_of(budget, *given[i]));
    arguments.values.emplace_back(std::move(part));
  }
  if (given[2] != nullptr && !given[2]->is_none()) arguments.values.push_back(*given[2]);
  return call(*find_text_method("replace"), budget, Value(std::move(text)), arguments);
}

Result<Value> indent(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(std::string text, text_of(budget, self));
  std::string by(4, ' ');
  if (given[0] != nullptr && given[0]->text() != nullptr) {
    by = *given[0]->text();
  } else if (given[0] != nullptr) {
    if (!given[0]->is_integer()) return failed("the width of an indent is no integer");
    const auto width = static_cast<size_t>(std::max<int64_t>(0, given[0]->integer()));
    RETURN_IF_ERROR(budget.make(width));
    by.assign(width, ' ');
  }
  const bool first = given[1] != nullptr && given[1]->truthy();
  const bool blank = given[2] != nullptr && given[2]->truthy();
  std::string out;
  bool begins = true;
  text += "\n";
  RETURN_IF_ERROR(for_each_line(text, [&](std::string_view line) {
    const bool indented = begins ? first : blank || !line.empty();
    if (!begins) out += '\n';
    begins = false;
    RETURN_IF_ERROR(budget.make(1 + line.size() + (indented ? by.size() : 0)));
    if (indented) out += by;
    out += line;
    return Status();
  }));
  return Value(std::move(out));
}

Status json_style(const Given& given, JsonStyle* style) {
  style->ascii = given[0] != nullptr && given[0]->truthy();
  const Value* indent = given[1];
  if (indent != nullptr && !indent->is_none()) {
    style->lines = true;
    style->comma = ",";
    if (indent->text() != nullptr) {
      style->indent = *indent->text();
    } else if (indent->is_integer() && indent->integer() <= 1000) {
      style->indent.assign(static_cast<size_t>(std::max<int64_t>(0, indent->integer())), ' ');
    } else {
      return failed("the indent of tojson is neither a text nor an integer up to 1000");
    }
  }
  if (given[2] != nullptr && !given[2]->is_none()) {
    const List* marks = given[2]->list();
    if (marks == nullptr || marks->items.size() != 2 || marks->items[0].text() == nullptr ||
        marks->items[1].text() == nullptr) {
      return failed("the separators of tojson are no two texts");
    }
    style->comma = *marks->items[0].text();
    style->colon = *marks->items[1].text();
  }
  style->sorted = given[3] != nullptr && given[3]->truthy();
  return Status();
}

Result<Value> tojson(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  JsonStyle style;
  RETURN_IF_ERROR(json_style(given, &style));
  ASSIGN_OR_RETURN(std::string text, json_of(budget, self, style));
  return Value(std::move(text));
}

// The number that a text spells, blanks around it aside.
template <typename Number>
bool spelled(const std::string& text, Number* number) {
  std::string digits = stripped(text, true, true);
  if (digits.starts_with('+')) digits.erase(0, 1);
  const char* end = digits.data() + digits.size();
  const auto parsed = std::from_chars(digits.data(), end, *number);
  return parsed.ec == std::errc() && parsed.ptr == end;
}

Result<Value> as_integer(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  const Value otherwise = given[0] != nullptr ? *given[0] : Value(int64_t{0});
  if (given[1] != nullptr) return failed("the filter \"int\" takes no base here");
  if (self.is_integer()) return Value(self.integer());
  double real = 0;
  if (const std::string* text = self.text()) {
    RETURN_IF_ERROR(budget.pass(text->size()));
    int64_t whole = 0;
    if (spelled(*text, &whole)) return Value(whole);
    if (!spelled(*text, &real)) return otherwise;
  } else if (self.is_number()) {
    real = self.real();
  } else if (self.is_undefined()) {
    return failed(self.undefined_what());
  } else {
    return otherwise;
  }
  if (!(std::abs(real) < 9e18)) return otherwise;
  return Value(static_cast<int64_t>(real));
}

Result<Value> as_real(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  if (self.is_number()) return Value(self.real());
  if (self.is_undefined()) return failed(self.undefined_what());
  double real = 0;
  if (const std::string* text = self.text()) {
    RETURN_IF_ERROR(budget.pass(text->size()));
    if (spelled(*text, &real)) return Value(real);
  }
  return given[0] != nullptr ? *given[0] : Value(0.0);
}

Result<Value> absolute(Budget&, const Value& self, const Given&, const Arguments&) {
  if (self.is_integer()) {
    if (self.integer() == INT64_MIN) return failed("a number is too large");
    return Value(std::abs(self.integer()));
  }
  if (self.is_number()) return Value(std::abs(self.real()));
  return failed(strf("%s has no absolute value", self.a_type().c_str()));
}

Result<Value> rounded(Budget&, const Value& self, const Given& given, const Arguments&) {
  const int64_t places = given[0] != nullptr && given[0]->is_integer() ? given[0]->integer() : 0;
  if (!self.is_number()) return failed(strf("%s is not rounded", self.a_type().c_str()));
  if (places < 0 || places > 15) return failed("numbers are rounded to 0 to 15 places");
  const std::string* method = given[1] != nullptr ? given[1]->text() : nullptr;
  if (method == nullptr || *method == "common") {
    if (self.is_integer()) return Value(self.integer());
    return Value(std::strtod(strf("%.*f", static_cast<int>(places), self.real()).c_str(), nullptr));
  }
  const double scale = std::pow(10.0, static_cast<double>(places));
  if (*method == "ceil") return Value(std::ceil(self.real() * scale) / scale);
  if (*method == "floor") return Value(std::floor(self.real() * scale) / scale);
  return failed("the method of a rounding is common, ceil or floor");
}

Result<Value> otherwise(Budget&, const Value& self, const Given& given, const Arguments&) {
  const bool falsy = given[1] != nullptr && given[1]->truthy() && !self.truthy();
  if (!self.is_undefined() && !falsy) return self;
  return given[0] != nullptr ? *given[0] : Value("");
}

constexpr Builtin kTextFilters[] = {
    {"abs", "", absolute},
    {"capitalize", "", changed_text<capitalized>},
    {"d", "default_value boolean", otherwise},
    {"default", "default_value boolean", otherwise},
    {"float", "default", as_real},
    {"indent", "width first blank", indent},
    {"int", "default base", as_integer},
    {"lower", "", changed_text<lower>},
    {"replace", "!!old new count", replace_texts},
    {"round", "precision method", rounded},
    {"safe", "", as_safe},
    {"string", "", as_text},
    {"title", "", changed_text<titled_words>},
    {"tojson", "ensure_ascii indent separators sort_keys", tojson},
    {"trim", "chars", trim},
    {"upper", "", changed_text<upper>},
};

}  // namespace

const Builtin* find_text_filter(const std::string& name) {
  return find_builtin(kTextFilters, name);
}

}  // namespace pagoda::jinja
