// A trace that was written, read back.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace pagoda {

struct TraceFile {
  struct Span {
    std::string group, row, name;  // row: the lane, or "LANE (2)" where spans overlap
    int64_t begin_us = 0, end_us = 0;
    std::map<std::string, int64_t> args;
    std::string lane() const { return row.substr(0, row.find(" (")); }
  };
  struct Number {
    std::string group, name;
    int64_t at_us = 0, value = 0;
  };
  std::vector<Span> spans;
  std::vector<Number> numbers;
  int64_t cut_events = 0;

  // A file that is not a trace ends the test program.
  static TraceFile read(const std::string& path);

  std::vector<Span> of_lane(const std::string& lane) const;
  std::vector<Number> of_track(const std::string& group, const std::string& name) const;
};

}  // namespace pagoda
