// The operators of numbers, strings and lists, as Python has them; integers have 64 bits.
#pragma once

#include "base/status.h"
#include "template/budget.h"
#include "template/syntax.h"
#include "template/value.h"

namespace pagoda::jinja {

// Operators from kAdd to kPower. kBadData: of these types there is none, a division by 0, a number
// that is too large.
Result<Value> calculate(Budget& budget, Operator op, const Value& a, const Value& b);

}  // namespace pagoda::jinja
