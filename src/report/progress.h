// Shows a run to a person: one line every log_steps, and on a terminal a status line with a
// progress bar, redrawn at each step.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

namespace pagoda {

struct ProgressReport {
  int64_t step = 0;   // the step that just finished, from 1
  int64_t steps = 0;  // steps of the run
  double loss = 0;
  double aux_loss = 0;
  double grad_norm = 0;  // before clipping; NaN: not known in this clipping mode, left out
  double learning_rate = 0;
  int64_t tokens = 0;      // of this step, without padding
  double step_s = 0;       // seconds this step took
  double hit_rate = 0;     // page requests that found a copy on their device, 0..1
  double stall_share = 0;  // part of step_s in which device 0 did no work, 0..1
  // The least and the most that one of several devices worked, of step_s; NaN: there is one.
  double least_busy = NAN, most_busy = NAN;
  std::string main_stall;  // the longest of its causes (report/step_usage.h); "": not known
};

// "step 120/3000 | loss 1.8734 | aux 0.0012 | gnorm 0.82 | lr 9.4e-06 | 1.9k tok/s | hit 83% |
// stall 6% (fetch) | eta 3h12m", in one line.
std::string step_line(const ProgressReport& report, double eta_s);
// "[#####.....] 120/3000 loss 1.8734 1.9k tok/s eta 3h12m", never longer than `columns`.
std::string bar_line(const ProgressReport& report, double eta_s, int columns);

// Whether output is coloured: on a terminal, unless the environment has NO_COLOR (no-color.org).
bool wants_colour(bool terminal);

std::string duration_text(double seconds);  // "42s", "3m05s", "3h12m", "2d04h"
std::string count_text(double count);       // "950", "1.9k", "12M"

// One thread uses it.
class Progress {
 public:
  // base/log decides whether to be quiet and whether there is a terminal.
  explicit Progress(int64_t log_steps);
  ~Progress();  // removes the status line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void step(const ProgressReport& report);
  // Shows what the run does between steps, on the status line only: "evaluating 3/8".
  void activity(const std::string& text);
  double eta_s() const { return eta_s_; }

 private:
  int64_t log_steps_;
  bool colour_;
  double mean_step_s_ = 0;  // weighted towards recent steps
  int64_t steps_seen_ = 0;
  double eta_s_ = 0;
};

}  // namespace pagoda
