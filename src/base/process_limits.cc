#include "base/process_limits.h"

#include <pthread.h>
#include <sys/resource.h>

#include <cerrno>

#include "base/bytes.h"
#include "base/log.h"

namespace pagoda {
namespace {

constexpr size_t kThreadStackBytes = 8 * kMiB;  // the usual limit of systems
// A command takes some ten KiB of the first thread's stack, and the environment is there too.
constexpr rlim_t kLeastStackBytes = 1 * kMiB;
// A run has some twenty open; a model's files, which are open together, come on top.
constexpr rlim_t kLeastFiles = 64;
// The program, its libraries and the stacks of its threads take addresses before any page does.
constexpr rlim_t kLeastAddressBytes = 256 * kMiB;

rlim_t limit_of(decltype(RLIMIT_NOFILE) what) {
  rlimit limit{};
  return getrlimit(what, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

}  // namespace

void set_thread_stacks() {
  pthread_attr_t attributes;
  if (pthread_attr_init(&attributes) != 0) return;
  const bool set = pthread_attr_setstacksize(&attributes, kThreadStackBytes) == 0 &&
                   pthread_setattr_default_np(&attributes) == 0;
  pthread_attr_destroy(&attributes);
  if (!set)
    log_warn("threads have the stack that RLIMIT_STACK says; their own size could not be set");
}

Status check_process_limits() {
  const rlim_t stack = limit_of(RLIMIT_STACK), files = limit_of(RLIMIT_NOFILE);
  const rlim_t addresses = limit_of(RLIMIT_AS);
  if (stack < kLeastStackBytes) {
    return Status(Exit::kHostMemory,
                  strf("the stack may take %s (RLIMIT_STACK), at least %s are needed; nothing was "
                       "written: raise it with ulimit -s %lld",
                       format_bytes(static_cast<int64_t>(stack)).c_str(),
                       format_bytes(static_cast<int64_t>(kLeastStackBytes)).c_str(),
                       (long long)(kLeastStackBytes / kKiB)));
  }
  if (addresses < kLeastAddressBytes) {
    return Status(Exit::kHostMemory,
                  strf("the program may take %s of addresses (RLIMIT_AS), at least %s are needed; "
                       "nothing was written: raise it with ulimit -v %lld",
                       format_bytes(static_cast<int64_t>(addresses)).c_str(),
                       format_bytes(static_cast<int64_t>(kLeastAddressBytes)).c_str(),
                       (long long)(kLeastAddressBytes / kKiB)));
  }
  if (files >= kLeastFiles) return Status();
  return Status(
      Exit::kUnavailable,
      strf("%lld files may be open (RLIMIT_NOFILE), at least %lld are needed; nothing was "
           "written: raise it with ulimit -n %lld",
           (long long)files, (long long)kLeastFiles, (long long)kLeastFiles));
}

std::string remedy_of_open(int error, const char* usually) {
  if (error != EMFILE) return usually;
  return strf("%lld may be open (RLIMIT_NOFILE): raise it with ulimit -n",
              (long long)limit_of(RLIMIT_NOFILE));
}

}  // namespace pagoda
