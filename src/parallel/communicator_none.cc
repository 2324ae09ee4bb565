// Built without MPI.
#include "base/check.h"
#include "parallel/launcher.h"
#include "parallel/mpi_communicator.h"

namespace pagoda {

std::string mpi_library() { return ""; }

Result<std::unique_ptr<MpiCommunicator>> join_processes(double) {
  const Launch launch = read_launch();
  return Status(Exit::kUnavailable,
                strf("%s started several processes, but this program was built without MPI; "
                     "install its development files (Debian: libopenmpi-dev) and build it again",
                     launch.launcher.c_str()));
}

}  // namespace pagoda
