// What is wrong with a plan, in words and as the rule it breaks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"

namespace pagoda {

enum class PlanRule : uint8_t {
  kInputs,        // no task before what it reads exists and is up to date
  kSlots,         // a slot holds one page, and a page in use or without another copy keeps its slot
  kBudget,        // slots and bytes in use are within what the memory plan gives
  kNeeded,        // nothing is moved to where it already is
  kReadOnce,      // weights come to a place once forward and once backward, besides prefetches
  kGradientOnce,  // a gradient is made once, consumed once, and not later than the next step
  kMatched,       // what a device sends to another is received there, in that order
  kSumOrder,      // gradients are added as plan/sums/sum_shape.h says
  kStateOnce,     // optimizer state is read and written once for an update
  kHome,          // a record's pages are used and written at its home; others have copies of dense
                  // weights, of the newest update
};

struct PlanFault {
  PlanRule rule;
  std::string what;
};

using PlanFaults = std::vector<PlanFault>;

// "" if there is none.
inline std::string first_fault(const PlanFaults& faults) {
  return faults.empty() ? "" : strf("rule %d: ", static_cast<int>(faults[0].rule)) + faults[0].what;
}

}  // namespace pagoda
