#include "template/compare.h"

#include <algorithm>

#include "base/utf8.h"
#include "template/letters.h"

namespace pagoda::jinja {

namespace {

Status no_order(const Value& a, const Value& b) {
  if (a.is_undefined()) return failed(a.undefined_what());
  if (b.is_undefined()) return failed(b.undefined_what());
  return failed(strf("%s and %s have no order", a.type_name(), b.type_name()));
}

Result<bool> equal_lists(Budget& budget, const List& a, const List& b) {
  const bool alike = a.kind == b.kind && a.kind != Sequence::kLazy && a.kind != Sequence::kView;
  if (&a == &b) return true;
  if (!alike || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool same, equal(budget, a.items[i], b.items[i]));
    if (!same) return false;
  }
  return true;
}

Result<bool> equal_dicts(Budget& budget, const Dict& a, const Dict& b) {
  if (a.pairs.size() != b.pairs.size()) return false;
  for (const auto& [key, value] : a.pairs) {
    ASSIGN_OR_RETURN(const Value* other, look_up(budget, b, key));
    if (other == nullptr) return false;
    ASSIGN_OR_RETURN(const bool same, equal(budget, value, *other));
    if (!same) return false;
  }
  return true;
}

}  // namespace

bool equal_scalars(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.real() == b.real();
  if (a.text() != nullptr && b.text() != nullptr) return *a.text() == *b.text();
  if (a.is_none() || a.is_undefined()) {
    return a.is_none() == b.is_none() && a.is_undefined() == b.is_undefined();
  }
  if (a.space() != nullptr || b.space() != nullptr) return a.space() == b.space();
  return a.loop() != nullptr && a.loop() == b.loop();
}

Result<bool> equal(Budget& budget, const Value& a, const Value& b) {
  RETURN_IF_ERROR(budget.pass(a.text() != nullptr ? a.text()->size() : 0));
  if (a.list() != nullptr && b.list() != nullptr) return equal_lists(budget, *a.list(), *b.list());
  if (a.dict() != nullptr && b.dict() != nullptr) return equal_dicts(budget, *a.dict(), *b.dict());
  return equal_scalars(a, b);
}

Result<int> order(Budget& budget, const Value& a, const Value& b) {
  RETURN_IF_ERROR(budget.pass(a.text() != nullptr ? a.text()->size() : 0));
  const auto sign = [](const auto& x, const auto& y) { return x < y ? -1 : x > y ? 1 : 0; };
  if (a.is_integer() && b.is_integer()) return sign(a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return sign(a.real(), b.real());
  // The order of UTF-8 is that of code points.
  if (a.text() != nullptr && b.text() != nullptr) return sign(*a.text(), *b.text());
  const List *x = a.list(), *y = b.list();
  if (x == nullptr || y == nullptr || x->kind != y->kind ||
      (x->kind != Sequence::kList && x->kind != Sequence::kTuple)) {
    return no_order(a, b);
  }
  for (size_t i = 0; i < std::min(x->items.size(), y->items.size()); ++i) {
    ASSIGN_OR_RETURN(const bool same, equal(budget, x->items[i], y->items[i]));
    if (!same) return order(budget, x->items[i], y->items[i]);
  }
  return sign(x->items.size(), y->items.size());
}

Result<const Value*> look_up(Budget& budget, const Dict& dict, const Value& key) {
  const std::string* name = key.text();
  RETURN_IF_ERROR(budget.look_up(dict.pairs.size(), name != nullptr ? name->size() : 0));
  return dict.find(key);
}

Result<bool> contains(Budget& budget, const Value& container, const Value& item) {
  if (const std::string* text = container.text()) {
    if (item.text() == nullptr) {
      return failed(strf("%s is looked for in a string", item.a_type().c_str()));
    }
    RETURN_IF_ERROR(budget.pass(text->size() + item.text()->size()));
    return find_part(*text, *item.text()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    ASSIGN_OR_RETURN(const Value* found, look_up(budget, *dict, item));
    return found != nullptr;
  }
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget, container));
  for (const Value& element : items) {
    ASSIGN_OR_RETURN(const bool same, equal(budget, element, item));
    if (same) return true;
  }
  return false;
}

Result<std::vector<Value>> elements(Budget& budget, const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (const List* list = value.list()) {
    const size_t first = list->kind == Sequence::kLazy ? list->next : 0;
    list->next = list->items.size();
    RETURN_IF_ERROR(budget.make_items(list->items.size() - first));
    items.assign(list->items.begin() + static_cast<std::ptrdiff_t>(first), list->items.end());
    return items;
  }
  if (const Dict* dict = value.dict()) {
    RETURN_IF_ERROR(budget.make_items(dict->pairs.size()));
    for (const auto& pair : dict->pairs) items.push_back(pair.first);
    return items;
  }
  if (const std::string* text = value.text()) {
    RETURN_IF_ERROR(budget.make_items(2 * text->size()));
    for (size_t at = 0; at < text->size();) {
      const size_t bytes = code_point_at(*text, at).bytes;
      items.emplace_back(text->substr(at, bytes));
      at += bytes;
    }
    return items;
  }
  return failed(strf("%s has no elements", value.a_type().c_str()));
}

}  // namespace pagoda::jinja
