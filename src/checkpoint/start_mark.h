// STARTING is a file in a run's folder that exists while the run starts. It shows that a start was
// killed, and names the page files that this left: one path a line, relative to the folder (which
// may move) or absolute. With several ranks a line "on HOST" is before those of a host.
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

struct MarkedFile {
  std::string path;
  std::string host;  // empty: that of the run's folder
};

// `host`: that of the files, if the run has several ranks.
std::string start_mark_text(const std::string& folder, const std::vector<std::string>& page_files,
                            const std::string& host = "");

// The page files that a mark names; none when the text is incomplete or no mark.
std::vector<MarkedFile> marked_page_files(const std::string& text);

// Warns of files that none of the hosts can remove.
void warn_of_files_elsewhere(const std::vector<MarkedFile>& files,
                             const std::vector<std::string>& hosts);

// "pages-" and random digits, so that runs which share a directory of memory.disk have different
// page files, even after their folders were renamed.
std::string new_page_file_name();

}  // namespace pagoda
