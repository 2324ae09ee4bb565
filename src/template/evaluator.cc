#include "template/evaluator.h"

#include <algorithm>

#include "base/log.h"
#include "template/compare.h"
#include "template/value_text.h"

namespace pagoda::jinja {

void Scope::set(const std::string& name, Value value) {
  for (auto& [known, held] : variables) {
    if (known == name) {
      held = std::move(value);
      return;
    }
  }
  variables.emplace_back(name, std::move(value));
}

Evaluator::Evaluator(const Variables& variables, const Date& today, const Bounds& bounds)
    : today_(today), budget_(bounds) {
  top_.set("range", Value(Function::kRange));
  top_.set("namespace", Value(Function::kNamespace));
  top_.set("dict", Value(Function::kDict));
  top_.set("raise_exception", Value(Function::kRaise));
  top_.set("strftime_now", Value(Function::kNow));
  for (const auto& [name, value] : variables) top_.set(name, value);
}

Status Evaluator::check_depth(const Value& value) {
  if (value.depth() <= kMaxValueDepth) return Status();
  return failed(strf("a value is nested deeper than %d", kMaxValueDepth));
}

Status Evaluator::run(const Body& body) { return execute(body, top_).status(); }

Status Evaluator::write(const std::string& text) {
  if (out_->size() + text.size() > kMaxTextBytes) {
    return failed(strf("renders more than %zu bytes", kMaxTextBytes));
  }
  RETURN_IF_ERROR(budget_.make(text.size()));
  *out_ += text;
  return Status();
}

Result<std::string> Evaluator::captured(const Body& body, Scope& scope) {
  std::string text;
  std::string* before = std::exchange(out_, &text);
  const Status status = execute(body, scope).status();
  out_ = before;
  if (!status.ok()) return status;
  return text;
}

Result<Evaluator::Flow> Evaluator::execute(const Body& body, Scope& scope) {
  if (++depth_ > kMaxRunningDepth) {
    return failed(strf("runs nested deeper than %d", kMaxRunningDepth));
  }
  Flow flow = Flow::kOn;
  for (const auto& node : body) {
    auto done = statement(*node, scope);
    if (!done.ok()) {
      if (error_line_ == 0) error_line_ = node->line;
      return done;
    }
    flow = done.value();
    if (flow != Flow::kOn) break;
  }
  --depth_;
  return flow;
}

Result<Evaluator::Flow> Evaluator::statement(const Statement& node, Scope& scope) {
  using Kind = Statement::Kind;
  RETURN_IF_ERROR(budget_.spend(1));
  switch (node.kind) {
    case Kind::kText:
      RETURN_IF_ERROR(write(node.text));
      return Flow::kOn;
    case Kind::kPrint: {
      ASSIGN_OR_RETURN(const Value value, evaluate(*node.value, scope));
      ASSIGN_OR_RETURN(const std::string text, text_of(budget_, value));
      RETURN_IF_ERROR(write(text));
      return Flow::kOn;
    }
    case Kind::kIf: {
      ASSIGN_OR_RETURN(const Value value, evaluate(*node.value, scope));
      return execute(value.truthy() ? node.body : node.otherwise, scope);
    }
    case Kind::kFor:
      return loop(node, scope);
    case Kind::kSet:
    case Kind::kSetBlock:
      RETURN_IF_ERROR(set(node, scope));
      return Flow::kOn;
    case Kind::kWith: {
      Scope inner(&scope);
      for (size_t i = 0; i < node.targets.size(); ++i) {
        ASSIGN_OR_RETURN(Value value, evaluate(*node.bound[i], scope));
        RETURN_IF_ERROR(store(node.targets[i], std::move(value), inner));
      }
      return execute(node.body, inner);
    }
    case Kind::kMacro:
      RETURN_IF_ERROR(store(node.macro->name, Value(node.macro.get()), scope));
      return Flow::kOn;
    case Kind::kGeneration:
      RETURN_IF_ERROR(generation(node, scope));
      return Flow::kOn;
    case Kind::kBreak:
      return Flow::kBreak;
    case Kind::kContinue:
      return Flow::kContinue;
  }
  CHECK(false);
  return Flow::kOn;
}

Result<Evaluator::Flow> Evaluator::loop(const Statement& node, Scope& scope) {
  ASSIGN_OR_RETURN(const Value sequence, evaluate(*node.value, scope));
  RETURN_IF_ERROR(budget_.make(sizeof(LoopState)));
  loops_.push_back(std::make_unique<LoopState>());
  LoopState& state = *loops_.back();
  ASSIGN_OR_RETURN(state.items, elements(budget_, sequence));
  RETURN_IF_ERROR(budget_.make_items(state.items.size()));
  if (node.test != nullptr) {
    state.filter = [&](const Value& item) -> Result<bool> {
      Scope tried(&scope);
      RETURN_IF_ERROR(unpack(node, item, tried));
      ASSIGN_OR_RETURN(const Value good, evaluate(*node.test, tried));
      return good.truthy();
    };
  }
  state.depth = ++loop_depth_;
  Result<bool> more = state.reaches(0);
  const bool any = more.ok() && more.value();
  Status status = more.status();
  while (status.ok() && more.value()) {
    Scope inner(&scope);
    inner.set("loop", Value(&state));
    status = unpack(node, state.passed[state.index0], inner);
    if (!status.ok()) break;
    const auto flow = execute(node.body, inner);
    status = flow.status();
    if (!status.ok() || flow.value() == Flow::kBreak) break;
    more = state.reaches(state.index0 + 1);
    status = more.status();
    if (status.ok() && more.value()) ++state.index0;
  }
  // The variable may outlive the loop in a namespace, but not what the filter reads.
  state.tried = state.items.size();
  state.filter = nullptr;
  --loop_depth_;
  RETURN_IF_ERROR(status);
  if (any || node.otherwise.empty()) return Flow::kOn;
  Scope inner(&scope);
  return execute(node.otherwise, inner);
}

Status Evaluator::unpack(const Statement& node, const Value& value, Scope& scope) {
  if (!node.unpacks) {
    return store(node.targets[0], value, scope);
  }
  if (value.is_undefined()) return failed(value.undefined_what());
  ASSIGN_OR_RETURN(const std::vector<Value> items, elements(budget_, value));
  if (items.size() != node.targets.size()) {
    return failed(strf("%zu values for %zu names", items.size(), node.targets.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    RETURN_IF_ERROR(store(node.targets[i], items[i], scope));
  }
  return Status();
}

Status Evaluator::store(const std::string& name, Value value, Scope& scope) {
  RETURN_IF_ERROR(budget_.look_up(scope.variables.size(), name.size()));
  scope.set(name, std::move(value));
  return Status();
}

Status Evaluator::store(const std::string& name, Value value, Namespace* space) {
  RETURN_IF_ERROR(budget_.look_up(space->members.size(), name.size()));
  for (auto& [known, member] : space->members) {
    if (known == name) {
      member = std::move(value);
      return Status();
    }
  }
  RETURN_IF_ERROR(budget_.make(kItemBytes + name.size()));
  space->members.emplace_back(name, std::move(value));
  return Status();
}

Status Evaluator::set(const Statement& node, Scope& scope) {
  if (node.kind == Statement::Kind::kSet) {
    ASSIGN_OR_RETURN(Value value, evaluate(*node.value, scope));
    return assign(node, std::move(value), scope);
  }
  Scope inner(&scope);
  ASSIGN_OR_RETURN(std::string text, captured(node.body, inner));
  Value value(std::move(text));
  if (node.value != nullptr) {
    ASSIGN_OR_RETURN(value, filter_chain(*node.value, value, scope));
  }
  return assign(node, std::move(value), scope);
}

Status Evaluator::assign(const Statement& node, Value value, Scope& scope) {
  RETURN_IF_ERROR(check_depth(value));
  RETURN_IF_ERROR(budget_.make_items(1));
  if (node.space.empty()) return unpack(node, value, scope);
  ASSIGN_OR_RETURN(const Value held, variable(node.space, scope));
  Namespace* space = held.space();
  if (space == nullptr) {
    return failed("\"" + printable(node.space, 60) + "\" is no namespace, so nothing is set in it");
  }
  return store(node.targets[0], std::move(value), space);
}

Status Evaluator::generation(const Statement& node, Scope& scope) {
  Scope inner(&scope);
  const size_t begin = text_.size();
  RETURN_IF_ERROR(execute(node.body, inner).status());
  if (out_ == &text_) generated_.emplace_back(begin, text_.size());
  return Status();
}

Result<Value> Evaluator::variable(const std::string& name, const Scope& scope) {
  size_t passed = 0;
  for (const Scope* at = &scope; at != nullptr; at = at->outer) {
    passed += 1 + at->variables.size();
    for (const auto& [known, value] : at->variables) {
      if (known != name) continue;
      RETURN_IF_ERROR(budget_.look_up(passed, name.size()));
      return value;
    }
  }
  RETURN_IF_ERROR(budget_.look_up(passed, name.size()));
  return Value::undefined("\"" + printable(name, 60) + "\" is undefined");
}

Result<Value> Evaluator::filter_chain(const Expression& node, const Value& value, Scope& scope) {
  if (node.kind != Expression::Kind::kFilter) return failed("only filters follow \"set\"");
  if (node.parts[0] == nullptr) return filter(node, value, scope);
  ASSIGN_OR_RETURN(const Value inner, filter_chain(*node.parts[0], value, scope));
  return filter(node, inner, scope);
}

Result<Value> Evaluator::call_macro(const MacroNode& macro, const Arguments& given) {
  Scope scope(&top_);
  const size_t count = macro.parameters.size();
  if (given.values.size() > count) {
    return failed(
        strf("the macro %s takes at most %zu arguments", printable(macro.name, 60).c_str(), count));
  }
  for (const auto& named : given.named) {
    RETURN_IF_ERROR(budget_.look_up(2 * count, named.first.size()));
    const auto found = std::find(macro.parameters.begin(), macro.parameters.end(), named.first);
    const bool twice =
        found - macro.parameters.begin() < static_cast<std::ptrdiff_t>(given.values.size());
    if (found == macro.parameters.end() || twice) {
      return failed("the macro " + printable(macro.name, 60) + " takes no argument \"" +
                    printable(named.first, 60) + "\"" + (twice ? " twice" : ""));
    }
  }
  for (size_t i = 0; i < count; ++i) {
    const std::string& name = macro.parameters[i];
    const auto named = std::find_if(given.named.begin(), given.named.end(),
                                    [&](const auto& pair) { return pair.first == name; });
    Value value;
    if (i < given.values.size()) {
      value = given.values[i];
    } else if (named != given.named.end()) {
      value = named->second;
    } else if (macro.defaults[i] != nullptr) {
      ASSIGN_OR_RETURN(value, evaluate(*macro.defaults[i], scope));
    } else {
      value = Value::undefined("parameter \"" + printable(name, 60) + "\" was not provided");
    }
    RETURN_IF_ERROR(store(name, std::move(value), scope));
  }
  ASSIGN_OR_RETURN(std::string text, captured(macro.body, scope));
  return Value(std::move(text));
}

}  // namespace pagoda::jinja
