// HeterMoE's Figures 7 to 12 and Table 3 in simulation, beside the paper's numbers
// (tests/testing/hetermoe/heterogeneous_sweep.h); the same on every machine.
#pragma once

namespace pagoda {

// Prints the tables to stdout, in half a minute.
void print_hetermoe_figures();

// Prints the paper's setups as they are planned by the sheets of configs/, with memory and all that
// `train` does, to stdout, in some minutes.
void print_hetermoe_sheets();

}  // namespace pagoda
