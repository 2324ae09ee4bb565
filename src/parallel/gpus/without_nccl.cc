#include "parallel/gpus/mixed_link.h"

namespace pagoda {

Result<std::unique_ptr<Link>> open_nccl(MpiCommunicator&, const std::vector<Device*>&,
                                        const std::vector<int>&, double) {
  return Status(Exit::kUnavailable, "this build has no NCCL");
}

}  // namespace pagoda
