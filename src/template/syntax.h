// The syntax tree of a template. The parser makes it, and the evaluator reads it; it is not changed
// afterwards. Nodes nest at most kMaxNesting deep (template/parser.h).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "template/value.h"

namespace pagoda::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;
struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
  kAnd,
  kOr,
  kNot,
  kNegative,
  kPositive,
};

struct Expression {
  enum class Kind : uint8_t {
    kConstant,     // value
    kName,         // name
    kList,         // parts
    kTuple,        // parts
    kDict,         // parts: key, value, key, value, ...
    kUnary,        // op, parts[0]
    kBinary,       // op, parts[0], parts[1]; kAnd and kOr too
    kCompare,      // parts[0], ops[0], parts[1], ops[1], ...
    kConcat,       // parts
    kConditional,  // parts[0] if parts[1] else parts[2], which may be missing
    kAttribute,    // parts[0].name
    kItem,         // parts[0][parts[1]]
    kSlice,        // parts[0][parts[1]:parts[2]:parts[3]], null where there is none
    kCall,         // parts[0](parts[1], ..., named...)
    kStar,         // *parts[0], among the arguments of a call: the items of a list
    kFilter,       // parts[0] | name(parts[1], ..., named...); parts[0] is null in set blocks
    kTest,         // parts[0] is name(parts[1], ...)
  };
  Kind kind = Kind::kConstant;
  Operator op = Operator::kAdd;
  int line = 0;
  int depth = 1;  // 1 + the deepest part's
  std::string name;
  Value value;
  std::vector<ExpressionPtr> parts;
  std::vector<Operator> ops;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct MacroNode {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<ExpressionPtr> defaults;  // one for each parameter; null: none
  Body body;
};

struct Statement {
  enum class Kind : uint8_t {
    kText,        // text
    kPrint,       // value
    kIf,          // value, body, otherwise
    kFor,         // targets in value, if test: body; otherwise, if there was none
    kSet,         // targets = value, or space.name = value
    kSetBlock,    // targets[0] = body, through the filters of value if there are any
    kWith,        // targets[i] = bound[i]; body
    kMacro,       // macro
    kGeneration,  // body
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text;
  std::string space;  // the namespace that is written to; empty: a variable
  std::vector<std::string> targets;
  bool unpacks = false;  // a value is a list with one for each target
  ExpressionPtr value, test;
  std::vector<ExpressionPtr> bound;
  Body body, otherwise;
  std::unique_ptr<MacroNode> macro;
};

}  // namespace pagoda::jinja
