// A CPU device may be slowed, so that unequal devices and their schedules can be tried on one
// machine: its stream sleeps in proportion to the processor time that its work took. Experts and
// the rest have a factor each, since devices that are alike in both gain nothing from a division by
// kind of work (HeterMoE, section 3.1). Pure.
#pragma once

#include "plan/step/task_table.h"

namespace pagoda {

struct Throttle {
  double experts = 1;  // expert tasks take so many times as long
  double rest = 1;     // all others, but for updates and transfers, which other hardware does

  bool slows() const { return experts > 1 || rest > 1; }
  double of(TaskKind kind) const {
    if (sends(kind) || receives(kind)) return 1;
    switch (task_row(kind).colour) {
      case TaskColour::kExperts:
        return experts;
      case TaskColour::kUpdates:
        return 1;
      default:
        return rest;
    }
  }
};

}  // namespace pagoda
