#include <algorithm>
#include <span>
#include <string_view>

#include "base/utf8.h"
#include "template/builtins.h"
#include "template/compare.h"
#include "template/letters.h"
#include "template/lexer.h"
#include "template/value_text.h"

namespace pagoda::jinja {

namespace {

// An argument that has to be a string.
Result<std::string_view> string_given(const Value* given) {
  if (given->text() == nullptr) {
    return failed(strf("an argument is %s and no string", given->a_type().c_str()));
  }
  return std::string_view(*given->text());
}

Result<int64_t> count_given(const Value* given) {
  if (given == nullptr) return int64_t{-1};
  if (!given->is_integer()) return failed("a count is no integer");
  return given->integer();
}

template <std::string (*change)(const std::string&)>
Result<Value> changed(Budget& budget, const Value& self, const Given&, const Arguments&) {
  RETURN_IF_ERROR(budget.make(self.text()->size()));
  return Value(change(*self.text()));
}

template <bool (*ask)(const std::string&)>
Result<Value> asked(Budget& budget, const Value& self, const Given&, const Arguments&) {
  RETURN_IF_ERROR(budget.pass(self.text()->size()));
  return Value(ask(*self.text()));
}

template <bool left, bool right>
Result<Value> strip(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  const std::string& text = *self.text();
  RETURN_IF_ERROR(budget.make(text.size()));
  if (given[0] == nullptr || given[0]->is_none()) return Value(stripped(text, left, right));
  ASSIGN_OR_RETURN(const std::string_view set, string_given(given[0]));
  RETURN_IF_ERROR(budget.spend(text.size() * set.size() / kBytesOfStep));
  return Value(stripped_of(text, set, left, right));
}

template <bool at_begin>
Result<Value> begins(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  std::span<const Value> parts(given[0], 1);
  const List* list = given[0]->list();
  if (list != nullptr && list->kind == Sequence::kTuple) parts = list->items;
  for (const Value& part : parts) {
    ASSIGN_OR_RETURN(const std::string_view text, string_given(&part));
    RETURN_IF_ERROR(budget.pass(text.size()));
    if (at_begin ? self.text()->starts_with(text) : self.text()->ends_with(text))
      return Value(true);
  }
  return Value(false);
}

template <bool at_begin>
Result<Value> remove(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string_view part, string_given(given[0]));
  const std::string& text = *self.text();
  RETURN_IF_ERROR(budget.make(text.size()));
  const size_t rest = text.size() - std::min(text.size(), part.size());
  if (at_begin && text.starts_with(part)) return Value(text.substr(part.size()));
  if (!at_begin && text.ends_with(part)) return Value(text.substr(0, rest));
  return self;
}

Result<Value> replace(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string_view old, string_given(given[0]));
  ASSIGN_OR_RETURN(const std::string_view with, string_given(given[1]));
  ASSIGN_OR_RETURN(int64_t left, count_given(given[2]));
  const std::string& text = *self.text();
  RETURN_IF_ERROR(budget.make(text.size()));
  RETURN_IF_ERROR(budget.pass(old.size()));
  std::string out;
  size_t done = 0;
  // An empty string is found before each character and at the end.
  for (size_t at = 0; left != 0;) {
    const size_t found = old.empty() ? at : find_part(text, old, at);
    if (found == std::string::npos || found > text.size()) break;
    RETURN_IF_ERROR(budget.make(with.size()));
    out.append(text, done, found - done).append(with);
    done = found + old.size();
    at = done;
    if (old.empty())
      at = found < text.size() ? found + code_point_at(text, found).bytes : std::string::npos;
    --left;
  }
  return Value(out.append(text, done));
}

// Words between white space, at most `most` times divided.
Result<std::vector<Value>> words_of(Budget& budget, const std::string& text, int64_t most,
                                    bool from_right) {
  std::vector<Value> words;
  const std::string rest = stripped(text, !from_right, from_right);
  const auto add = [&](size_t begin, size_t end) {
    RETURN_IF_ERROR(budget.make_text_item(end - begin));
    words.emplace_back(rest.substr(begin, end - begin));
    return Status();
  };
  if (from_right) {
    size_t end = rest.size();
    while (end > 0) {
      size_t begin = end;
      while (begin > 0 && (most == 0 || !is_space(code_point_before(rest, begin).value))) {
        begin -= code_point_before(rest, begin).bytes;
      }
      RETURN_IF_ERROR(add(begin, end));
      end = begin;
      while (end > 0 && is_space(code_point_before(rest, end).value)) {
        end -= code_point_before(rest, end).bytes;
      }
      --most;
    }
    std::reverse(words.begin(), words.end());
    return words;
  }
  for (size_t begin = 0; begin < rest.size();) {
    size_t end = begin;
    while (end < rest.size() && (most == 0 || !is_space(code_point_at(rest, end).value))) {
      end += code_point_at(rest, end).bytes;
    }
    RETURN_IF_ERROR(add(begin, end));
    while (end < rest.size() && is_space(code_point_at(rest, end).value)) {
      end += code_point_at(rest, end).bytes;
    }
    begin = end;
    --most;
  }
  return words;
}

