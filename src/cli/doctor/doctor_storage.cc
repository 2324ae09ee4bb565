#include "cli/doctor/doctor_report.h"
#include "offload/storage.h"

namespace pagoda {
namespace {

StorageProbe probe(IoKind kind, const std::string& directory) {
  Result<std::unique_ptr<Storage>> storage = open_storage(kind, directory);
  if (!storage.ok()) return {false, storage.status().message()};
  return {true, storage.value()->describe()};
}

}  // namespace

StorageProbe probe_uring(const std::string& directory) { return probe(IoKind::kUring, directory); }

StorageProbe probe_threads(const std::string& directory) {
  return probe(IoKind::kThreads, directory);
}

}  // namespace pagoda
