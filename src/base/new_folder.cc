#include "base/new_folder.h"

#include <cstdio>
#include <utility>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"

namespace pagoda {

namespace {

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
