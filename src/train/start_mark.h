// STARTING, a file that is in a run's folder from the beginning of its start to its success. It is
// the mark by which a start that was killed is known, and says what that left elsewhere: a line for
// each page file, in the folder (which may move) or absolute.
#pragma once

#include <string>
#include <vector>

namespace pagoda {

inline constexpr char kStartMark[] = "STARTING";

std::string start_mark_text(const std::string& folder, const std::vector<std::string>& page_files);

// Its lines; none when it is not whole, or something else.
std::vector<std::string> marked_page_files(const std::string& text);

// "pages-" and random digits. Runs that share a directory of memory.disk each have page files of
// their own there, also when their folders change names.
std::string new_page_file_name();

}  // namespace pagoda
