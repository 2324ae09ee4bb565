// A run as the version before extents had numbers left it: for tests that old runs go on.
#pragma once

#include <string>

namespace pagoda {

// Turns a run with one page file and one checkpoint, in the folder `checkpoint`, into one of
// manifest format 4 and page format 1, byte by byte. The pages keep their content; every other one
// is in slot 1.
void make_old_run(const std::string& checkpoint, const std::string& page_file);

}  // namespace pagoda
