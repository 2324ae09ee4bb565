#include "template/parser.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "template/expression_parser.h"

namespace pagoda::jinja {

namespace {

using StatementPtr = std::unique_ptr<Statement>;

class TemplateParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Result<Body> run() {
    ASSIGN_OR_RETURN(Body body, statements({}));
    if (current().kind != Token::Kind::kEnd) return unexpected();
    return body;
  }

 private:
  using Kind = Statement::Kind;

  // Up to a tag that has one of these names, which is left at its name; or to the end.
  Result<Body> statements(const std::vector<std::string>& ends) {
    const Nesting nesting(&depth_);
    RETURN_IF_ERROR(check_nesting());
    Body body;
    while (current().kind != Token::Kind::kEnd) {
      StatementPtr made = statement_here();
      if (current().kind == Token::Kind::kText) {
        made->text = std::move(next().text);
        body.push_back(std::move(made));
        continue;
      }
      if (current().kind == Token::Kind::kPrintBegin) {
        next();
        made->kind = Kind::kPrint;
        ASSIGN_OR_RETURN(made->value, tuple(true));
        if (current().kind != Token::Kind::kPrintEnd) return unexpected();
        next();
        body.push_back(std::move(made));
        continue;
      }
      next();
      const bool ended = std::any_of(ends.begin(), ends.end(),
                                     [&](const std::string& end) { return at_name(end); });
      if (ended) return body;
      RETURN_IF_ERROR(tag(made.get()));
      RETURN_IF_ERROR(end_of_tag());
      body.push_back(std::move(made));
    }
    if (!ends.empty()) return fail("\"" + ends.back() + "\" is missing");
    return body;
  }

  // Statements up to a tag with this name, which is read.
  Result<Body> statements_until(const std::string& end) {
    ASSIGN_OR_RETURN(Body body, statements({end}));
    next();
    return body;
  }

  StatementPtr statement_here() const {
    auto made = std::make_unique<Statement>();
    made->line = current().line;
    return made;
  }

  Status end_of_tag() {
    if (current().kind != Token::Kind::kTagEnd) return unexpected();
    next();
    return Status();
  }

  Status tag(Statement* out) {
    ASSIGN_OR_RETURN(const std::string name, expect_name("the name of a tag"));
    if (name == "if") return if_tag(out);
    if (name == "for") return for_tag(out);
    if (name == "set") return set_tag(out);
    if (name == "macro") return macro_tag(out);
    if (name == "with") return with_tag(out);
    if (name == "generation") {
      out->kind = Kind::kGeneration;
      RETURN_IF_ERROR(end_of_tag());
      const int loops = std::exchange(loops_, 0);
      ASSIGN_OR_RETURN(out->body, statements_until("endgeneration"));
      loops_ = loops;
      return Status();
    }
    if (name == "break" || name == "continue") {
      out->kind = name == "break" ? Kind::kBreak : Kind::kContinue;
      return loops_ > 0 ? Status() : fail("\"" + name + "\" stands outside of a loop");
    }
    return error_at(out->line, "the tag \"" + printable(name, 60) + "\" is not known here");
  }

  Status if_tag(Statement* out) {
    // Each "elif" is an "if" in the last one's "else", of which there may be many.
    out->kind = Kind::kIf;
    ASSIGN_OR_RETURN(out->value, tuple(false));
    RETURN_IF_ERROR(end_of_tag());
    ASSIGN_OR_RETURN(out->body, statements({"elif", "else", "endif"}));
    if (at_name("elif")) {
      const Nesting nesting(&depth_);
      RETURN_IF_ERROR(check_nesting());
      StatementPtr inner = statement_here();
      next();
      RETURN_IF_ERROR(if_tag(inner.get()));
      out->otherwise.push_back(std::move(inner));
      return Status();
    }
    if (skip_name("else")) {
      RETURN_IF_ERROR(end_of_tag());
      ASSIGN_OR_RETURN(out->otherwise, statements_until("endif"));
      return Status();
    }
    next();
    return Status();
  }

