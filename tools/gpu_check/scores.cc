#include "tools/gpu_check/scores.h"

#include "base/check.h"

namespace pagoda::check {

std::string Scores::line(const std::string& what, double ratio, const char* sign, double goal,
                         bool reached, const std::string& more) {
  ++all_;
  reached_ += reached ? 1 : 0;
  return strf("%s  %-44s %6.3f  goal %s %.2f  %s", reached ? "PASS" : "FAIL", what.c_str(), ratio,
              sign, goal, more.c_str());
}

// A ratio that is no number reaches nothing.
std::string Scores::at_least(const std::string& what, double ratio, double goal,
                             const std::string& more) {
  return line(what, ratio, ">=", goal, ratio >= goal, more);
}

std::string Scores::at_most(const std::string& what, double ratio, double goal,
                            const std::string& more) {
  return line(what, ratio, "<=", goal, ratio <= goal, more);
}

std::string Scores::summary() const {
  return strf("%d of %d ratios reach their goals", reached_, all_);
}

}  // namespace pagoda::check
