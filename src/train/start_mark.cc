#include "train/start_mark.h"

#include <sstream>

#include "base/file.h"
#include "base/random.h"

namespace pagoda {
namespace {

constexpr char kPageFiles[] = "pages-";

// new_page_file_name(), a dot and a number.
bool is_page_file(const std::string& name) {
  const size_t dot = new_page_file_name().size(), begin = sizeof(kPageFiles) - 1;
  const auto only = [&](size_t at, size_t count, const char* digits) {
    return name.substr(at, count).find_first_not_of(digits) == std::string::npos;
  };
  return name.size() > dot + 1 && name.starts_with(kPageFiles) && name[dot] == '.' &&
         only(begin, dot - begin, "0123456789abcdef") && only(dot + 1, name.size(), "0123456789");
}

}  // namespace

std::string start_mark_text(const std::string& folder, const std::vector<std::string>& page_files) {
  std::string text;
  for (const std::string& path : page_files) {
    const std::string inside = path_inside(path, folder);
    text += (inside.empty() ? absolute_path(path) : inside) + "\n";
  }
  return text;
}

std::vector<std::string> marked_page_files(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const size_t slash = line.rfind('/');
    const std::string name = slash == std::string::npos ? line : line.substr(slash + 1);
    if (in.eof() || !is_page_file(name)) return {};
    lines.push_back(line);
  }
  return lines;
}

std::string new_page_file_name() { return kPageFiles + random_digits(); }

}  // namespace pagoda
