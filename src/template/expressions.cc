#include <algorithm>
#include <cstdio>
#include <ctime>

#include "base/log.h"
#include "base/utf8.h"
#include "template/arithmetic.h"
#include "template/compare.h"
#include "template/evaluator.h"
#include "template/value_text.h"

namespace pagoda::jinja {

namespace {

using Kind = Expression::Kind;

// The sandbox of Jinja2 has the same bound.
constexpr int64_t kMaxRange = 100000;

Result<Value> now_text(const Date& today, const Arguments& arguments) {
  if (arguments.values.size() != 1 || arguments.values[0].text() == nullptr) {
    return failed("strftime_now takes a format");
  }
  std::tm time = {};
  time.tm_year = today.year - 1900;
  time.tm_mon = today.month - 1;
  time.tm_mday = today.day;
  time.tm_hour = 12;  // no change of a clock moves the day
  std::mktime(&time);
  time.tm_hour = 0;
  const std::string& format = *arguments.values[0].text();
  if (format.empty()) return Value("");
  char buffer[256];
  const size_t bytes = format.find('\0') == std::string::npos
                           ? std::strftime(buffer, sizeof buffer, format.c_str(), &time)
                           : 0;
  std::string text(buffer, bytes);
  if (bytes == 0 || first_invalid_utf8(text) != std::string::npos) {
    return failed("the format of strftime_now is not usable");
  }
  return Value(std::move(text));
}

}  // namespace

Result<Value> Evaluator::evaluate(const Expression& node, Scope& scope) {
  RETURN_IF_ERROR(budget_.spend(1));
  if (++depth_ > kMaxRunningDepth) {
    return failed(strf("runs nested deeper than %d", kMaxRunningDepth));
  }
  auto value = evaluate_kind(node, scope);
  if (value.ok()) {
    if (const Status status = check_depth(*value); !status.ok()) value = status;
  }
  if (!value.ok() && error_line_ == 0) error_line_ = node.line;
  --depth_;
  return value;
}

Result<Value> Evaluator::evaluate_kind(const Expression& node, Scope& scope) {
  switch (node.kind) {
    case Kind::kConstant:
      return node.value;
    case Kind::kName:
      return variable(node.name, scope);
    case Kind::kList:
    case Kind::kTuple: {
      ASSIGN_OR_RETURN(std::vector<Value> items, evaluate_all(node, scope));
      return Value::list(std::move(items),
                         node.kind == Kind::kList ? Sequence::kList : Sequence::kTuple);
    }
    case Kind::kDict:
      return dictionary(node, scope);
    case Kind::kUnary:
      return unary(node, scope);
    case Kind::kBinary:
      return binary(node, scope);
    case Kind::kCompare:
      return comparison(node, scope);
    case Kind::kConcat:
      return concatenation(node, scope);
    case Kind::kConditional: {
      ASSIGN_OR_RETURN(const Value test, evaluate(*node.parts[1], scope));
      if (test.truthy()) return evaluate(*node.parts[0], scope);
      if (node.parts[2] != nullptr) return evaluate(*node.parts[2], scope);
      return Value::undefined("an \"if\" without \"else\" did not hold");
    }
    case Kind::kAttribute: {
      ASSIGN_OR_RETURN(const Value value, evaluate(*node.parts[0], scope));
      if (value.loop() != nullptr && node.name != "cycle") {
        return value.loop()->attribute(node.name);
      }
      return attribute_of(budget_, value, node.name);
    }
    case Kind::kItem: {
      ASSIGN_OR_RETURN(const Value value, evaluate(*node.parts[0], scope));
      ASSIGN_OR_RETURN(const Value key, evaluate(*node.parts[1], scope));
      if (value.loop() != nullptr && key.text() != nullptr) {
        return value.loop()->attribute(*key.text());
      }
      return item_of(budget_, value, key);
    }
    case Kind::kSlice:
      return slice(node, scope);
    case Kind::kCall:
      return call(node, scope);
    case Kind::kStar:
      return failed("a * stands among the arguments of a call only");
    case Kind::kFilter: {
      ASSIGN_OR_RETURN(const Value value, evaluate(*node.parts[0], scope));
      return filter(node, value, scope);
    }
    case Kind::kTest: {
      ASSIGN_OR_RETURN(const Value value, evaluate(*node.parts[0], scope));
      ASSIGN_OR_RETURN(const Arguments given, arguments(node, scope));
      ASSIGN_OR_RETURN(const bool good, apply_test(budget_, node.name, value, given));
      return Value(good);
    }
  }
  CHECK(false);
  return Value();
}

Result<std::vector<Value>> Evaluator::evaluate_all(const Expression& node, Scope& scope) {
  RETURN_IF_ERROR(budget_.make_items(node.parts.size()));
  std::vector<Value> values;
  for (const ExpressionPtr& part : node.parts) {
    ASSIGN_OR_RETURN(Value value, evaluate(*part, scope));
    values.push_back(std::move(value));
  }
  return values;
}

Result<Value> Evaluator::dictionary(const Expression& node, Scope& scope) {
  ASSIGN_OR_RETURN(const std::vector<Value> parts, evaluate_all(node, scope));
  Pairs pairs;
  for (size_t i = 0; i < parts.size(); i += 2) {
    if (parts[i].list() != nullptr || parts[i].dict() != nullptr) {
      return failed(strf("%s is no key", parts[i].a_type().c_str()));
    }
    const std::string* name = parts[i].text();
    RETURN_IF_ERROR(budget_.look_up(pairs.size(), name != nullptr ? name->size() : 0));
    const auto known = std::find_if(pairs.begin(), pairs.end(), [&](const auto& pair) {
      return equal_scalars(pair.first, parts[i]);
    });
    if (known != pairs.end()) {
      known->second = parts[i + 1];
    } else {
      pairs.emplace_back(parts[i], parts[i + 1]);
    }
  }
  return Value::dict(std::move(pairs));
}

Result<Value> Evaluator::unary(const Expression& node, Scope& scope) {
  ASSIGN_OR_RETURN(const Value value, evaluate(*node.parts[0], scope));
  if (node.op == Operator::kNot) return Value(!value.truthy());
  if (value.is_undefined()) return failed(value.undefined_what());
  if (!value.is_number()) return failed(strf("%s has no sign", value.a_type().c_str()));
  const int64_t sign = node.op == Operator::kNegative ? -1 : 1;
  return calculate(budget_, Operator::kMultiply, value, Value(sign));
}

Result<Value> Evaluator::binary(const Expression& node, Scope& scope) {
  ASSIGN_OR_RETURN(const Value left, evaluate(*node.parts[0], scope));
  if (node.op == Operator::kAnd || node.op == Operator::kOr) {
    if (left.truthy() == (node.op == Operator::kOr)) return left;
    return evaluate(*node.parts[1], scope);
  }
  ASSIGN_OR_RETURN(const Value right, evaluate(*node.parts[1], scope));
  return calculate(budget_, node.op, left, right);
}

Result<bool> Evaluator::compared(Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return equal(budget_, a, b);
    case Operator::kNotEqual: {
      ASSIGN_OR_RETURN(const bool same, equal(budget_, a, b));
      return !same;
    }
    case Operator::kIn:
      return contains(budget_, b, a);
    case Operator::kNotIn: {
      ASSIGN_OR_RETURN(const bool found, contains(budget_, b, a));
      return !found;
    }
    default:
      break;
  }
  ASSIGN_OR_RETURN(const int sign, order(budget_, a, b));
  if (op == Operator::kLess) return sign < 0;
  if (op == Operator::kLessEqual) return sign <= 0;
  return op == Operator::kGreater ? sign > 0 : sign >= 0;
}

