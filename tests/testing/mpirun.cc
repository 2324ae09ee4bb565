#include "tests/testing/mpirun.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "parallel/communicator.h"
#include "tests/testing/temp_dir.h"

namespace pagoda {

bool has_mpirun() { return !mpi_library().empty() && std::filesystem::exists(PAGODA_MPIRUN); }

void set_mpirun_variables() {
  // Open MPI's own variables, 4 and 5.
  for (const char* name : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                           "OMPI_MCA_rmaps_base_oversubscribe", "PRTE_ALLOW_RUN_AS_ROOT",
                           "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"}) {
    ::setenv(name, "1", 1);
  }
  ::setenv("OMPI_MCA_hwloc_base_binding_policy", "none", 1);
  ::setenv("OMPI_MCA_pml", "ob1", 1);
  // Processes of one machine need no network. Open MPI 4.1.4's part for libfabric, ofi, sleeps for
  // a second at the end of each process.
  ::setenv("OMPI_MCA_btl", "^openib,usnic,tcp,ofi", 1);
  ::setenv("OMPI_MCA_odls_base_sigkill_timeout", "0", 1);
  // One folder of all launchers of a user is made by one while another removes it. Tests start some
  // as another user.
  static const TempDir sessions;
  std::filesystem::permissions(sessions.path(), std::filesystem::perms::all);
  ::setenv("OMPI_MCA_orte_tmpdir_base", sessions.path().c_str(), 1);
  ::setenv("PRTE_MCA_hwloc_default_binding_policy", "none", 1);
  ::setenv("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe", 1);
}

std::vector<std::string> mpirun_words(int processes) {
  return {PAGODA_MPIRUN, "-n", std::to_string(processes)};
}

std::vector<int> rank_processes(int launcher) {
  std::map<int, int> by_rank;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream stat(entry.path() / "stat");
    std::string text;
    std::getline(stat, text);  // empty where the process goes between opening and reading
    const size_t end = text.rfind(") ");  // behind it: state, parent
    if (end == std::string::npos || std::atoi(text.c_str() + end + 4) != launcher) continue;
    std::ifstream environment(entry.path() / "environ");
    for (std::string word; std::getline(environment, word, '\0');) {
      const std::string key = "OMPI_COMM_WORLD_RANK=";
      if (word.starts_with(key)) by_rank[std::atoi(word.c_str() + key.size())] = std::stoi(name);
    }
  }
  std::vector<int> ids;
  for (const auto& [rank, id] : by_rank) ids.push_back(id);
  return ids;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace pagoda
