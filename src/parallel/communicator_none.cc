// Built without MPI.
#include "base/check.h"
#include "parallel/communicator.h"
#include "parallel/launcher.h"

namespace pagoda {

std::string mpi_library() { return ""; }

Result<std::unique_ptr<Communicator>> join_processes() {
  const Launch launch = read_launch();
  return Status(Exit::kUnavailable,
                strf("%s started several processes, but this program was built without MPI; "
                     "install its development files (Debian: libopenmpi-dev) and build it again",
                     launch.launcher.c_str()));
}

}  // namespace pagoda
