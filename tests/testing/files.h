// Whole files in and out, for tests. What cannot be read or written ends the test program.
#pragma once

#include <string>

namespace pagoda {

void put_file(const std::string& path, const std::string& content);
std::string get_file(const std::string& path);

}  // namespace pagoda
