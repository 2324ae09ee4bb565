// The calls of NCCL that a link makes, found in its library at run time, so that the program starts
// where there is none. Tests make them up.
#pragma once

#include <nccl.h>

#include "base/status.h"

namespace pagoda {

struct NcclCalls {
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommGetAsyncError) async_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  decltype(&ncclCommFinalize) finalize = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGetErrorString) error_text = nullptr;
};

// kUnavailable says what is missing.
Result<NcclCalls> load_nccl();

}  // namespace pagoda
