// Compares values as Python does.
#pragma once

#include "base/status.h"
#include "template/budget.h"
#include "template/value.h"

namespace pagoda::jinja {

// Numbers by their value, strings, none, undefined; lists and dictionaries are never equal here.
bool equal_scalars(const Value& a, const Value& b);
Result<bool> equal(Budget& budget, const Value& a, const Value& b);
// Below 0, 0 or above 0. kBadData for values without an order.
Result<int> order(Budget& budget, const Value& a, const Value& b);
// The value of a key, or nullptr.
Result<const Value*> look_up(Budget& budget, const Dict& dict, const Value& key);
// The operator "in".
Result<bool> contains(Budget& budget, const Value& container, const Value& item);
// The elements that a loop would have: of a list, the keys of a dictionary, a string's characters.
Result<std::vector<Value>> elements(Budget& budget, const Value& value);

}  // namespace pagoda::jinja
