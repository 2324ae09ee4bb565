// Files and folders that a program holds open while others may remove, rename or replace them.
#pragma once

#include <string>

#include "base/status.h"

namespace pagoda {

// Ok while `path` leads to the file or folder open as `fd`. kIoError when it leads to nothing, to
// something else or cannot be looked up: then data written to `fd` may be lost when it is closed.
Status check_held(int fd, const std::string& path);

}  // namespace pagoda
