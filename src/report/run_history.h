// What a run measured, from its metrics.jsonl, as series over its steps.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"

namespace pagoda {

// Values at steps that ascend. NaN: it was not measured there.
struct Series {
  std::vector<int64_t> steps;
  std::vector<double> values;
  void add(int64_t step, double value) {
    steps.push_back(step);
    values.push_back(value);
  }
};

struct RunHistory {
  struct Note {
    int64_t step = 0;
    std::string text;
  };

  std::string name;   // the last part of the run's folder
  int64_t steps = 0;  // the run was to make so many
  std::string version;
  std::map<std::string, std::string> options;  // "train.steps": its value as JSON
  std::map<std::string, Series> of_steps;      // the numbers of a step, by name
  std::map<std::string, Series> stalls;        // shares of a step that device 0 waited, by cause
  Series held_out;
  // Layers with experts, in their order; [layer] series.
  std::vector<int64_t> layers;
  std::vector<Series> max_over_mean, entropy, dead;
  std::vector<Note> warnings;
};

// Reads RUN/metrics.jsonl. A line that is none of ours is passed over, as is all that a step has
// beyond numbers. A step that comes again, of a resumed run, replaces what came before it.
// kNoInput, kBadData if the file is larger than a run's or has no step.
Result<RunHistory> read_history(const std::string& run);

}  // namespace pagoda
