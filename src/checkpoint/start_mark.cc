#include "checkpoint/start_mark.h"

#include <algorithm>
#include <sstream>

#include "base/file.h"
#include "base/log.h"
#include "base/random.h"

namespace pagoda {
namespace {

constexpr char kPageFiles[] = "pages-";
const std::string kOn = "on ";

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

std::string start_mark_text(const std::string& folder, const std::vector<std::string>& page_files,
                            const std::string& host) {
  std::string text = host.empty() ? "" : kOn + host + "\n";
  for (const std::string& path : page_files) {
    const std::string inside = path_inside(path, folder);
    text += (inside.empty() ? absolute_path(path) : inside) + "\n";
  }
  return text;
}

std::vector<MarkedFile> marked_page_files(const std::string& text) {
  std::vector<MarkedFile> files;
  std::istringstream in(text);
  std::string host;
  for (std::string line; std::getline(in, line);) {
    const size_t slash = line.rfind('/');
    const std::string name = slash == std::string::npos ? line : line.substr(slash + 1);
    const bool is_host = line.starts_with(kOn) && slash == std::string::npos;
    if (in.eof() || (!is_host && !is_page_file(name))) return {};
    if (is_host) {
      host = line.substr(kOn.size());
    } else {
      files.push_back({line, host});
    }
  }
  return files;
}

void warn_of_files_elsewhere(const std::vector<MarkedFile>& files,
                             const std::vector<std::string>& hosts) {
  for (const MarkedFile& file : files) {
    if (file.host.empty() || std::ranges::count(hosts, file.host) > 0) continue;
    log_warn(
        strf("%s was left by an earlier start on %s, where this run has no process: remove it "
             "there if it is there",
             printable(file.path).c_str(), printable(file.host).c_str()));
  }
}

std::string new_page_file_name() { return kPageFiles + random_digits(); }

}  // namespace pagoda
