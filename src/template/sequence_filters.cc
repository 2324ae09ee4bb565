#include <algorithm>
#include <charconv>

#include "template/builtins.h"
#include "template/compare.h"
#include "template/letters.h"
#include "template/value_text.h"

namespace pagoda::jinja {

namespace {

// "a.b.0" of a value, or the value itself where there is no path.
Result<Value> member_at(Budget& budget, const Value& value, const Value* path) {
  if (path == nullptr || path->is_none()) return value;
  if (path->text() == nullptr) return item_of(budget, value, *path);
  Value found = value;
  const std::string& names = *path->text();
  for (size_t at = 0; at <= names.size();) {
    const size_t dot = std::min(names.find('.', at), names.size());
    const std::string name = names.substr(at, dot - at);
    int64_t index = 0;
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data(), end, index);
    const bool digits = !name.empty() && parsed.ec == std::errc() && parsed.ptr == end;
    ASSIGN_OR_RETURN(found, item_of(budget, found, digits ? Value(index) : Value(name)));
    at = dot + 1;
  }
  return found;
}

Value folded(const Value& value) {
  return value.text() != nullptr ? Value(lower(*value.text())) : value;
}

// What elements are compared by.
Result<std::vector<Value>> keys_of(Budget& budget, const std::vector<Value>& items,
                                   const Value* path, bool fold) {
  std::vector<Value> keys;
  RETURN_IF_ERROR(budget.make_items(items.size()));
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value key, member_at(budget, item, path));
    if (fold && key.text() != nullptr) RETURN_IF_ERROR(budget.make(key.text()->size()));
    keys.push_back(fold ? folded(key) : key);
  }
  return keys;
}

// The places of keys in their order, equal ones in that of the places.
Result<std::vector<size_t>> sorted_places(Budget& budget, const std::vector<Value>& keys,
                                          bool reverse) {
  std::vector<size_t> places(keys.size()), merged(keys.size());
  for (size_t i = 0; i < places.size(); ++i) places[i] = i;
  // It merges by itself, because a comparison may fail.
  for (size_t width = 1; width < keys.size(); width *= 2) {
    for (size_t begin = 0; begin < keys.size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, keys.size());
      const size_t end = std::min(begin + 2 * width, keys.size());
      size_t a = begin, b = middle;
      for (size_t out = begin; out < end; ++out) {
        bool left = b == end;
        if (a < middle && b < end) {
          ASSIGN_OR_RETURN(const int sign, order(budget, keys[places[b]], keys[places[a]]));
          left = reverse ? sign <= 0 : sign >= 0;
        }
        merged[out] = left ? places[a++] : places[b++];
      }
    }
    places.swap(merged);
  }
  return places;
}

Result<Value> join_members(Budget& budget, const Value& self, const Given& given,
                           const Arguments&) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget, self));
  std::string mark, out;
  if (given[0] != nullptr) {
    ASSIGN_OR_RETURN(mark, text_of(budget, *given[0]));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(const Value member, member_at(budget, items[i], given[1]));
    ASSIGN_OR_RETURN(const std::string text, text_of(budget, member));
    if (i > 0) RETURN_IF_ERROR(budget.make(mark.size()));
    out += (i > 0 ? mark : "") + text;
  }
  return Value(std::move(out));
}

Result<Value> length(Budget& budget, const Value& self, const Given&, const Arguments&) {
  if (self.is_undefined()) return Value(int64_t{0});
  if (const std::string* text = self.text()) {
    RETURN_IF_ERROR(budget.pass(text->size()));
    return Value(static_cast<int64_t>(length_of(*text)));
  }
  if (const Dict* dict = self.dict()) return Value(static_cast<int64_t>(dict->pairs.size()));
  const List* list = self.list();
  if (list == nullptr || list->kind == Sequence::kLazy) {
    return failed(strf("%s has no length", self.a_type().c_str()));
  }
  return Value(static_cast<int64_t>(list->items.size()));
}

Result<Value> first(Budget& budget, const Value& self, const Given&, const Arguments&) {
  const List* list = self.list();
  if (list != nullptr && list->kind == Sequence::kLazy) {
    if (list->next < list->items.size()) return list->items[list->next++];
    return Value::undefined("there is no first element");
  }
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget, self));
  return items.empty() ? Value::undefined("there is no first element") : items.front();
}

