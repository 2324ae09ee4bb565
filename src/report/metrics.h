// metrics.jsonl holds what a run measured, one JSON object a line. Lines are written out at once,
// so that a crash loses none, and a resumed run continues the same file. Every object has "type";
// those about a moment of the run have "step". A number that is not finite is null.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "report/line_file.h"

namespace pagoda {

// The deepest nesting of objects and arrays that is read. No line of ours has more, and a hostile
// file must not take memory by it.
inline constexpr int kDeepestMetrics = 16;

enum class MetricsType : uint8_t { kRun, kStep, kEval, kSample, kCheckpoint, kMove, kDeal, kWarn };

// An object, already written as JSON.
struct MetricsObject {
  std::string json;
};
using MetricsValue = std::variant<int64_t, double, bool, std::string, std::vector<int64_t>,
                                  std::vector<double>, MetricsObject>;
using MetricsFields = std::vector<std::pair<std::string, MetricsValue>>;

MetricsObject metrics_object(const MetricsFields& fields);

// {"type":"step","step":3,"loss":2.5}, fields in the given order, reals with all their digits.
std::string metrics_line(MetricsType type, const MetricsFields& fields);

// A run's evaluations so far, over all its resumptions.
struct EvalHistory {
  int64_t first_step = -1, last_step = -1;  // -1: none
  double first_loss = 0, last_loss = 0;     // NaN where it was not finite
  int64_t best_step = -1;  // of the lowest finite loss, the first where there are several
  double best_loss = 0;
  int64_t since_best = 0;  // evaluations behind it
  void add(int64_t step, double loss);
  bool last_is_best() const { return last_step >= 0 && best_step == last_step; }
};

// One thread uses it.
class MetricsFile {
 public:
  // Opens `path` for appending, creating it. With `keep_step` >= 0 (a resumed run) everything from
  // the first line of a later step on is removed, and so is an unfinished last line; with -1 the
  // file starts empty. kCannotCreate when it cannot be opened or cut.
  static Result<std::unique_ptr<MetricsFile>> open(const std::string& path, int64_t keep_step);
  //   metrics->write(MetricsType::kStep, {{"step", step}, {"loss", loss}});
  // The evaluations in the lines that open() kept.
  const EvalHistory& evals() const { return evals_; }
  int64_t last_sample_step() const { return last_sample_step_; }  // -1: none
  // What the last step and the last save in them took; 0: there was none.
  double last_step_s() const { return last_step_s_; }
  double last_save_s() const { return last_save_s_; }

  // kIoError when the file was removed or replaced.
  Status check() const { return lines_->check(); }
  // A failed write warns once and loses that line only; it never stops a run.
  void write(MetricsType type, const MetricsFields& fields);

 private:
  explicit MetricsFile(std::unique_ptr<LineFile> lines) : lines_(std::move(lines)) {}
  bool note(std::string_view line, int64_t last);

  std::unique_ptr<LineFile> lines_;
  EvalHistory evals_;
  int64_t last_sample_step_ = -1;
  double last_step_s_ = 0, last_save_s_ = 0;
};

}  // namespace pagoda
