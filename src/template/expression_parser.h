// The part of the parser that reads expressions, as a base of the one that reads blocks.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "template/lexer.h"
#include "template/syntax.h"

namespace pagoda::jinja {

class ExpressionParser {
 public:
  // REQUIRES: the last token is kEnd.
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

 protected:
  // Counts how deep calls are in each other.
  class Nesting {
   public:
    explicit Nesting(int* depth) : depth_(depth) { ++*depth_; }
    ~Nesting() { --*depth_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    int* depth_;
  };
  Status check_nesting() const;

  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token& next() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool at_name(std::string_view name) const;
  bool at_symbol(std::string_view symbol) const;
  bool skip_name(std::string_view name);
  bool skip_symbol(std::string_view symbol);
  Status expect_symbol(std::string_view symbol);
  Result<std::string> expect_name(const char* what);
  Status unexpected() const;
  Status fail(const std::string& why) const;

  Result<ExpressionPtr> expression(bool conditional = true);
  // One expression, or several with commas between them.
  Result<ExpressionPtr> tuple(bool conditional);
  // The filters behind `node`, which may be null.
  Result<ExpressionPtr> filter(ExpressionPtr node);

  int depth_ = 0;  // of calls in each other

 private:
  ExpressionPtr node(Expression::Kind kind) const;
  // Makes `part`, which may be null, the last one of `to`.
  Status add(Expression* to, ExpressionPtr part) const;
  Result<ExpressionPtr> condition();
  Result<ExpressionPtr> disjunction();
  Result<ExpressionPtr> conjunction();
  Result<ExpressionPtr> negation();
  Result<ExpressionPtr> comparison();
  Result<ExpressionPtr> sum();
  Result<ExpressionPtr> concatenation();
  Result<ExpressionPtr> product();
  Result<ExpressionPtr> power();
  Result<ExpressionPtr> unary(bool with_filter);
  Result<ExpressionPtr> primary();
  Result<ExpressionPtr> parenthesis();
  Result<ExpressionPtr> list();
  Result<ExpressionPtr> dict();
  Result<ExpressionPtr> postfix(ExpressionPtr left);
  Result<ExpressionPtr> attribute(ExpressionPtr left);
  Result<ExpressionPtr> subscript(ExpressionPtr left);
  Result<ExpressionPtr> call(ExpressionPtr left);
  Status arguments(Expression* out);
  Result<ExpressionPtr> test(ExpressionPtr left);

  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace pagoda::jinja
