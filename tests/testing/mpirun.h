// Starts programs under mpirun on this machine, more processes than cores.
#pragma once

#include <string>
#include <vector>

namespace pagoda {

// False if this build has no MPI, or this machine no mpirun.
bool has_mpirun();
// Sets the launcher's variables for this process and its children: any user, nothing bound, shared
// memory only, no second of grace for processes that are ended, and a folder for the launchers'
// files that this process has to itself and removes at its end. One thread.
void set_mpirun_variables();
// "mpirun -n PROCESSES".
std::vector<std::string> mpirun_words(int processes);
// [rank] the process ids of a launcher's children that are ranks.
std::vector<int> rank_processes(int launcher);

std::vector<std::string> lines_of(const std::string& text);

}  // namespace pagoda
