#include "tests/testing/files.h"

#include <fstream>
#include <iterator>

#include "base/check.h"

namespace pagoda {

void put_file(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  CHECK(file.good(), "cannot write %s", path.c_str());
}

std::string get_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  CHECK(file.good(), "cannot read %s", path.c_str());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace pagoda
