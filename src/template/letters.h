// Changes of letters, lines and parts of texts, as Python's str has them.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace pagoda::jinja {

std::string upper(const std::string& text);
std::string lower(const std::string& text);
std::string capitalized(const std::string& text);   // the first letter upper, the others lower
std::string titled(const std::string& text);        // str.title(): of each run of letters
std::string titled_words(const std::string& text);  // the filter: behind blanks, "-", "(", "[", ...
// The lines of str.splitlines(), without what ends them, up to the first error.
Status for_each_line(std::string_view text, const std::function<Status(std::string_view)>& visit);
// Where `text` has `part`, at `from` or behind it; npos: nowhere. Takes linear time.
size_t find_part(std::string_view text, std::string_view part, size_t from = 0);
// str.strip(set): code points of `set` are removed from the sides.
std::string stripped_of(const std::string& text, std::string_view set, bool left, bool right);
// True where there is a letter and all are of one case.
bool all_upper(const std::string& text);
bool all_lower(const std::string& text);

}  // namespace pagoda::jinja
