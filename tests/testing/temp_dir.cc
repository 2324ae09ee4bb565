#include "tests/testing/temp_dir.h"

#include <cstdlib>
#include <filesystem>

#include "base/check.h"

namespace pagoda {

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "pagoda-test-XXXXXX").string();
  CHECK(mkdtemp(name.data()) != nullptr, "cannot make %s", name.c_str());
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace pagoda