Result<Value> Evaluator::comparison(const Expression& node, Scope& scope) {
  ASSIGN_OR_RETURN(Value left, evaluate(*node.parts[0], scope));
  for (size_t i = 0; i < node.ops.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, evaluate(*node.parts[i + 1], scope));
    ASSIGN_OR_RETURN(const bool good, compared(node.ops[i], left, right));
    if (!good) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

Result<Value> Evaluator::concatenation(const Expression& node, Scope& scope) {
  ASSIGN_OR_RETURN(const std::vector<Value> parts, evaluate_all(node, scope));
  std::string out;
  for (const Value& part : parts) {
    ASSIGN_OR_RETURN(const std::string text, text_of(budget_, part));
    out += text;
  }
  return Value(std::move(out));
}

Result<Value> Evaluator::slice(const Expression& node, Scope& scope) {
  ASSIGN_OR_RETURN(const Value value, evaluate(*node.parts[0], scope));
  Value bounds[3];
  Given given(3, nullptr);
  for (size_t i = 0; i < 3; ++i) {
    if (node.parts[i + 1] == nullptr) continue;
    ASSIGN_OR_RETURN(bounds[i], evaluate(*node.parts[i + 1], scope));
    given[i] = &bounds[i];
  }
  return slice_of(budget_, value, given);
}

Result<Arguments> Evaluator::arguments(const Expression& node, Scope& scope) {
  Arguments given;
  for (size_t i = 1; i < node.parts.size(); ++i) {
    const Expression& part = *node.parts[i];
    const bool star = part.kind == Kind::kStar;
    ASSIGN_OR_RETURN(Value value, evaluate(star ? *part.parts[0] : part, scope));
    if (!star) {
      given.values.push_back(std::move(value));
      continue;
    }
    if (value.list() == nullptr) return failed("no list stands behind the * of an argument");
    RETURN_IF_ERROR(budget_.make_items(value.list()->items.size()));
    for (const Value& item : value.list()->items) given.values.push_back(item);
  }
  for (const auto& [name, part] : node.named) {
    ASSIGN_OR_RETURN(Value value, evaluate(*part, scope));
    given.named.emplace_back(name, std::move(value));
  }
  return given;
}

Result<Value> Evaluator::filter(const Expression& node, const Value& value, Scope& scope) {
  ASSIGN_OR_RETURN(const Arguments given, arguments(node, scope));
  return apply_filter(budget_, node.name, value, given);
}

Result<Value> Evaluator::call(const Expression& node, Scope& scope) {
  const Expression& callee = *node.parts[0];
  if (callee.kind == Kind::kAttribute && callee.name == "cycle") {
    ASSIGN_OR_RETURN(const Value loop, evaluate(*callee.parts[0], scope));
    ASSIGN_OR_RETURN(const Arguments given, arguments(node, scope));
    if (loop.loop() == nullptr || given.values.empty()) return failed("cycle() is of loops");
    return given.values[loop.loop()->index0 % given.values.size()];
  }
  ASSIGN_OR_RETURN(const Value called, evaluate(callee, scope));
  ASSIGN_OR_RETURN(const Arguments given, arguments(node, scope));
  if (const Method* method = called.method()) return call_method(budget_, *method, given);
  if (const Function* function = called.get<Function>()) return call_function(*function, given);
  if (const MacroNode* const* macro = called.get<const MacroNode*>()) {
    return call_macro(**macro, given);
  }
  if (called.is_undefined()) return failed(called.undefined_what());
  return failed(strf("%s is not callable", called.a_type().c_str()));
}

Result<Value> Evaluator::call_function(Function function, const Arguments& given) {
  switch (function) {
    case Function::kRange:
      return make_range(given);
    case Function::kNamespace:
      return make_namespace(given);
    case Function::kNow:
      return now_text(today_, given);
    case Function::kDict:
      return make_dict(given);
    case Function::kRaise: {
      std::string why = "without a reason";
      if (!given.values.empty()) {
        ASSIGN_OR_RETURN(why, text_of(budget_, given.values[0]));
      }
      return failed("the template refuses: " + printable(why));
    }
  }
  CHECK(false);
  return Value();
}

Result<Value> Evaluator::make_range(const Arguments& given) {
  const size_t count = given.values.size();
  if (count < 1 || count > 3 || !given.named.empty())
    return failed("range() takes 1 to 3 integers");
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < count; ++i) {
    if (!given.values[i].is_integer()) return failed("range() takes 1 to 3 integers");
    bounds[count == 1 ? 1 : i] = given.values[i].integer();
    if (std::abs(given.values[i].real()) > 1e15) return failed("range() is too long");
  }
  const auto [begin, end, step] = bounds;
  if (step == 0) return failed("the step of range() is 0");
  const int64_t span = step > 0 ? end - begin : begin - end;
  const int64_t size = span <= 0 ? 0 : (span - 1) / std::abs(step) + 1;
  if (size > kMaxRange) return failed(strf("range() is longer than %lld", (long long)kMaxRange));
  RETURN_IF_ERROR(budget_.make_items(static_cast<size_t>(size)));
  std::vector<Value> items;
  for (int64_t i = 0; i < size; ++i) items.emplace_back(begin + i * step);
  return Value::list(std::move(items), Sequence::kRange);
}

