#include "template/loop_state.h"

#include "base/log.h"

namespace pagoda::jinja {

Result<bool> LoopState::reaches(size_t at) {
  while (passed.size() <= at && tried < items.size()) {
    const Value& item = items[tried++];
    bool good = true;
    if (filter) {
      ASSIGN_OR_RETURN(good, filter(item));
    }
    if (good) passed.push_back(item);
  }
  return passed.size() > at;
}

Result<Value> LoopState::attribute(const std::string& name) {
  const auto number = [](size_t value) { return Value(static_cast<int64_t>(value)); };
  if (name == "index") return number(index0 + 1);
  if (name == "index0") return number(index0);
  if (name == "first") return Value(index0 == 0);
  if (name == "depth") return Value(int64_t{depth});
  if (name == "depth0") return Value(int64_t{depth} - 1);
  if (name == "previtem") {
    return index0 > 0 ? passed[index0 - 1] : Value::undefined("there is no previous item");
  }
  if (name == "last" || name == "nextitem") {
    ASSIGN_OR_RETURN(const bool more, reaches(index0 + 1));
    if (name == "last") return Value(!more);
    return more ? passed[index0 + 1] : Value::undefined("there is no next item");
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    RETURN_IF_ERROR(reaches(items.size()).status());
    if (name == "length") return number(passed.size());
    return number(passed.size() - index0 - (name == "revindex0" ? 1 : 0));
  }
  return Value::undefined("loop has no attribute \"" + printable(name, 60) + "\"");
}

}  // namespace pagoda::jinja
