// Small files and directories on a POSIX file system: the blocking half of Storage, for both real
// storages. Files are created 0600, directories 0700. Only make_directory() and sync_directory()
// follow a symbolic link that is the last name of a path. storage.h has the contracts.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace pagoda::posix {

Status write_file(const std::string& path, const std::string& content);
Status reserve_file(const std::string& path, int64_t bytes);
Result<std::string> read_file(const std::string& path, int64_t limit_bytes);
Status rename(const std::string& from, const std::string& to);
Status make_directory(const std::string& path);
Status sync_directory(const std::string& path);
Result<std::vector<std::string>> list_directory(const std::string& path);
Status remove_file(const std::string& path);
Status remove_directory(const std::string& path);
bool exists(const std::string& path);
bool is_directory(const std::string& path);

}  // namespace pagoda::posix
