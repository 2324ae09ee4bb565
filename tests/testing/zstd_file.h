// A zstd-compressed file, whole, for tests. The frame says its size.
#pragma once

#include <string>

namespace pagoda {

std::string get_zstd_file(const std::string& path);

}  // namespace pagoda
