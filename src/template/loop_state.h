// The variable "loop" of a running loop. Elements are filtered when they are asked for, because the
// filter may read what the body writes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "template/budget.h"
#include "template/value.h"

namespace pagoda::jinja {

struct LoopState {
  using Filter = std::function<Result<bool>(const Value&)>;

  std::vector<Value> items;
  Filter filter;  // empty: all; also once the loop is over
  // The elements that passed the filter, up to the current one or the one behind it.
  std::vector<Value> passed;
  size_t tried = 0;   // of items
  size_t index0 = 0;  // of the current element in `passed`
  int depth = 1;      // loops around this one, itself among them

  // Whether passed[at] is there, after filtering as far as it takes.
  Result<bool> reaches(size_t at);
  // loop.name; undefined for an unknown one.
  Result<Value> attribute(const std::string& name);
};

}  // namespace pagoda::jinja
