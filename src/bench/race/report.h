// The results of `pagoda bench`: one Figure a row, and facts on what was measured. The same report
// is a table for people and a JSON object for programs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "bench/race/timing.h"

namespace pagoda {

// One rate against its roof. Both were measured in every round, one behind the other; value and
// roof are medians over rounds, ratio is the median of the rounds' own ratios (so it need not be
// value / roof).
struct Figure {
  std::string name;        // "read", "upload", "triad"
  std::string path;        // what moved the bytes: "page file", "storage", "stream"
  int64_t page_bytes = 0;  // 0: does not apply
  int64_t elements = 0;    // of a record; 0: does not apply
  int threads = 0;         // 0: does not apply
  std::string unit = "GB/s";
  double value = 0;
  double roof = 0;
  double ratio = 0;
  double ratio_min = 0, ratio_p10 = 0, ratio_max = 0;
  double cpu_s_per_unit = 0;  // seconds of CPU, all threads: for a GB of "GB/s", a GFLOP, a token
  double roof_cpu_s_per_unit = 0;
  int rounds = 0;
  int disturbed_rounds = 0;  // disturbed rounds; see PairedRounds
};

// The rounds of a race, one after the other. `name`, `path`, `page_bytes`, `elements`, `threads`
// and `unit` are taken from `what`. If `threads` is given both timings keep them busy, and a round
// in which either had less than kUndisturbed of its threads' time is disturbed: other programs had
// the cores. Such rounds count only if all are disturbed.
class PairedRounds {
 public:
  static constexpr double kUndisturbed = 0.9;

  explicit PairedRounds(Figure what) : what_(std::move(what)) {}
  void add(const Timing& ours, const Timing& roof);
  // REQUIRES: at least one round.
  Figure figure() const;

 private:
  struct Round {
    Timing ours, roof;
  };
  bool disturbed(const Round& round) const;

  Figure what_;
  std::vector<Round> rounds_;
};

struct BenchReport {
  std::string bench;                                       // "disk"
  std::vector<std::pair<std::string, std::string>> facts;  // key, text: "storage", "io_uring, ..."
  std::vector<Figure> figures;

  std::string text() const;  // ends in a newline
  // {"bench": ..., the facts, "figures": [{"name", "path", "page_bytes", "elements", "threads",
  // "unit", "value", "roof", "ratio", "ratio_min", "ratio_p10", "ratio_max", "cpu_s_per_unit",
  // "roof_cpu_s_per_unit", "rounds", "disturbed_rounds"}]}; page_bytes, elements or threads only
  // where they apply.
  std::string json() const;
};

}  // namespace pagoda
