// The loop around a trainer: what is printed, measured, evaluated and saved when. With several
// ranks each has one, and all of them do the same; rank 0 alone prints and writes.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "commands/model_copies.h"
#include "config/run_config.h"
#include "parallel/rank_group.h"
#include "report/event_file.h"
#include "report/expert_watch.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "report/routing_recorder.h"
#include "report/run_output.h"
#include "report/step_trace.h"
#include "report/step_usage.h"
#include "train/trainer.h"

namespace pagoda {

// What rank 0 writes beside the trainer's files; other ranks have none.
struct TrainRecords {
  std::unique_ptr<MetricsFile> metrics;
  std::unique_ptr<RoutingRecorder> routing;  // nullptr: not recorded
  std::unique_ptr<EventFile> events;         // nullptr: none are written
};

// One run from its first printed line to its last.
class TrainRun {
 public:
  TrainRun(const RunConfig& config, const RunOutput& output, std::unique_ptr<Trainer> trainer,
           TrainRecords records, StepTrace* trace, RankGroup& ranks);

  Status run(bool resumed);

 private:
  Status run_steps(bool resumed);
  Status one_step();
  bool leads() const { return ranks_.rank() == 0; }
  void write(MetricsType type, const MetricsFields& fields);
  Result<int> signal();
  bool due(int64_t every) const;
  bool samples_due() const;
  Status between_steps();
  Status balance_homes();
  Status follow_speeds();
  Status stop(int signal);
  Status evaluate();
  Status sample();
  Status save(bool in_turn);  // in_turn: train.save_steps has come
  bool ends_early() const;
  Status copy_best();
  Status copy(const char* what, const Status& written);
  Status check_files() const;
  Status commit();
  void warn(const std::string& text);
  void warn_of_grace(double step_s, double save_s);
  double mfu_of(const StepUsage& usage) const;
  Result<std::string> usages_of_ranks(const StepUsage& usage);
  void report(const StepResult& result, const StepUsage& usage, const std::string& of_ranks);
  Status finish();

  const RunConfig& config_;
  const RunOutput& output_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<MetricsFile> metrics_;      // nullptr: another rank writes
  std::unique_ptr<RoutingRecorder> routing_;  // nullptr: not recorded
  std::unique_ptr<EventFile> events_;         // nullptr: none are written
  StepTrace& trace_;
  RankGroup& ranks_;
  Progress progress_;
  double peak_flops_per_s_;  // of this rank's devices
  int64_t first_row_ = 0;  // first row of the newest step
  int64_t failed_saves_ = 0;
  double written_ = 0;  // bytes that earlier sessions wrote to the store
  double step_s_ = 0;  // of the newest step
  bool warned_of_grace_ = false;
  EvalHistory evals_;
  ExpertWatch experts_;
  ModelCopies copies_;
  std::optional<double> last_loss_;  // loss of the last step of this process
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace pagoda
