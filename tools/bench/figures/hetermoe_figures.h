// HeterMoE's Figures 7 to 12 and Table 3 as `pagoda plan` has the paper's runs on the sheets of its
// machines (tests/testing/hetermoe/paper_runs.h), beside the paper's numbers; the same on every
// machine. Reads configs/ in the working folder.
#pragma once

namespace pagoda {

// Prints the tables to stdout, in some minutes.
void print_hetermoe_figures();

}  // namespace pagoda
