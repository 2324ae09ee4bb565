#include "offload/scratch_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/log.h"

namespace pagoda {
namespace {

constexpr char kPrefix[] = "pagoda-scratch-";

// Holds the folder, or nothing if another process does (or the file system has no locks).
Descriptor locked(const std::string& path) {
  Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (folder.ok() && ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0) return folder;
  return Descriptor();
}

}  // namespace

ScratchFolder::ScratchFolder(const std::string& parent, Storage* storage)
    : storage_(storage),
      parent_(parent),
      path_(parent + "/" + kPrefix + std::to_string(getpid())) {}

ScratchFolder::~ScratchFolder() {
  const Status removed = storage_->remove_directory(path_);
  if (!removed.ok()) log_warn(removed.message());
}

Status ScratchFolder::create() {
  RETURN_IF_ERROR(storage_->make_directory(parent_));
  remove_abandoned();
  RETURN_IF_ERROR(storage_->make_directory(path_));
  lock_ = locked(path_);
  return Status();
}

void ScratchFolder::remove_abandoned() {
  const auto names = storage_->list_directory(parent_);
  if (!names.ok()) return;  // what is wrong with it shows when it is used
  for (const std::string& name : names.value()) {
    if (!name.starts_with(kPrefix)) continue;
    const std::string path = parent_ + "/" + name;
    const Descriptor lock = locked(path);
    const Status removed = lock.ok() ? storage_->remove_directory(path) : Status();
    if (!removed.ok()) log_warn(removed.message());
  }
}

}  // namespace pagoda
