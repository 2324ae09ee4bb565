#include "template/expression_parser.h"

#include <algorithm>

#include "base/edit_distance.h"
#include "base/log.h"
#include "template/builtins.h"
#include "template/parser.h"

namespace pagoda::jinja {

namespace {

using Kind = Expression::Kind;

struct Comparison {
  const char* symbol;
  Operator op;
};
constexpr Comparison kComparisons[] = {
    {"==", Operator::kEqual},  {"!=", Operator::kNotEqual},  {"<", Operator::kLess},
    {">", Operator::kGreater}, {"<=", Operator::kLessEqual}, {">=", Operator::kGreaterEqual}};

bool is_end_of_test(const std::string& name) {
  return name == "else" || name == "or" || name == "and";
}

}  // namespace

Status ExpressionParser::check_nesting() const {
  if (depth_ <= kMaxNesting) return Status();
  return fail(strf("is nested deeper than %d", kMaxNesting));
}

bool ExpressionParser::at_name(std::string_view name) const {
  return current().kind == Token::Kind::kName && current().text == name;
}
bool ExpressionParser::at_symbol(std::string_view symbol) const {
  return current().kind == Token::Kind::kSymbol && current().text == symbol;
}
bool ExpressionParser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  next();
  return true;
}
bool ExpressionParser::skip_symbol(std::string_view symbol) {
  if (!at_symbol(symbol)) return false;
  next();
  return true;
}
Status ExpressionParser::expect_symbol(std::string_view symbol) {
  return skip_symbol(symbol) ? Status() : fail("\"" + std::string(symbol) + "\" is missing here");
}
Result<std::string> ExpressionParser::expect_name(const char* what) {
  if (current().kind != Token::Kind::kName) return fail(std::string(what) + " is missing here");
  return next().text;
}

Status ExpressionParser::fail(const std::string& why) const {
  return error_at(current().line, why);
}

Status ExpressionParser::unexpected() const {
  switch (current().kind) {
    case Token::Kind::kPrintEnd:
    case Token::Kind::kTagEnd:
      return fail("an expression ends too early");
    case Token::Kind::kEnd:
      return fail("the template ends too early");
    default:
      return fail("unexpected \"" + printable(current().text, 60) + "\"");
  }
}

ExpressionPtr ExpressionParser::node(Kind kind) const {
  auto made = std::make_unique<Expression>();
  made->kind = kind;
  made->line = current().line;
  return made;
}

Status ExpressionParser::add(Expression* to, ExpressionPtr part) const {
  if (part != nullptr) to->depth = std::max(to->depth, part->depth + 1);
  to->parts.push_back(std::move(part));
  if (to->depth <= kMaxNesting) return Status();
  return fail(strf("is nested deeper than %d", kMaxNesting));
}

Result<ExpressionPtr> ExpressionParser::expression(bool conditional) {
  const Nesting nesting(&depth_);
  RETURN_IF_ERROR(check_nesting());
  return conditional ? condition() : disjunction();
}

Result<ExpressionPtr> ExpressionParser::condition() {
  ASSIGN_OR_RETURN(ExpressionPtr value, disjunction());
  // What stands before an "if" is the value, and may in turn have one behind it.
  while (at_name("if")) {
    ExpressionPtr made = node(Kind::kConditional);
    next();
    ASSIGN_OR_RETURN(ExpressionPtr test, disjunction());
    ExpressionPtr otherwise;
    if (skip_name("else")) {
      ASSIGN_OR_RETURN(otherwise, expression());
    }
    RETURN_IF_ERROR(add(made.get(), std::move(value)));
    RETURN_IF_ERROR(add(made.get(), std::move(test)));
    RETURN_IF_ERROR(add(made.get(), std::move(otherwise)));
    value = std::move(made);
  }
  return value;
}

