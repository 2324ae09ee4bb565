#include "offload/scratch_folder.h"

#include "base/log.h"
#include "offload/small_files.h"

namespace pagoda {
namespace {

constexpr char kPrefix[] = "pagoda-scratch-";
// Marks a folder that any process which can lock it may remove. The mark is the last file to go, so
// that the next process finishes an interrupted removal.
constexpr char kMark[] = "REMOVE-ME";

std::string name_of(const Directory& folder) {
  return folder.path().substr(folder.path().rfind('/') + 1);
}

Status remove_scratch(const Directory& parent, const Directory& folder) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, folder.names());
  for (const std::string& name : names) {
    if (name != kMark) RETURN_IF_ERROR(folder.remove_file(name));
  }
  RETURN_IF_ERROR(folder.remove_file(kMark));
  return parent.remove_empty(name_of(folder));
}

}  // namespace

ScratchFolder::~ScratchFolder() {
  if (!folder_) return;
  const Status removed = remove_scratch(*parent_, *folder_);
  if (!removed.ok()) log_warn(removed.message());
}

Status ScratchFolder::create() {
  RETURN_IF_ERROR(posix::make_directory(parent_path_));
  ASSIGN_OR_RETURN(parent_, Directory::open(parent_path_, Links::kFollow));
  remove_abandoned();
  ASSIGN_OR_RETURN(folder_, parent_->make_folder(kPrefix));
  // Without a lock nobody could tell whether its process lives.
  if (folder_->lock() != Directory::Lock::kTaken) return Status();
  return folder_->make_file(kMark, "");
}

void ScratchFolder::remove_abandoned() const {
  const auto names = parent_->names();
  if (!names.ok()) return;  // what is wrong with it shows when it is used
  for (const std::string& name : names.value()) {
    if (!name.starts_with(kPrefix)) continue;
    const auto folder = parent_->folder(name);
    if (!folder.ok() || !folder.value().is_own() || !folder.value().file(kMark).ok()) continue;
    // A folder's mark is made under its lock, so a folder that is being created is not removed.
    if (folder.value().lock() != Directory::Lock::kTaken) continue;
    const Status removed = remove_scratch(*parent_, folder.value());
    if (!removed.ok()) log_warn(removed.message());
  }
}

}  // namespace pagoda