Result<Value> Evaluator::make_dict(const Arguments& given) {
  if (given.values.size() > 1 || (given.values.size() == 1 && !given.values[0].dict())) {
    return failed("dict() takes a dictionary and named values");
  }
  Pairs pairs;
  if (!given.values.empty()) {
    RETURN_IF_ERROR(budget_.make_items(given.values[0].dict()->pairs.size()));
    pairs = given.values[0].dict()->pairs;
  }
  for (const auto& [name, value] : given.named) {
    RETURN_IF_ERROR(budget_.look_up(pairs.size(), name.size()));
    const auto known = std::find_if(pairs.begin(), pairs.end(), [&key = name](const auto& pair) {
      return pair.first.text() != nullptr && *pair.first.text() == key;
    });
    if (known != pairs.end()) {
      known->second = value;
      continue;
    }
    RETURN_IF_ERROR(budget_.make_text_item(name.size()));
    pairs.emplace_back(Value(name), value);
  }
  return Value::dict(std::move(pairs));
}

Result<Value> Evaluator::make_namespace(const Arguments& given) {
  if (given.values.size() > 1 || (given.values.size() == 1 && !given.values[0].dict())) {
    return failed("namespace() takes a dictionary and named values");
  }
  RETURN_IF_ERROR(budget_.make_items(2));
  namespaces_.push_back(std::make_unique<Namespace>());
  Namespace* space = namespaces_.back().get();
  if (!given.values.empty()) {
    for (const auto& [key, value] : given.values[0].dict()->pairs) {
      if (key.text() == nullptr) return failed("the names of a namespace are strings");
      // They differ from each other.
      RETURN_IF_ERROR(budget_.make(kItemBytes + key.text()->size()));
      space->members.emplace_back(*key.text(), value);
    }
  }
  for (const auto& [name, value] : given.named) RETURN_IF_ERROR(store(name, value, space));
  return Value(space);
}

}  // namespace pagoda::jinja
