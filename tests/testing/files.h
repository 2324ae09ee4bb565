// Whole files in and out, for tests. What cannot be read or written ends the test program.
#pragma once

#include <string>
#include <vector>

namespace pagoda {

void put_file(const std::string& path, const std::string& content);
std::string get_file(const std::string& path);

// The names in a folder, sorted.
std::vector<std::string> files_in(const std::string& folder);

}  // namespace pagoda
