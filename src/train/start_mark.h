// STARTING is a file in a run's folder that exists while the run starts. It shows that a start was
// killed, and names the page files that this left: one path a line, relative to the folder (which
// may move) or absolute.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace pagoda {

inline constexpr char kStartMark[] = "STARTING";
// A mark of the same form, from when a resumed run moves to new stores until its next checkpoint:
// it names the new ones and the old ones.
inline constexpr char kMoveMark[] = "MOVING";
inline constexpr int64_t kMostMarkBytes = int64_t{1} << 20;

std::string start_mark_text(const std::string& folder, const std::vector<std::string>& page_files);

// The page files that a mark names; none when the text is incomplete or no mark.
std::vector<std::string> marked_page_files(const std::string& text);

// "pages-" and random digits, so that runs which share a directory of memory.disk have different
// page files, even after their folders were renamed.
std::string new_page_file_name();

}  // namespace pagoda