  Status target_names(Statement* out) {
    const bool bracket = skip_symbol("(");
    do {
      if (!out->targets.empty() && current().kind != Token::Kind::kName) break;
      ASSIGN_OR_RETURN(const std::string name, expect_name("the name of a variable"));
      out->targets.push_back(name);
      out->unpacks = out->targets.size() > 1 || at_symbol(",");
    } while (skip_symbol(","));
    return bracket ? expect_symbol(")") : Status();
  }

  Status for_tag(Statement* out) {
    out->kind = Kind::kFor;
    RETURN_IF_ERROR(target_names(out));
    if (!skip_name("in")) return fail("\"in\" is missing here");
    ASSIGN_OR_RETURN(out->value, tuple(false));
    if (skip_name("if")) {
      ASSIGN_OR_RETURN(out->test, expression());
    }
    if (at_name("recursive")) return fail("recursive loops are not known here");
    RETURN_IF_ERROR(end_of_tag());
    ++loops_;
    ASSIGN_OR_RETURN(out->body, statements({"else", "endfor"}));
    --loops_;
    if (skip_name("else")) {
      RETURN_IF_ERROR(end_of_tag());
      ASSIGN_OR_RETURN(out->otherwise, statements({"endfor"}));
    }
    next();
    return Status();
  }

  Status set_tag(Statement* out) {
    out->kind = Kind::kSet;
    if (ahead().kind == Token::Kind::kSymbol && ahead().text == ".") {
      ASSIGN_OR_RETURN(out->space, expect_name("the name of a variable"));
      next();
      ASSIGN_OR_RETURN(const std::string name, expect_name("the name of an attribute"));
      out->targets.push_back(name);
    } else {
      RETURN_IF_ERROR(target_names(out));
    }
    if (skip_symbol("=")) {
      ASSIGN_OR_RETURN(out->value, tuple(true));
      return Status();
    }
    if (out->unpacks) return unexpected();
    out->kind = Kind::kSetBlock;
    if (at_symbol("|")) {
      ASSIGN_OR_RETURN(out->value, filter(nullptr));
    }
    RETURN_IF_ERROR(end_of_tag());
    ASSIGN_OR_RETURN(out->body, statements_until("endset"));
    return Status();
  }

  Status with_tag(Statement* out) {
    out->kind = Kind::kWith;
    while (current().kind == Token::Kind::kName) {
      out->targets.push_back(next().text);
      RETURN_IF_ERROR(expect_symbol("="));
      ASSIGN_OR_RETURN(ExpressionPtr value, expression());
      out->bound.push_back(std::move(value));
      if (!skip_symbol(",")) break;
    }
    RETURN_IF_ERROR(end_of_tag());
    ASSIGN_OR_RETURN(out->body, statements_until("endwith"));
    return Status();
  }

  Status macro_tag(Statement* out) {
    // A macro sees the variables of the template, and none of a loop or of another macro.
    if (loops_ > 0 || in_macro_) return fail("a macro inside a loop or a macro is not known here");
    out->kind = Kind::kMacro;
    out->macro = std::make_unique<MacroNode>();
    MacroNode& macro = *out->macro;
    ASSIGN_OR_RETURN(macro.name, expect_name("the name of a macro"));
    RETURN_IF_ERROR(expect_symbol("("));
    for (bool first = true; !at_symbol(")"); first = false) {
      if (!first) RETURN_IF_ERROR(expect_symbol(","));
      ASSIGN_OR_RETURN(const std::string name, expect_name("the name of a parameter"));
      ExpressionPtr value;
      if (skip_symbol("=")) {
        ASSIGN_OR_RETURN(value, expression());
      } else if (!macro.defaults.empty() && macro.defaults.back() != nullptr) {
        return fail("a parameter without a default stands behind one with it");
      }
      macro.parameters.push_back(name);
      macro.defaults.push_back(std::move(value));
    }
    next();
    RETURN_IF_ERROR(end_of_tag());
    in_macro_ = true;
    ASSIGN_OR_RETURN(macro.body, statements_until("endmacro"));
    in_macro_ = false;
    return Status();
  }

  int loops_ = 0;
  bool in_macro_ = false;
};

}  // namespace

Result<Body> parse(const std::string& source) {
  ASSIGN_OR_RETURN(std::vector<Token> tokens, divide(source));
  return TemplateParser(std::move(tokens)).run();
}

}  // namespace pagoda::jinja
