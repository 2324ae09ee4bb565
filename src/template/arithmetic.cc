#include "template/arithmetic.h"

#include <algorithm>
#include <cmath>

namespace pagoda::jinja {

namespace {

constexpr const char* kOperatorSymbols[] = {"+", "-", "*", "/", "//", "%", "**"};

Status too_large() { return failed("a number is too large"); }
Status division_by_0() { return failed("a division by 0"); }

// Rounds down, as Python does.
Result<Value> divide(Operator op, int64_t a, int64_t b) {
  if (b == 0) return division_by_0();
  if (b == -1) {
    if (op == Operator::kModulo) return Value(int64_t{0});
    if (a == INT64_MIN) return too_large();
    return Value(-a);
  }
  const int64_t rest = a % b;
  const bool below = rest != 0 && (rest < 0) != (b < 0);
  if (op == Operator::kModulo) return Value(below ? rest + b : rest);
  return Value(a / b - (below ? 1 : 0));
}

Result<Value> integer_power(int64_t a, int64_t b) {
  if (b < 0) {
    if (a == 0) return division_by_0();
    return Value(std::pow(static_cast<double>(a), static_cast<double>(b)));
  }
  if (a == -1) return Value(b % 2 == 0 ? int64_t{1} : int64_t{-1});
  if (a == 0 || a == 1) return Value(b == 0 ? int64_t{1} : a);
  if (b > 63) return too_large();
  int64_t product = 1;
  for (int64_t i = 0; i < b; ++i) {
    if (__builtin_mul_overflow(product, a, &product)) return too_large();
  }
  return Value(product);
}

Result<Value> of_integers(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  bool over = false;
  switch (op) {
    case Operator::kAdd:
      over = __builtin_add_overflow(a, b, &result);
      break;
    case Operator::kSubtract:
      over = __builtin_sub_overflow(a, b, &result);
      break;
    case Operator::kMultiply:
      over = __builtin_mul_overflow(a, b, &result);
      break;
    case Operator::kDivide:
      if (b == 0) return division_by_0();
      return Value(static_cast<double>(a) / static_cast<double>(b));
    case Operator::kPower:
      return integer_power(a, b);
    default:
      return divide(op, a, b);
  }
  if (over) return too_large();
  return Value(result);
}

Result<Value> of_reals(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value(a + b);
    case Operator::kSubtract:
      return Value(a - b);
    case Operator::kMultiply:
      return Value(a * b);
    case Operator::kPower:
      if (a < 0 && b != std::floor(b)) return failed("a power is no real number");
      if (a == 0 && b < 0) return division_by_0();
      return Value(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return division_by_0();
  if (op == Operator::kDivide) return Value(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (op == Operator::kModulo) return Value(rest == 0 ? std::copysign(0.0, b) : rest);
  return Value(std::round((a - rest) / b));
}

bool is_plain_list(const Value& value) {
  const List* list = value.list();
  return list != nullptr && (list->kind == Sequence::kList || list->kind == Sequence::kTuple);
}

bool is_repeatable(const Value& value) { return value.text() != nullptr || is_plain_list(value); }

Result<Value> repeated(Budget& budget, const Value& value, int64_t times) {
  const auto count = static_cast<size_t>(std::max<int64_t>(0, times));
  if (count > static_cast<size_t>(kMaxMadeBytes)) return failed("a repetition is too long");
  if (const std::string* text = value.text()) {
    RETURN_IF_ERROR(budget.make(text->size() * count));
    std::string out;
    for (size_t i = 0; i < count && !text->empty(); ++i) out += *text;
    return Value(std::move(out));
  }
  const std::vector<Value>& items = value.list()->items;
  RETURN_IF_ERROR(budget.make_items(items.size() * count));
  std::vector<Value> out;
  for (size_t i = 0; i < count && !items.empty(); ++i) {
    out.insert(out.end(), items.begin(), items.end());
  }
  return Value::list(std::move(out), value.list()->kind);
}

// What HTML would read otherwise, as MarkupSafe's escape() spells it.
std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// A safe text and another, which is escaped unless it is safe, too.
Result<Value> safe_sum(Budget& budget, const Value& a, const Value& b) {
  constexpr size_t kLongest = 5;  // bytes of an escaped one
  RETURN_IF_ERROR(budget.make(kLongest * (a.text()->size() + b.text()->size())));
  return Value::safe((a.is_safe() ? *a.text() : escaped(*a.text())) +
                     (b.is_safe() ? *b.text() : escaped(*b.text())));
}

}  // namespace

Result<Value> calculate(Budget& budget, Operator op, const Value& a, const Value& b) {
  if (a.is_undefined()) return failed(a.undefined_what());
  if (b.is_undefined()) return failed(b.undefined_what());
  if (a.is_integer() && b.is_integer()) return of_integers(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return of_reals(op, a.real(), b.real());
  if (op == Operator::kAdd && a.text() != nullptr && b.text() != nullptr) {
    if (a.is_safe() || b.is_safe()) return safe_sum(budget, a, b);
    RETURN_IF_ERROR(budget.make(a.text()->size() + b.text()->size()));
    return Value(*a.text() + *b.text());
  }
  if (op == Operator::kAdd && is_plain_list(a) && is_plain_list(b) &&
      a.list()->kind == b.list()->kind) {
    RETURN_IF_ERROR(budget.make_items(a.list()->items.size() + b.list()->items.size()));
    std::vector<Value> items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return Value::list(std::move(items), a.list()->kind);
  }
  if (op == Operator::kMultiply) {
    if (is_repeatable(a) && b.is_integer()) return repeated(budget, a, b.integer());
    if (is_repeatable(b) && a.is_integer()) return repeated(budget, b, a.integer());
  }
  return failed(strf("there is no %s of %s and %s", kOperatorSymbols[static_cast<size_t>(op)],
                     a.type_name(), b.type_name()));
}

}  // namespace pagoda::jinja