Result<Value> last(Budget& budget, const Value& self, const Given&, const Arguments&) {
  if (self.list() != nullptr && self.list()->kind == Sequence::kLazy) {
    return failed("a generator has no last element; make it a list");
  }
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget, self));
  return items.empty() ? Value::undefined("there is no last element") : items.back();
}

Result<Value> as_list(Budget& budget, const Value& self, const Given&, const Arguments&) {
  ASSIGN_OR_RETURN(std::vector<Value> items, elements(budget, self));
  return Value::list(std::move(items));
}

std::vector<Value> tuples_of(const Pairs& pairs) {
  std::vector<Value> tuples;
  for (const auto& [key, value] : pairs) {
    tuples.push_back(Value::list({key, value}, Sequence::kTuple));
  }
  return tuples;
}

Result<Value> items(Budget& budget, const Value& self, const Given&, const Arguments&) {
  if (self.is_undefined()) return Value::list({}, Sequence::kLazy);
  if (self.dict() == nullptr) return failed(strf("%s has no items", self.a_type().c_str()));
  RETURN_IF_ERROR(budget.make_items(4 * self.dict()->pairs.size()));
  return Value::list(tuples_of(self.dict()->pairs), Sequence::kLazy);
}

Result<Value> dictsort(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  if (self.dict() == nullptr) return failed(strf("%s has no items", self.a_type().c_str()));
  const std::string* by = given[1] != nullptr ? given[1]->text() : nullptr;
  if (by != nullptr && *by != "key" && *by != "value") {
    return failed("dictsort sorts by \"key\" or by \"value\"");
  }
  RETURN_IF_ERROR(budget.make_items(4 * self.dict()->pairs.size()));
  const std::vector<Value> tuples = tuples_of(self.dict()->pairs);
  const Value place(int64_t{by != nullptr && *by == "value"});
  const bool fold = given[0] == nullptr || !given[0]->truthy();
  ASSIGN_OR_RETURN(const std::vector<Value> keys, keys_of(budget, tuples, &place, fold));
  const bool reverse = given[2] != nullptr && given[2]->truthy();
  ASSIGN_OR_RETURN(const std::vector<size_t> places, sorted_places(budget, keys, reverse));
  std::vector<Value> sorted;
  for (const size_t at : places) sorted.push_back(tuples[at]);
  return Value::list(std::move(sorted));
}

Result<Value> sort(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget, self));
  const bool fold = given[1] == nullptr || !given[1]->truthy();
  ASSIGN_OR_RETURN(const std::vector<Value> keys, keys_of(budget, items, given[2], fold));
  const bool reverse = given[0] != nullptr && given[0]->truthy();
  ASSIGN_OR_RETURN(const std::vector<size_t> places, sorted_places(budget, keys, reverse));
  std::vector<Value> sorted;
  for (const size_t at : places) sorted.push_back(items[at]);
  return Value::list(std::move(sorted));
}

Result<Value> unique(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget, self));
  const bool fold = given[0] == nullptr || !given[0]->truthy();
  ASSIGN_OR_RETURN(const std::vector<Value> keys, keys_of(budget, items, given[1], fold));
  std::vector<Value> kept, seen;
  for (size_t i = 0; i < items.size(); ++i) {
    bool known = false;
    for (size_t s = 0; s < seen.size() && !known; ++s) {
      ASSIGN_OR_RETURN(known, equal(budget, seen[s], keys[i]));
    }
    if (known) continue;
    seen.push_back(keys[i]);
    kept.push_back(items[i]);
  }
  return Value::list(std::move(kept), Sequence::kLazy);
}

Result<Value> reversed(Budget& budget, const Value& self, const Given&, const Arguments&) {
  ASSIGN_OR_RETURN(std::vector<Value> items, elements(budget, self));
  std::reverse(items.begin(), items.end());
  if (self.text() == nullptr) return Value::list(std::move(items), Sequence::kLazy);
  std::string text;
  for (const Value& item : items) text += *item.text();
  return Value(std::move(text));
}

template <int sign>
Result<Value> extreme(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget, self));
  if (items.empty()) return Value::undefined("the sequence is empty");
  const bool fold = given[0] == nullptr || !given[0]->truthy();
  ASSIGN_OR_RETURN(const std::vector<Value> keys, keys_of(budget, items, given[1], fold));
  size_t best = 0;
  for (size_t i = 1; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(const int found, order(budget, keys[i], keys[best]));
    if (found * sign > 0) best = i;
  }
  return items[best];
}

