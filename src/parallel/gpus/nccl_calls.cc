#include "parallel/gpus/nccl_calls.h"

#include <dlfcn.h>

namespace pagoda {
namespace {

template <typename Call>
bool find(void* library, const char* name, Call& call) {
  call = reinterpret_cast<Call>(::dlsym(library, name));
  return call != nullptr;
}

}  // namespace

// The library stays loaded. The second name is where the build found it.
Result<NcclCalls> load_nccl() {
  void* library = ::dlopen("libnccl.so.2", RTLD_NOW);
  if (library == nullptr) library = ::dlopen(PAGODA_NCCL_LIBRARY, RTLD_NOW);
  NcclCalls calls;
  if (library != nullptr && find(library, "ncclGetUniqueId", calls.get_unique_id) &&
      find(library, "ncclCommInitRankConfig", calls.init_rank) &&
      find(library, "ncclCommGetAsyncError", calls.async_error) &&
      find(library, "ncclGroupStart", calls.group_start) &&
      find(library, "ncclGroupEnd", calls.group_end) && find(library, "ncclSend", calls.send) &&
      find(library, "ncclRecv", calls.receive) &&
      find(library, "ncclCommFinalize", calls.finalize) &&
      find(library, "ncclCommDestroy", calls.destroy) &&
      find(library, "ncclCommAbort", calls.abort) &&
      find(library, "ncclGetErrorString", calls.error_text)) {
    return calls;
  }
  const char* why = ::dlerror();
  return Status(Exit::kUnavailable,
                std::string("NCCL: ") + (why == nullptr ? "a call is missing" : why) +
                    "; install NCCL 2.14 or later, or let LD_LIBRARY_PATH lead to it");
}

}  // namespace pagoda
