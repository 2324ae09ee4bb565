#include "cli/bench_options.h"

#include <filesystem>

#include "base/bytes.h"
#include "base/memory_size.h"

namespace pagoda {

Result<int64_t> parse_size(const char* flag, const std::string& text, int64_t lowest,
                           int64_t highest) {
  const Result<MemorySize> size = MemorySize::parse(text);
  const int64_t bytes = size.ok() ? size.value().resolve(0, 0) : 0;
  if (bytes >= lowest && bytes <= highest) return bytes;
  return Status(Exit::kUsage, strf("%s: \"%s\" must be a size from %s to %s", flag,
                                   printable(text).c_str(), format_bytes(lowest).c_str(),
                                   format_bytes(highest).c_str()));
}

Status check_folder(const std::string& directory) {
  std::error_code error;
  if (std::filesystem::is_directory(directory, error)) return Status();
  return Status(Exit::kNoInput, "--dir " + printable(directory) + ": no such folder");
}

Status check_range(const char* flag, int64_t value, int64_t highest) {
  if (value >= 1 && value <= highest) return Status();
  return Status(Exit::kUsage, strf("%s: must be from 1 to %lld", flag, (long long)highest));
}

}  // namespace pagoda
