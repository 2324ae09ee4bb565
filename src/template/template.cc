#include "template/template.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/utf8.h"
#include "template/evaluator.h"
#include "template/lexer.h"
#include "template/parser.h"

namespace pagoda::jinja {

namespace {

bool has_generation(const Body& body) {
  for (const auto& node : body) {
    if (node->kind == Statement::Kind::kGeneration || has_generation(node->body) ||
        has_generation(node->otherwise)) {
      return true;
    }
  }
  return false;
}

}  // namespace

struct Template::Tree {
  Body body;
  bool marks_generation = false;
};

Result<Date> Date::parse(const std::string& text) {
  Date date;
  int end = 0;
  const bool digits =
      text.size() == 10 &&
      std::sscanf(text.c_str(), "%4d-%2d-%2d%n", &date.year, &date.month, &date.day, &end) == 3 &&
      end == 10;
  const std::chrono::year_month_day day{std::chrono::year(date.year),
                                        std::chrono::month(static_cast<unsigned>(date.month)),
                                        std::chrono::day(static_cast<unsigned>(date.day))};
  if (!digits || date.year < 1 || !day.ok()) {
    return Status(Exit::kBadData, "is no day as in 2026-11-23");
  }
  return date;
}

std::string Date::text() const { return strf("%04d-%02d-%02d", year, month, day); }

Result<Template> Template::parse(const std::string& source) {
  if (source.size() > kMaxTemplateBytes) {
    return Status(Exit::kBadData, strf("is larger than %zu bytes", kMaxTemplateBytes));
  }
  if (first_invalid_utf8(source) != std::string::npos) {
    return Status(Exit::kBadData, "is not UTF-8");
  }
  auto tree = std::make_shared<Tree>();
  ASSIGN_OR_RETURN(tree->body, jinja::parse(source));
  tree->marks_generation = has_generation(tree->body);
  Template made;
  made.tree_ = std::move(tree);
  return made;
}

bool Template::marks_generation() const { return tree_->marks_generation; }

Result<Rendered> Template::render(const Variables& variables, const Date& today,
                                  Bounds* left) const {
  Bounds bounds;
  if (left != nullptr) {
    bounds.steps = std::min(bounds.steps, left->steps);
    bounds.made_bytes = std::min(bounds.made_bytes, left->made_bytes);
  }
  Evaluator evaluator(variables, today, bounds);
  const Status status = evaluator.run(tree_->body);
  if (left != nullptr) {
    left->steps -= bounds.steps - evaluator.left().steps;
    left->made_bytes -= bounds.made_bytes - evaluator.left().made_bytes;
  }
  if (!status.ok()) return error_at(evaluator.error_line(), status.message());
  return evaluator.take();
}

}  // namespace pagoda::jinja
