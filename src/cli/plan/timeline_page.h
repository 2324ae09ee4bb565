// Writes a timeline as a page without other files: lanes of work over time, and the memory in use.
// A column of pixels has the colour of the kind of work that its lane does most there, and is
// lighter the more the lane is idle: the ink of a lane is the time that it is busy.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace pagoda {

struct TimelinePage {
  static constexpr int kColumns = 1200;  // pixels that end_s is wide

  struct Piece {
    double start_s = 0, end_s = 0;
    const char* kind = "other";  // a class of the page's style: its colour
    int64_t number = -1;         // index into its lane's numbers_of; -1: none
  };
  struct Lane {
    std::string name;
    std::string numbers_of;     // "layer"
    std::vector<Piece> pieces;  // by start, one after the other
  };
  struct Chart {
    std::string name;
    int64_t budget_bytes = 0;
    std::vector<std::pair<double, int64_t>> held;  // from a time on, bytes; ascending
  };

  std::string title, about, text;  // heading; a sentence on the drawing; plain text below it
  std::vector<Lane> lanes;
  std::vector<Chart> charts;
  double end_s = 0;
  double mark_s = -1;  // time of a broken line; below 0: none

  std::string html() const;
};

}  // namespace pagoda
