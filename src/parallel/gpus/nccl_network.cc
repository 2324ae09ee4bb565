#include "parallel/gpus/mixed_link.h"
#include "parallel/gpus/nccl_calls.h"
#include "parallel/gpus/nccl_link.h"

namespace pagoda {

Result<std::unique_ptr<Link>> open_nccl(MpiCommunicator& all, const std::vector<Device*>& gpus,
                                        const std::vector<int>& rank_of, double deadline_s) {
  const Result<NcclCalls> calls = load_nccl();
  RETURN_IF_ERROR(agree(all, calls.status()));
  ASSIGN_OR_RETURN(std::unique_ptr<NcclLink> link,
                   NcclLink::create(all, calls.value(), gpus, rank_of, deadline_s));
  return std::unique_ptr<Link>(std::move(link));
}

}  // namespace pagoda
