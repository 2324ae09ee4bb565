#include "parallel/launcher.h"

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace pagoda {
namespace {

// The count in the environment; 0: none.
int count_of(const char* name) {
  const char* text = std::getenv(name);
  int count = 0;
  if (text != nullptr) std::from_chars(text, text + std::strlen(text), count);
  return count > 0 ? count : 0;
}

}  // namespace

Launch read_launch() {
  struct Known {
    const char* name;
    const char* launcher;
  };
  // mpirun within a job of Slurm: the nearer one counts.
  for (const Known& known : {Known{"OMPI_COMM_WORLD_SIZE", "Open MPI"}, Known{"PMI_SIZE", "PMI"},
                             Known{"SLURM_STEP_NUM_TASKS", "srun"}}) {
    if (const int processes = count_of(known.name); processes > 0) {
      return {known.launcher, processes};
    }
  }
  if (std::getenv("PMIX_RANK") != nullptr) return {"PMIx", 0};
  return {};
}

}  // namespace pagoda