Result<Value> sum(Budget& budget, const Value& self, const Given& given, const Arguments&) {
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget, self));
  Value total = given[1] != nullptr ? *given[1] : Value(int64_t{0});
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(const Value member, member_at(budget, item, given[0]));
    if (!total.is_number() || !member.is_number()) return failed("only numbers are summed");
    if (total.is_integer() && member.is_integer()) {
      int64_t next = 0;
      if (__builtin_add_overflow(total.integer(), member.integer(), &next)) {
        return failed("a number is too large");
      }
      total = Value(next);
    } else {
      total = Value(total.real() + member.real());
    }
  }
  return total;
}

Result<std::string> name_given(const Arguments& all, size_t at, const char* what) {
  if (all.values.size() <= at || all.values[at].text() == nullptr) {
    return failed(std::string("names no ") + what);
  }
  return *all.values[at].text();
}

Arguments without_first(const Arguments& all, size_t count) {
  Arguments rest;
  rest.values.assign(all.values.begin() + static_cast<std::ptrdiff_t>(count), all.values.end());
  rest.named = all.named;
  return rest;
}

Result<Value> map(Budget& budget, const Value& self, const Given&, const Arguments& all) {
  const Value *path = nullptr, *otherwise = nullptr;
  for (const auto& [name, value] : all.named) {
    if (name == "attribute") path = &value;
    if (name == "default") otherwise = &value;
  }
  if (!self.truthy()) return Value::list({}, Sequence::kLazy);
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget, self));
  std::vector<Value> mapped;
  if (all.values.empty() && path != nullptr) {
    for (const Value& item : items) {
      ASSIGN_OR_RETURN(Value member, member_at(budget, item, path));
      const bool missing = member.is_undefined() && otherwise != nullptr;
      mapped.push_back(missing ? *otherwise : std::move(member));
    }
    return Value::list(std::move(mapped), Sequence::kLazy);
  }
  ASSIGN_OR_RETURN(const std::string name, name_given(all, 0, "filter"));
  const Arguments rest = without_first(all, 1);
  for (const Value& item : items) {
    ASSIGN_OR_RETURN(Value made, apply_filter(budget, name, item, rest));
    mapped.push_back(std::move(made));
  }
  return Value::list(std::move(mapped), Sequence::kLazy);
}

template <bool attribute, bool keep>
Result<Value> choose(Budget& budget, const Value& self, const Given&, const Arguments& all) {
  if (!self.truthy()) return Value::list({}, Sequence::kLazy);
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget, self));
  constexpr size_t kBefore = attribute ? 1 : 0;
  if (all.values.size() < kBefore) return failed("names no attribute");
  const bool tested = all.values.size() > kBefore;
  std::string name;
  if (tested) {
    ASSIGN_OR_RETURN(name, name_given(all, kBefore, "test"));
  }
  const Arguments rest = tested ? without_first(all, kBefore + 1) : Arguments();
  std::vector<Value> chosen;
  for (const Value& item : items) {
    const Value* path = attribute ? all.values.data() : nullptr;
    ASSIGN_OR_RETURN(const Value member, member_at(budget, item, path));
    bool good = member.truthy();
    if (tested) {
      ASSIGN_OR_RETURN(good, apply_test(budget, name, member, rest));
    }
    if (good == keep) chosen.push_back(item);
  }
  return Value::list(std::move(chosen), Sequence::kLazy);
}

constexpr Builtin kSequenceFilters[] = {
    {"count", "", length},
    {"dictsort", "case_sensitive by reverse", dictsort},
    {"first", "", first},
    {"items", "", items},
    {"join", "d attribute", join_members},
    {"last", "", last},
    {"length", "", length},
    {"list", "", as_list},
    {"map", "*", map},
    {"max", "case_sensitive attribute", extreme<1>},
    {"min", "case_sensitive attribute", extreme<-1>},
    {"reject", "*", choose<false, false>},
    {"rejectattr", "*", choose<true, false>},
    {"reverse", "", reversed},
    {"select", "*", choose<false, true>},
    {"selectattr", "*", choose<true, true>},
    {"sort", "reverse case_sensitive attribute", sort},
    {"sum", "attribute start", sum},
    {"unique", "case_sensitive attribute", unique},
};

}  // namespace

const Builtin* find_sequence_filter(const std::string& name) {
  return find_builtin(kSequenceFilters, name);
}

}  // namespace pagoda::jinja