// std::string::rfind compares at each place.
Status pass_back(Budget& budget, std::string_view text, std::string_view part) {
  const size_t places = text.size() - std::min(text.size(), part.size());
  return budget.spend(1 + text.size() * (1 + std::min(part.size(), places)) / kBytesOfStep);
}

template <bool from_right>
Result<Value> split(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  const std::string& text = *self.text();
  ASSIGN_OR_RETURN(int64_t most, count_given(given[1]));
  RETURN_IF_ERROR(budget.make(text.size()));
  std::vector<Value> parts;
  if (given[0] == nullptr || given[0]->is_none()) {
    ASSIGN_OR_RETURN(parts, words_of(budget, text, most, from_right));
    return Value::list(std::move(parts));
  }
  ASSIGN_OR_RETURN(const std::string_view mark, string_given(given[0]));
  if (mark.empty()) return failed("the separator of split() is empty");
  RETURN_IF_ERROR(from_right ? pass_back(budget, text, mark) : budget.pass(mark.size()));
  size_t begin = 0, end = text.size();
  while (most != 0) {
    const size_t found =
        from_right ? (end < mark.size() ? std::string::npos : text.rfind(mark, end - mark.size()))
                   : find_part(text, mark, begin);
    if (found == std::string::npos) break;
    const size_t after = found + mark.size();
    RETURN_IF_ERROR(budget.make_text_item(from_right ? end - after : found - begin));
    if (from_right) {
      parts.emplace_back(text.substr(after, end - after));
      end = found;
    } else {
      parts.emplace_back(text.substr(begin, found - begin));
      begin = after;
    }
    --most;
  }
  parts.emplace_back(text.substr(begin, end - begin));
  if (from_right) std::reverse(parts.begin(), parts.end());
  return Value::list(std::move(parts));
}

Result<Value> splitlines(Budget& budget, const Value& self, const Given&, const Arguments&) {
  RETURN_IF_ERROR(budget.make(self.text()->size()));
  std::vector<Value> lines;
  RETURN_IF_ERROR(for_each_line(*self.text(), [&](std::string_view line) {
    RETURN_IF_ERROR(budget.make_text_item(line.size()));
    lines.emplace_back(std::string(line));
    return Status();
  }));
  return Value::list(std::move(lines));
}

template <bool last, bool must>
Result<Value> find(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string_view part, string_given(given[0]));
  const std::string& text = *self.text();
  RETURN_IF_ERROR(budget.pass(text.size() + part.size()));
  if (last) RETURN_IF_ERROR(pass_back(budget, text, part));
  const size_t at = last ? text.rfind(part) : find_part(text, part);
  if (at == std::string::npos && must) return failed("a string does not have the part looked for");
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value(static_cast<int64_t>(length_of(text.substr(0, at))));
}

Result<Value> count(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(const std::string_view part, string_given(given[0]));
  const std::string& text = *self.text();
  RETURN_IF_ERROR(budget.pass(text.size() + part.size()));
  if (part.empty()) return Value(static_cast<int64_t>(length_of(text)) + 1);
  int64_t found = 0;
  for (size_t at = find_part(text, part); at != std::string::npos;
       at = find_part(text, part, at + part.size())) {
    RETURN_IF_ERROR(budget.spend(1));
    ++found;
  }
  return Value(found);
}

Result<Value> join(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget, *given[0]));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string_view text, string_given(&items[i]));
    RETURN_IF_ERROR(budget.make(text.size() + self.text()->size()));
    if (i > 0) out += *self.text();
    out += text;
  }
  return Value(std::move(out));
}

bool all_digits(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}
bool all_space(const std::string& text) {
  return !text.empty() && stripped(text, true, false).empty();
}

