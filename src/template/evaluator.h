// Runs a syntax tree once.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "template/builtins.h"
#include "template/loop_state.h"
#include "template/syntax.h"
#include "template/template.h"

namespace pagoda::jinja {

// The variables of a block, and those around it.
struct Scope {
  explicit Scope(Scope* outer_scope) : outer(outer_scope) {}
  void set(const std::string& name, Value value);

  Scope* outer;
  Variables variables;
};

class Evaluator {
 public:
  Evaluator(const Variables& variables, const Date& today, const Bounds& bounds);
  // The status has no place; error_line() is where it arose.
  Status run(const Body& body);
  int error_line() const { return error_line_; }
  const Bounds& left() const { return budget_.left(); }
  Rendered take() { return {std::move(text_), std::move(generated_)}; }

 private:
  enum class Flow : uint8_t { kOn, kBreak, kContinue };
  // Every value that an expression gives is checked, so that none nests deeper than a little more.
  static Status check_depth(const Value& value);

  // Statements.
  Result<Flow> execute(const Body& body, Scope& scope);
  Result<Flow> statement(const Statement& node, Scope& scope);
  Result<Flow> loop(const Statement& node, Scope& scope);
  Status set(const Statement& node, Scope& scope);
  Status assign(const Statement& node, Value value, Scope& scope);
  Status store(const std::string& name, Value value, Scope& scope);
  Status store(const std::string& name, Value value, Namespace* space);
  Status unpack(const Statement& node, const Value& value, Scope& scope);
  Status generation(const Statement& node, Scope& scope);
  Status write(const std::string& text);
  Result<std::string> captured(const Body& body, Scope& scope);

  // Expressions.
  Result<Value> evaluate(const Expression& node, Scope& scope);
  Result<Value> evaluate_kind(const Expression& node, Scope& scope);
  Result<Value> variable(const std::string& name, const Scope& scope);
  Result<std::vector<Value>> evaluate_all(const Expression& node, Scope& scope);
  Result<Value> dictionary(const Expression& node, Scope& scope);
  Result<Value> unary(const Expression& node, Scope& scope);
  Result<Value> binary(const Expression& node, Scope& scope);
  Result<Value> comparison(const Expression& node, Scope& scope);
  Result<bool> compared(Operator op, const Value& a, const Value& b);
  Result<Value> concatenation(const Expression& node, Scope& scope);
  Result<Value> slice(const Expression& node, Scope& scope);
  Result<Value> filter(const Expression& node, const Value& value, Scope& scope);
  Result<Value> filter_chain(const Expression& node, const Value& value, Scope& scope);
  Result<Arguments> arguments(const Expression& node, Scope& scope);
  Result<Value> call(const Expression& node, Scope& scope);
  Result<Value> call_function(Function function, const Arguments& arguments);
  Result<Value> call_macro(const MacroNode& macro, const Arguments& arguments);
  Result<Value> make_range(const Arguments& arguments);
  Result<Value> make_dict(const Arguments& arguments);
  Result<Value> make_namespace(const Arguments& arguments);

  const Date today_;
  Budget budget_;
  Scope top_{nullptr};
  std::string text_;
  std::string* out_ = &text_;
  std::vector<std::pair<size_t, size_t>> generated_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  std::vector<std::unique_ptr<LoopState>> loops_;
  int depth_ = 0;
  int loop_depth_ = 0;
  int error_line_ = 0;
};

}  // namespace pagoda::jinja
