#include "parallel/launcher.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

#include "base/number_text.h"

namespace pagoda {
namespace {

constexpr const char* kOpenMpi = "Open MPI";

// The count in the environment; 0: none.
int count_of(const char* name) {
  const char* text = std::getenv(name);
  int count = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), count);
  return count > 0 ? count : 0;
}

// Open MPI's own setting, of its versions 4 and 5, which it passes on to processes.
double open_mpi_grace_s() {
  for (const char* name : {"OMPI_MCA_odls_base_sigkill_timeout",
                           "PRTE_MCA_odls_base_sigkill_timeout"}) {
    int64_t seconds = 0;
    const char* text = std::getenv(name);
    if (text != nullptr && parse_int64(text, seconds)) return static_cast<double>(seconds);
  }
  return 1;
}

}  // namespace

Launch read_launch() {
  struct Known {
    const char* name;
    const char* launcher;
  };
  // mpirun within a job of Slurm: the nearer one counts.
  for (const Known& known : {Known{"OMPI_COMM_WORLD_SIZE", kOpenMpi}, Known{"PMI_SIZE", "PMI"},
                             Known{"SLURM_STEP_NUM_TASKS", "srun"}}) {
    if (const int processes = count_of(known.name); processes > 0) {
      const bool open_mpi = known.launcher == kOpenMpi;
      return {known.launcher, processes, open_mpi ? open_mpi_grace_s() : -1};
    }
  }
  if (std::getenv("PMIX_RANK") != nullptr) return {"PMIx", 0, -1};
  return {};
}

}  // namespace pagoda
