// `pagoda train`: the loop around a Trainer: what is printed, measured, evaluated and saved when.
#include <algorithm>
#include <chrono>
#include <cmath>

#include "base/file.h"
#include "base/log.h"
#include "train/commands.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/report.h"
#include "train/run_output.h"
#include "train/stop_signal.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

constexpr int64_t kMostFailedSaves = 3;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One run from its first printed line to its last.
class TrainRun {
 public:
  TrainRun(const RunConfig& config, std::unique_ptr<Trainer> trainer,
           std::unique_ptr<MetricsFile> metrics)
      : config_(config),
        trainer_(std::move(trainer)),
        metrics_(std::move(metrics)),
        progress_(config.train.log_steps) {}

  Status run();

 private:
  Status one_step();
  Status between_steps();
  Status stop(int signal);
  Status evaluate();
  Status save();
  void report(const StepResult& result, double step_s);
  Status finish();

  const RunConfig& config_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<MetricsFile> metrics_;
  Progress progress_;
  Pager::Counters counters_before_;
  int64_t stalled_us_before_ = 0;
  int64_t first_row_ = 0;  // of the newest step
  int64_t failed_saves_ = 0;
  double first_eval_ = NAN, last_eval_ = NAN, last_loss_ = NAN;
};

Status TrainRun::run() {
  metrics_->write(MetricsType::kRun, {{"step", trainer_->steps_done()},
                                      {"steps", config_.train.steps},
                                      {"version", std::string(PAGODA_VERSION)}});
  if (trainer_->steps_done() == 0) RETURN_IF_ERROR(evaluate());
  if (const int signal = stop_requested(); signal != 0) return stop(signal);
  while (trainer_->steps_done() < config_.train.steps) {
    RETURN_IF_ERROR(one_step());
    RETURN_IF_ERROR(between_steps());
  }
  return finish();
}

Status TrainRun::one_step() {
  first_row_ = trainer_->rows_consumed();
  counters_before_ = trainer_->session().pager().counters();
  stalled_us_before_ = trainer_->session().executor().stalled_us();
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const StepResult result, trainer_->step());
  report(result, seconds_since(start));
  last_loss_ = result.loss;
  if (result.skipped) {
    log_warn(strf("step %lld: non-finite gradient; the step was skipped, nothing was updated",
                  (long long)trainer_->steps_done()));
  }
  return Status();
}

void TrainRun::report(const StepResult& result, double step_s) {
  const Pager::Counters& now = trainer_->session().pager().counters();
  const Pager::Counters& before = counters_before_;
  const int64_t stalled_us =
      trainer_->session().executor().stalled_us() - stalled_us_before_;
  StepReport r;
  r.step = trainer_->steps_done();
  r.steps = config_.train.steps;
  r.loss = result.loss;
  r.aux_loss = result.aux_loss;
  r.grad_norm = result.grad_norm;
  r.learning_rate = result.learning_rate;
  r.tokens = result.tokens;
  r.step_s = step_s;
  r.hit_rate = static_cast<double>(now.hits - before.hits) /
               static_cast<double>(std::max<int64_t>(1, now.uses - before.uses));
  r.stall_share = std::min(1.0, static_cast<double>(stalled_us) / 1e6 / step_s);
  progress_.step(r);
  metrics_->write(MetricsType::kStep,
                  {{"step", r.step},
                   {"loss", r.loss},
                   {"aux_loss", r.aux_loss},
                   {"grad_norm", r.grad_norm},
                   {"learning_rate", r.learning_rate},
                   {"skipped", result.skipped},
                   {"tokens", r.tokens},
                   {"loss_weight", result.total_weight},
                   {"first_row", first_row_},
                   {"rows", trainer_->rows_consumed() - first_row_},
                   {"step_s", step_s},
                   {"tokens_per_s", static_cast<double>(r.tokens) / step_s},
                   {"hit_rate", r.hit_rate},
                   {"stall_share", r.stall_share},
                   {"fetch_bytes", now.fetch_bytes - before.fetch_bytes},
                   {"write_back_bytes", now.write_back_bytes - before.write_back_bytes},
                   {"upload_bytes", now.upload_bytes - before.upload_bytes},
                   {"download_bytes", now.download_bytes - before.download_bytes}});
}

Status TrainRun::stop(int signal) {
  const int64_t step = trainer_->steps_done();
  if (config_.train.save_steps == 0) {
    return Status(Exit::kStopped, strf("stopped by signal %d after step %lld; nothing was saved "
                                       "(train.save_steps is 0)", signal, (long long)step));
  }
  log_info(strf("signal %d: saving step %lld", signal, (long long)step));
  const Status saved = trainer_->save();
  if (saved.code() == Exit::kDiverged) {
    return Status(Exit::kStopped,
                  strf("stopped by signal %d after step %lld, which was skipped and "
                       "is not saved; continue from step %lld with --resume",
                       signal, (long long)step, (long long)trainer_->saved_step()));
  }
  RETURN_IF_ERROR(saved);
  return Status(Exit::kStopped, strf("stopped by signal %d after step %lld, which is saved; "
                                     "continue with --resume", signal, (long long)step));
}

