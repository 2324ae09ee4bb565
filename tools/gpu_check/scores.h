// The lines that gpu_check's benchmarks print: a ratio beside its goal, PASS or FAIL; at the end
// how many reached theirs.
#pragma once

#include <string>

namespace pagoda::check {

class Scores {
 public:
  // Counts it and returns its line.
  std::string at_least(const std::string& what, double ratio, double goal,
                       const std::string& more = "");
  std::string at_most(const std::string& what, double ratio, double goal,
                      const std::string& more = "");
  std::string summary() const;  // "9 of 12 ratios reach their goals"

 private:
  std::string line(const std::string& what, double ratio, const char* sign, double goal,
                   bool reached, const std::string& more);
  int reached_ = 0, all_ = 0;
};

}  // namespace pagoda::check
