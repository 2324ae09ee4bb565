// Prints Piper's figures as the planner has them: steps simulated by the tasks that train executes,
// each with the paper's numbers where it gives any, what limits it, and what is assumed. Reads
// configs/ in the working folder. A file that is not there ends the program.
#pragma once

#include <string>

#include "plan/machine/machine_sheet.h"
#include "preview/model_sizes.h"

namespace pagoda {

// Prints Figures 10 to 14 to stdout. It takes one core long: Figures 13 and 14 search layouts of up
// to 64 devices for each of several divisions of clusters.
void print_piper_figures();
// Prints Figure 8, Tables III and IV.
void print_piper_tables();

// A layer of a published model with experts, between an embedding and a head of 8 words.
ModelSizes one_layer(const std::string& name);
// 8 GPUs of 80 GB each, 45 GB/s of network for each GPU.
ClusterSheet nodes_of_eight(int64_t nodes);

}  // namespace pagoda