Status TrainRun::between_steps() {
  const int64_t step = trainer_->steps_done();
  const bool last = step == config_.train.steps;
  if (const int signal = stop_requested(); signal != 0) return stop(signal);
  const auto due = [&](int64_t every) { return every > 0 && (last || step % every == 0); };
  if (due(config_.train.eval_steps)) RETURN_IF_ERROR(evaluate());
  if (const int signal = stop_requested(); signal != 0) return stop(signal);
  if (due(config_.train.save_steps)) RETURN_IF_ERROR(save());
  return Status();
}

Status TrainRun::evaluate() {
  if (!trainer_->can_evaluate() || config_.train.eval_steps == 0) return Status();
  progress_.activity("evaluating");
  const auto evaluated = trainer_->evaluate();
  if (!evaluated.ok() && evaluated.status().code() == Exit::kStopped) return Status();
  RETURN_IF_ERROR(evaluated.status());
  const double loss = evaluated.value();
  if (std::isnan(first_eval_)) first_eval_ = loss;
  last_eval_ = loss;
  log_info(strf("eval at step %lld: loss %.4f", (long long)trainer_->steps_done(), loss));
  metrics_->write(MetricsType::kEval, {{"step", trainer_->steps_done()}, {"loss", loss}});
  return Status();
}

// A failed write of the pages or their sync ends the run; a manifest that could not be written (no
// space) leaves the checkpoint before it, and is tried again at the next turn. So is one that must
// not be, unless the run ends with it.
Status TrainRun::save() {
  progress_.activity("saving");
  const auto start = std::chrono::steady_clock::now();
  const Status saved = trainer_->save();
  if (!saved.ok()) {
    const bool no_room = saved.code() == Exit::kCannotCreate;
    const bool last = trainer_->steps_done() == config_.train.steps;
    if (last || (!no_room && saved.code() != Exit::kDiverged)) return saved;
    if (no_room && ++failed_saves_ >= kMostFailedSaves) return saved;
    log_warn(strf("checkpoint of step %lld skipped, the last is step %lld: %s",
                  (long long)trainer_->steps_done(), (long long)trainer_->saved_step(),
                  saved.message().c_str()));
    return Status();
  }
  failed_saves_ = 0;
  const double save_s = seconds_since(start);
  log_info(strf("saved step %lld in %.1f s", (long long)trainer_->steps_done(), save_s));
  metrics_->write(MetricsType::kCheckpoint, {{"step", trainer_->steps_done()}, {"save_s", save_s}});
  return Status();
}

Status TrainRun::finish() {
  set_status_line("");
  const std::string& out = config_.train.output_dir;
  log_info(strf("done: %lld steps, last loss %.4f", (long long)trainer_->steps_done(), last_loss_));
  if (!std::isnan(last_eval_)) {
    log_info(strf("held-out loss: %.4f at first, %.4f now (%+.1f %%)", first_eval_, last_eval_,
                  100.0 * (last_eval_ / first_eval_ - 1.0)));
  }
  log_info(strf("metrics: %s/metrics.jsonl", out.c_str()));
  if (trainer_->saved_step() >= 0) {
    log_info(strf("checkpoint: %s/checkpoints; make a model folder of it with: pagoda export "
                  "--checkpoint %s --out DIR", out.c_str(), out.c_str()));
  }
  return Status();
}

}  // namespace

Status run_train(const RunConfig& config, const TrainFlags& flags) {
  install_stop_signals();
  ASSIGN_OR_RETURN(const HfFolder folder, HfFolder::open(config.model.path));
  const SessionOptions options = session_options(config);
  ASSIGN_OR_RETURN(const MemoryPlan memory, Session::plan(folder.config(), options));
  for (const std::string& line : plan_report(folder.config(), options, memory)) log_info(line);
  RETURN_IF_ERROR(check_machine_memory(folder.config(), options, memory));
  RunOutput output(config.train.output_dir);
  RETURN_IF_ERROR(flags.resume ? output.reuse() : output.create());
  ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage,
                   open_storage(config.memory.io, output.store_parent(config)));
  log_info("io: " + storage->describe());
  ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                   Trainer::start(config, flags.resume, storage.get()));
  log_info("data: " + dataset_text(trainer->data()));
  if (trainer->eval_data()) log_info("held-out data: " + dataset_text(*trainer->eval_data()));
  if (flags.resume) {
    log_info(strf("resuming from step %lld", (long long)trainer->steps_done()));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<MetricsFile> metrics,
                   MetricsFile::open(config.train.output_dir + "/metrics.jsonl",
                                     flags.resume ? trainer->steps_done() : -1));
  RETURN_IF_ERROR(write_text_file(config.train.output_dir + "/resolved.toml",
                                  trainer->config().to_toml()));
  output.keep();
  return TrainRun(config, std::move(trainer), std::move(metrics)).run();
}

}  // namespace pagoda
