// HeterMoE's Figures 7 to 12 and Table 3 in simulation (tests/testing/plan/heterogeneous_sweep.h),
// beside the paper's numbers; the same on every machine.
#pragma once

namespace pagoda {

// Prints the tables to stdout, in half a minute.
void print_hetermoe_figures();

}  // namespace pagoda