Result<ExpressionPtr> ExpressionParser::disjunction() {
  ASSIGN_OR_RETURN(ExpressionPtr left, conjunction());
  while (at_name("or")) {
    ExpressionPtr made = node(Kind::kBinary);
    next();
    made->op = Operator::kOr;
    RETURN_IF_ERROR(add(made.get(), std::move(left)));
    ASSIGN_OR_RETURN(ExpressionPtr right, conjunction());
    RETURN_IF_ERROR(add(made.get(), std::move(right)));
    left = std::move(made);
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::conjunction() {
  ASSIGN_OR_RETURN(ExpressionPtr left, negation());
  while (at_name("and")) {
    ExpressionPtr made = node(Kind::kBinary);
    next();
    made->op = Operator::kAnd;
    RETURN_IF_ERROR(add(made.get(), std::move(left)));
    ASSIGN_OR_RETURN(ExpressionPtr right, negation());
    RETURN_IF_ERROR(add(made.get(), std::move(right)));
    left = std::move(made);
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::negation() {
  if (!at_name("not")) return comparison();
  const Nesting nesting(&depth_);
  RETURN_IF_ERROR(check_nesting());
  ExpressionPtr made = node(Kind::kUnary);
  made->op = Operator::kNot;
  next();
  ASSIGN_OR_RETURN(ExpressionPtr value, negation());
  RETURN_IF_ERROR(add(made.get(), std::move(value)));
  return made;
}

Result<ExpressionPtr> ExpressionParser::comparison() {
  ASSIGN_OR_RETURN(ExpressionPtr first, sum());
  ExpressionPtr made = node(Kind::kCompare);
  while (true) {
    if (at_name("not") && ahead().kind == Token::Kind::kName && ahead().text == "in") {
      next();
      next();
      made->ops.push_back(Operator::kNotIn);
    } else if (skip_name("in")) {
      made->ops.push_back(Operator::kIn);
    } else {
      const auto* found =
          std::find_if(std::begin(kComparisons), std::end(kComparisons),
                       [&](const Comparison& comparison) { return at_symbol(comparison.symbol); });
      if (found == std::end(kComparisons)) break;
      next();
      made->ops.push_back(found->op);
    }
    if (first != nullptr) RETURN_IF_ERROR(add(made.get(), std::move(first)));
    ASSIGN_OR_RETURN(ExpressionPtr right, sum());
    RETURN_IF_ERROR(add(made.get(), std::move(right)));
  }
  if (made->ops.empty()) return first;
  return made;
}

Result<ExpressionPtr> ExpressionParser::sum() {
  ASSIGN_OR_RETURN(ExpressionPtr left, concatenation());
  while (at_symbol("+") || at_symbol("-")) {
    ExpressionPtr made = node(Kind::kBinary);
    made->op = next().text == "+" ? Operator::kAdd : Operator::kSubtract;
    RETURN_IF_ERROR(add(made.get(), std::move(left)));
    ASSIGN_OR_RETURN(ExpressionPtr right, concatenation());
    RETURN_IF_ERROR(add(made.get(), std::move(right)));
    left = std::move(made);
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::concatenation() {
  ASSIGN_OR_RETURN(ExpressionPtr first, product());
  if (!at_symbol("~")) return first;
  ExpressionPtr made = node(Kind::kConcat);
  RETURN_IF_ERROR(add(made.get(), std::move(first)));
  while (skip_symbol("~")) {
    ASSIGN_OR_RETURN(ExpressionPtr right, product());
    RETURN_IF_ERROR(add(made.get(), std::move(right)));
  }
  return made;
}

Result<ExpressionPtr> ExpressionParser::product() {
  ASSIGN_OR_RETURN(ExpressionPtr left, power());
  while (at_symbol("*") || at_symbol("/") || at_symbol("//") || at_symbol("%")) {
    ExpressionPtr made = node(Kind::kBinary);
    const std::string symbol = next().text;
    made->op = symbol == "*"    ? Operator::kMultiply
               : symbol == "/"  ? Operator::kDivide
               : symbol == "//" ? Operator::kFloorDivide
                                : Operator::kModulo;
    RETURN_IF_ERROR(add(made.get(), std::move(left)));
    ASSIGN_OR_RETURN(ExpressionPtr right, power());
    RETURN_IF_ERROR(add(made.get(), std::move(right)));
    left = std::move(made);
  }
  return left;
}

// A power groups from the left, and a sign binds closer than it.
Result<ExpressionPtr> ExpressionParser::power() {
  ASSIGN_OR_RETURN(ExpressionPtr left, unary(true));
  while (at_symbol("**")) {
    ExpressionPtr made = node(Kind::kBinary);
    made->op = Operator::kPower;
    next();
    RETURN_IF_ERROR(add(made.get(), std::move(left)));
    ASSIGN_OR_RETURN(ExpressionPtr right, unary(true));
    RETURN_IF_ERROR(add(made.get(), std::move(right)));
    left = std::move(made);
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::unary(bool with_filter) {
  const Nesting nesting(&depth_);
  RETURN_IF_ERROR(check_nesting());
  ExpressionPtr made;
  if (at_symbol("-") || at_symbol("+")) {
    made = node(Kind::kUnary);
    made->op = next().text == "-" ? Operator::kNegative : Operator::kPositive;
    ASSIGN_OR_RETURN(ExpressionPtr value, unary(false));
    RETURN_IF_ERROR(add(made.get(), std::move(value)));
  } else {
    ASSIGN_OR_RETURN(made, primary());
  }
  ASSIGN_OR_RETURN(made, postfix(std::move(made)));
  if (!with_filter) return made;
  return filter(std::move(made));
}

Result<ExpressionPtr> ExpressionParser::primary() {
  ExpressionPtr made = node(Kind::kConstant);
  const Token& token = current();
  if (token.kind == Token::Kind::kName) {
    const std::string& name = next().text;
    if (name == "true" || name == "True" || name == "false" || name == "False") {
      made->value = Value(name == "true" || name == "True");
    } else if (name == "none" || name == "None") {
      made->value = Value(None{});
    } else {
      made->kind = Kind::kName;
      made->name = name;
    }
    return made;
  }
  if (token.kind == Token::Kind::kConstant) {
    made->value = next().value;
    if (made->value.text() == nullptr) return made;
    // Strings behind each other are one.
    while (current().kind == Token::Kind::kConstant && current().value.text() != nullptr) {
      made->value = Value(*made->value.text() + *next().value.text());
    }
    return made;
  }
  if (skip_symbol("(")) return parenthesis();
  if (skip_symbol("[")) return list();
  if (skip_symbol("{")) return dict();
  return unexpected();
}

Result<ExpressionPtr> ExpressionParser::parenthesis() {
  if (at_symbol(")")) {
    ExpressionPtr empty = node(Kind::kTuple);
    next();
    return empty;
  }
  ASSIGN_OR_RETURN(ExpressionPtr inner, tuple(true));
  RETURN_IF_ERROR(expect_symbol(")"));
  return inner;
}

Result<ExpressionPtr> ExpressionParser::tuple(bool conditional) {
  ASSIGN_OR_RETURN(ExpressionPtr first, expression(conditional));
  if (!at_symbol(",")) return first;
  ExpressionPtr made = node(Kind::kTuple);
  RETURN_IF_ERROR(add(made.get(), std::move(first)));
  while (skip_symbol(",")) {
    const Token::Kind kind = current().kind;
    if (kind == Token::Kind::kPrintEnd || kind == Token::Kind::kTagEnd || at_symbol(")")) break;
    ASSIGN_OR_RETURN(ExpressionPtr part, expression(conditional));
    RETURN_IF_ERROR(add(made.get(), std::move(part)));
  }
  return made;
}

Result<ExpressionPtr> ExpressionParser::list() {
  ExpressionPtr made = node(Kind::kList);
  while (!at_symbol("]")) {
    if (!made->parts.empty()) RETURN_IF_ERROR(expect_symbol(","));
    if (at_symbol("]")) break;
    ASSIGN_OR_RETURN(ExpressionPtr part, expression());
    RETURN_IF_ERROR(add(made.get(), std::move(part)));
  }
  next();
  return made;
}

Result<ExpressionPtr> ExpressionParser::dict() {
  ExpressionPtr made = node(Kind::kDict);
  while (!at_symbol("}")) {
    if (!made->parts.empty()) RETURN_IF_ERROR(expect_symbol(","));
    if (at_symbol("}")) break;
    ASSIGN_OR_RETURN(ExpressionPtr key, expression());
    RETURN_IF_ERROR(expect_symbol(":"));
    ASSIGN_OR_RETURN(ExpressionPtr value, expression());
    RETURN_IF_ERROR(add(made.get(), std::move(key)));
    RETURN_IF_ERROR(add(made.get(), std::move(value)));
  }
  next();
  return made;
}

Result<ExpressionPtr> ExpressionParser::postfix(ExpressionPtr left) {
  while (at_symbol(".") || at_symbol("[") || at_symbol("(")) {
    if (skip_symbol(".")) {
      ASSIGN_OR_RETURN(left, attribute(std::move(left)));
    } else if (skip_symbol("[")) {
      ASSIGN_OR_RETURN(left, subscript(std::move(left)));
    } else {
      next();
      ASSIGN_OR_RETURN(left, call(std::move(left)));
    }
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::attribute(ExpressionPtr left) {
  ExpressionPtr made = node(Kind::kAttribute);
  RETURN_IF_ERROR(add(made.get(), std::move(left)));
  if (current().kind == Token::Kind::kConstant && current().value.get<int64_t>() != nullptr) {
    made->kind = Kind::kItem;
    made->parts.push_back(node(Kind::kConstant));
    made->parts[1]->value = next().value;
    return made;
  }
  ASSIGN_OR_RETURN(made->name, expect_name("the name of an attribute"));
  if (at_symbol("(") && !is_method(made->name)) {
    return fail("calls the method \"" + printable(made->name, 60) + "\", which is not known here");
  }
  return made;
}

Result<ExpressionPtr> ExpressionParser::subscript(ExpressionPtr left) {
  ExpressionPtr made = node(Kind::kItem);
  RETURN_IF_ERROR(add(made.get(), std::move(left)));
  ExpressionPtr bounds[3];
  int colons = 0;
  while (!at_symbol("]")) {
    if (skip_symbol(":")) {
      if (++colons > 2) return unexpected();
      continue;
    }
    if (bounds[colons] != nullptr) return unexpected();
    ASSIGN_OR_RETURN(bounds[colons], expression());
  }
  if (colons == 0 && bounds[0] == nullptr) return unexpected();
  next();
  if (colons > 0) made->kind = Kind::kSlice;
  for (int i = 0; i < (colons > 0 ? 3 : 1); ++i) {
    RETURN_IF_ERROR(add(made.get(), std::move(bounds[i])));
  }
  return made;
}

// Behind "(".
Result<ExpressionPtr> ExpressionParser::call(ExpressionPtr left) {
  ExpressionPtr made = node(Kind::kCall);
  RETURN_IF_ERROR(add(made.get(), std::move(left)));
  RETURN_IF_ERROR(arguments(made.get()));
  return made;
}

// Up to and with ")".
Status ExpressionParser::arguments(Expression* out) {
  for (bool first = true; !at_symbol(")"); first = false) {
    if (!first) RETURN_IF_ERROR(expect_symbol(","));
    if (at_symbol(")")) break;
    if (current().kind == Token::Kind::kName && ahead().kind == Token::Kind::kSymbol &&
        ahead().text == "=") {
      const std::string name = next().text;
      next();
      ASSIGN_OR_RETURN(ExpressionPtr value, expression());
      out->depth = std::max(out->depth, value->depth + 1);
      out->named.emplace_back(name, std::move(value));
      continue;
    }
    if (!out->named.empty()) return fail("an argument without a name stands behind named ones");
    const bool star = skip_symbol("*");
    ASSIGN_OR_RETURN(ExpressionPtr value, expression());
    if (star) {
      ExpressionPtr items = node(Kind::kStar);
      RETURN_IF_ERROR(add(items.get(), std::move(value)));
      value = std::move(items);
    }
    RETURN_IF_ERROR(add(out, std::move(value)));
  }
  next();
  return Status();
}

Result<ExpressionPtr> ExpressionParser::filter(ExpressionPtr left) {
  while (at_symbol("|") || at_name("is") || (left != nullptr && at_symbol("("))) {
    if (skip_symbol("(")) {
      ASSIGN_OR_RETURN(left, call(std::move(left)));
      continue;
    }
    if (skip_name("is")) {
      ASSIGN_OR_RETURN(left, test(std::move(left)));
      continue;
    }
    next();
    ExpressionPtr made = node(Kind::kFilter);
    ASSIGN_OR_RETURN(made->name, expect_name("the name of a filter"));
    RETURN_IF_ERROR(add(made.get(), std::move(left)));
    if (skip_symbol("(")) RETURN_IF_ERROR(arguments(made.get()));
    left = std::move(made);
  }
  return left;
}

Result<ExpressionPtr> ExpressionParser::test(ExpressionPtr left) {
  const bool negated = skip_name("not");
  ExpressionPtr made = node(Kind::kTest);
  ASSIGN_OR_RETURN(made->name, expect_name("the name of a test"));
  RETURN_IF_ERROR(add(made.get(), std::move(left)));
  const Token::Kind kind = current().kind;
  if (skip_symbol("(")) {
    RETURN_IF_ERROR(arguments(made.get()));
  } else if (kind == Token::Kind::kConstant || at_symbol("[") || at_symbol("{") ||
             (kind == Token::Kind::kName && !is_end_of_test(current().text))) {
    if (at_name("is")) return fail("a test stands behind a test");
    ASSIGN_OR_RETURN(ExpressionPtr argument, primary());
    ASSIGN_OR_RETURN(argument, postfix(std::move(argument)));
    RETURN_IF_ERROR(add(made.get(), std::move(argument)));
  }
  if (!negated) return made;
  ExpressionPtr negation = node(Kind::kUnary);
  negation->op = Operator::kNot;
  RETURN_IF_ERROR(add(negation.get(), std::move(made)));
  return negation;
}

}  // namespace pagoda::jinja
