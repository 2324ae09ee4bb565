// pagoda --version [--json]: what this binary is made of.
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "cli/commands.h"
#include "config/computed_with.h"
#include "parallel/communicator.h"

namespace pagoda {
namespace {

#ifdef __clang__
constexpr const char* kCompiler = "clang " __clang_version__;
#else
constexpr const char* kCompiler = "gcc " __VERSION__;
#endif

// Ranks of one run tell each other of the same things in the same order.
constexpr int kProtocol = 1;

}  // namespace

std::string program_text() {
  return strf("pagoda %s (%s, oneDNN %s, protocol %d)", PAGODA_VERSION, kCompiler,
              *PAGODA_ONEDNN_VERSION != '\0' ? PAGODA_ONEDNN_VERSION : "off", kProtocol);
}

std::string version_text(bool json) {
  const std::string onednn = PAGODA_ONEDNN_VERSION, mpi = mpi_library();
  const std::string set = kernel_set_with({});
  if (!json) {
    return strf("pagoda %s (%s, oneDNN %s, liburing %s, %s; kernel set %s)", PAGODA_VERSION,
                kCompiler, onednn.empty() ? "off" : onednn.c_str(), PAGODA_URING_VERSION,
                mpi.empty() ? "MPI off" : mpi.c_str(), set.c_str());
  }
  nlohmann::ordered_json out;
  out["version"] = PAGODA_VERSION;
  out["compiler"] = kCompiler;
  out["onednn"] = !onednn.empty();
  out["onednn_version"] =
      onednn.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(onednn);
  out["liburing_version"] = PAGODA_URING_VERSION;
  out["mpi"] = mpi.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(mpi);
  out["kernel_set"] = set;
  return out.dump();
}

}  // namespace pagoda
