#include "parallel/gpus/nccl_calls.h"

#include "device/library_call.h"

namespace pagoda {

// The library stays loaded. The second name is where the build found it.
Result<NcclCalls> load_nccl() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW);
  if (library == nullptr) library = ::dlopen(PAGODA_NCCL_LIBRARY, RTLD_NOW);
  NcclCalls calls;
  if (library != nullptr && find_call(library, "ncclGetUniqueId", calls.get_unique_id) &&
      find_call(library, "ncclCommInitRankConfig", calls.init_rank) &&
      find_call(library, "ncclCommGetAsyncError", calls.async_error) &&
      find_call(library, "ncclGroupStart", calls.group_start) &&
      find_call(library, "ncclGroupEnd", calls.group_end) &&
      find_call(library, "ncclSend", calls.send) && find_call(library, "ncclRecv", calls.receive) &&
      find_call(library, "ncclCommFinalize", calls.finalize) &&
      find_call(library, "ncclCommDestroy", calls.destroy) &&
      find_call(library, "ncclCommAbort", calls.abort) &&
      find_call(library, "ncclGetErrorString", calls.error_text)) {
    return calls;
  }
  const char* why = ::dlerror();
  return Status(Exit::kUnavailable,
                std::string("NCCL: ") + (why == nullptr ? "a call is missing" : why) +
                    "; install NCCL 2.14 or later, or let LD_LIBRARY_PATH lead to it");
}

}  // namespace pagoda