// "{}", "{0}" and "{name}" without formats, and braces written twice.
Result<Value> format(Budget& budget, const Value& self, const Given&, const Arguments& all) {
  const std::string& text = *self.text();
  RETURN_IF_ERROR(budget.make(text.size()));
  std::string out;
  size_t next = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if ((c != '{' && c != '}') || (at + 1 < text.size() && text[at + 1] == c)) {
      out += c;
      at += c == '{' || c == '}' ? 1 : 0;
      continue;
    }
    const size_t end = text.find('}', at);
    if (c == '}' || end == std::string::npos) return failed("format() has a lone brace");
    const std::string name = text.substr(at + 1, end - at - 1);
    const Value* found = nullptr;
    if (name.empty() || (all_digits(name) && name.size() < 4)) {
      const size_t index = name.empty() ? next++ : static_cast<size_t>(std::stoi(name));
      if (index < all.values.size()) found = &all.values[index];
    }
    RETURN_IF_ERROR(budget.look_up(all.named.size(), name.size()));
    for (const auto& [given, value] : all.named) {
      if (given == name) found = &value;
    }
    if (found == nullptr) return failed("format() has no argument for one of its braces");
    ASSIGN_OR_RETURN(const std::string part, text_of(budget, *found));
    out += part;
    at = end;
  }
  return Value(std::move(out));
}

constexpr Builtin kTextMethods[] = {
    {"capitalize", "", changed<capitalized>},
    {"count", "!sub", count},
    {"endswith", "!suffix", begins<false>},
    {"find", "!sub", find<false, false>},
    {"format", "*", format},
    {"index", "!sub", find<false, true>},
    {"isdigit", "", asked<all_digits>},
    {"islower", "", asked<all_lower>},
    {"isspace", "", asked<all_space>},
    {"isupper", "", asked<all_upper>},
    {"join", "!iterable", join},
    {"lower", "", changed<lower>},
    {"lstrip", "chars", strip<true, false>},
    {"removeprefix", "!prefix", remove<true>},
    {"removesuffix", "!suffix", remove<false>},
    {"replace", "!!old new count", replace},
    {"rfind", "!sub", find<true, false>},
    {"rsplit", "sep maxsplit", split<true>},
    {"rstrip", "chars", strip<false, true>},
    {"split", "sep maxsplit", split<false>},
    {"splitlines", "", splitlines},
    {"startswith", "!prefix", begins<true>},
    {"strip", "chars", strip<true, true>},
    {"title", "", changed<titled>},
    {"upper", "", changed<upper>},
};

Result<Value> list_count(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  int64_t found = 0;
  for (const Value& item : self.list()->items) {
    ASSIGN_OR_RETURN(const bool same, equal(budget, item, *given[0]));
    found += same ? 1 : 0;
  }
  return Value(found);
}

Result<Value> list_index(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  const std::vector<Value>& items = self.list()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool same, equal(budget, items[i], *given[0]));
    if (same) return Value(static_cast<int64_t>(i));
  }
  return failed("a list does not have the value looked for");
}

Result<Value> copy(Budget&, const Value& self, const Given&, const Arguments&) { return self; }

// Templates cannot change values, in Transformers neither.
Result<Value> immutable(Budget&, const Value& self, const Given&, const Arguments&) {
  return failed(strf("changes %s, which templates may not", self.a_type().c_str()));
}

constexpr Builtin kListMethods[] = {
    {"append", "*", immutable},      {"clear", "*", immutable},  {"copy", "", copy},
    {"count", "!value", list_count}, {"extend", "*", immutable}, {"index", "!value", list_index},
    {"insert", "*", immutable},      {"pop", "*", immutable},    {"remove", "*", immutable},
    {"reverse", "*", immutable},     {"sort", "*", immutable},
};

Result<Value> get(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(const Value* found, look_up(budget, *self.dict(), *given[0]));
  if (found != nullptr) return *found;
  return given[1] != nullptr ? *given[1] : Value(None{});
}

template <bool keys, bool values>
Result<Value> view(Budget& budget, const Value& self, const Given&, const Arguments&) {
  const Pairs& pairs = self.dict()->pairs;
  RETURN_IF_ERROR(budget.make_items(4 * pairs.size()));
  std::vector<Value> items;
  for (const auto& [key, value] : pairs) {
    items.push_back(!values ? key : !keys ? value : Value::list({key, value}, Sequence::kTuple));
  }
  return Value::list(std::move(items), Sequence::kView);
}

constexpr Builtin kDictMethods[] = {
    {"clear", "*", immutable},       {"copy", "", copy},
    {"get", "!key default", get},    {"items", "", view<true, true>},
    {"keys", "", view<true, false>}, {"pop", "*", immutable},
    {"popitem", "*", immutable},     {"setdefault", "*", immutable},
    {"update", "*", immutable},      {"values", "", view<false, true>},
};

}  // namespace

const Builtin* find_text_method(const std::string& name) {
  return find_builtin(kTextMethods, name);
}
const Builtin* find_list_method(const std::string& name) {
  return find_builtin(kListMethods, name);
}
const Builtin* find_dict_method(const std::string& name) {
  return find_builtin(kDictMethods, name);
}

}  // namespace pagoda::jinja
