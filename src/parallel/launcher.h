// Tells which launcher started this process, and how many processes. It reads the environment that
// launchers of MPI programs leave, so that a run without one never touches MPI.
#pragma once

#include <string>

namespace pagoda {

struct Launch {
  std::string launcher;  // "Open MPI"; empty: none
  int processes = 1;     // 0: the launcher does not say
  // How long processes live that it was told to end, after its SIGTERM to them; below 0: unknown.
  double grace_s = -1;

  bool together() const { return processes != 1; }
};

// Knows Open MPI's mpirun, PMI (MPICH, Intel MPI, srun --mpi=pmi2), PMIx, and srun, which tells its
// number of tasks even without MPI.
Launch read_launch();

}  // namespace pagoda
