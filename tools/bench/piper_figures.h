// Prints Piper's figures as the planner has them: steps simulated by the tasks that train executes,
// each with the paper's numbers where it gives any, what limits a step, and what is assumed. Reads
// configs/ in the working folder. A file that is not there ends the program.
#pragma once

namespace pagoda {

// Prints Figures 11, 12 and 14 to stdout. A minute of one core.
void print_piper_figures();

}  // namespace pagoda
