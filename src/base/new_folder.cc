#include "base/new_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "base/output_file.h"

namespace pagoda {

namespace {

// Each new name is made durable: what is saved inside must not vanish with its folder. False leaves
// the reason in errno.
Result<bool> make_directory(const std::string& path, std::vector<std::string>* created) {
  if (mkdir(path.c_str(), 0700) != 0) return false;
  if (created != nullptr) created->push_back(path);
  RETURN_IF_ERROR(sync_directory_of(path));
  return true;
}

Status check_room(const std::string& path, int64_t needed_bytes) {
  const int64_t free_bytes = free_disk_bytes(path);
  if (free_bytes < 0 || needed_bytes <= free_bytes) return Status();  // writing will tell
  return Status(Exit::kCannotCreate,
                strf("%s: needs %s, the disk has %s free; nothing was written, make room or name "
                     "another disk",
                     printable(path).c_str(), format_bytes_up(needed_bytes).c_str(),
                     format_bytes(free_bytes).c_str()));
}

}  // namespace

Status create_empty_directory(const std::string& path, std::vector<std::string>* created) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> parents;
  for (fs::path at = fs::path(path).parent_path(); !at.empty() && !fs::exists(at, error);
       at = at.parent_path()) {
    parents.push_back(at.string());
  }
  for (size_t i = parents.size(); i-- > 0;) {
    RETURN_IF_ERROR(make_directory(parents[i], created).status());
  }
  ASSIGN_OR_RETURN(const bool made, make_directory(path, created));
  if (made) return Status();
  if (errno != EEXIST) {
    return Status(Exit::kCannotCreate, strf("%s: cannot create the directory: %s",
                                            printable(path).c_str(), std::strerror(errno)));
  }
  const bool empty = fs::is_empty(path, error);
  if (error) {
    return Status(Exit::kCannotCreate,
                  strf("%s: cannot be used: %s", printable(path).c_str(), error.message().c_str()));
  }
  if (!empty || !fs::is_directory(path, error)) {
    return Status(Exit::kCannotCreate,
                  strf("%s: already exists and is not an empty directory; nothing was changed, "
                       "name another one",
                       printable(path).c_str()));
  }
  return Status();
}

Result<NewFolder> NewFolder::create(const std::string& path, int64_t needed_bytes) {
  NewFolder folder(path);
  RETURN_IF_ERROR(create_empty_directory(path, &folder.created_));
  RETURN_IF_ERROR(check_room(path, needed_bytes));
  return folder;
}

NewFolder::NewFolder(NewFolder&& other) noexcept
    : path_(std::move(other.path_)), created_(std::exchange(other.created_, {})) {}

NewFolder::~NewFolder() {
  // remove(3) takes a folder only when nothing is left in it.
  for (size_t i = created_.size(); i-- > 0;) (void)std::remove(created_[i].c_str());
}

std::string NewFolder::file(const std::string& name) {
  created_.push_back(path_ + "/" + name);
  return created_.back();
}

void NewFolder::keep() { created_.clear(); }

}  // namespace pagoda
