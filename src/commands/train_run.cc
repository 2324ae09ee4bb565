#include "commands/train_run.h"

#include <cmath>
#include <tuple>

#include "base/log.h"
#include "base/si_units.h"
#include "base/stop_signal.h"
#include "config/computed_with.h"
#include "model/model_config.h"
#include "parallel/launcher.h"
#include "plan/exchange/home_moves.h"
#include "plan/machine/model_cost.h"
#include "preview/this_machine.h"
#include "report/report.h"

namespace pagoda {
namespace {

constexpr int64_t kMostFailedSaves = 2;  // in a row
constexpr size_t kMostSampleChars = 2000;  // printed characters of a sample; the metrics have all

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double peak_flops_of(const MachineSheet& machine) {
  return kTera * machine.device.peak_tflops * static_cast<double>(machine.device.count);
}

double written_to_disk(Session& session) {
  return static_cast<double>(session.file().counters().write_bytes);
}

// Exchanges of homes in their order: {"layer": [0, 2], "a": [3, 0], "b": [5, 1]}, the two experts
// of each.
MetricsObject swaps_object(const RunShape& shape, std::span<const HomeSwap> swaps) {
  std::vector<int64_t> layers, a, b;
  for (const HomeSwap& swap : swaps) {
    layers.push_back(shape.records[static_cast<size_t>(swap.a)].layer);
    a.push_back(shape.records[static_cast<size_t>(swap.a)].expert);
    b.push_back(shape.records[static_cast<size_t>(swap.b)].expert);
  }
  return metrics_object({{"layer", layers}, {"a", a}, {"b", b}});
}

// A signal that interrupts work between steps is looked at behind it.
bool ended_by_signal(const Status& status) { return static_cast<int>(status.code()) > 128; }

}  // namespace

TrainRun::TrainRun(const RunConfig& config, const RunOutput& output,
                   std::unique_ptr<Trainer> trainer, TrainRecords records, StepTrace* trace,
                   RankGroup& ranks)
    : config_(config),
      output_(output),
      trainer_(std::move(trainer)),
      metrics_(std::move(records.metrics)),
      routing_(std::move(records.routing)),
      events_(std::move(records.events)),
      trace_(*trace),
      ranks_(ranks),
      progress_(config.train.log_steps),
      peak_flops_per_s_(peak_flops_of(this_machine_sheet(config.gpus()))),
      evals_(metrics_ ? metrics_->evals() : EvalHistory()),
      experts_(config.train.watch_steps, config.train.watch_load),
      copies_(config, trainer_.get(), &ranks) {}

Status TrainRun::run(bool resumed) {
  Status outcome = run_steps(resumed);
  const Status traced = trace_.end_run();
  if (outcome.ok()) outcome = traced;
  if (outcome.ok() || !ranks_.broken()) return outcome;
  const int64_t saved = trainer_->saved_step();
  return Status(outcome.code(),
                outcome.message() + (saved < 0 ? "; nothing was saved (train.save_steps is 0)"
                                               : strf("; step %lld is saved: --resume continues "
                                                      "from it",
                                                      (long long)saved)));
}

Status TrainRun::run_steps(bool resumed) {
  write(MetricsType::kRun, {{"step", trainer_->steps_done()},
                            {"steps", config_.train.steps},
                            {"version", std::string(PAGODA_VERSION)},
                            {"kernel_set", kernel_set_with(config_.gpus())},
                            {"options", MetricsObject{trainer_->config().to_json()}}});
  const bool deals = trainer_->makes_checkpoints() || trainer_->saved_step() < 0;
  if (leads() && config_.parallel.shares == ShareKind::kMeasured && !deals) {
    log_info(
        "attention keeps its shards: the run goes on from a checkpoint and makes none "
        "(train.save_steps is 0)");
  }
  if (!resumed && trainer_->saved_step() == 0) {
    write(MetricsType::kCheckpoint, {{"step", int64_t{0}}});
  }
  if (resumed && metrics_) warn_of_grace(metrics_->last_step_s(), metrics_->last_save_s());
  // A signal may have come between a step and its evaluation. Rank 0 knows.
  ASSIGN_OR_RETURN(const int64_t evaluated,
                   ranks_.most(leads() && evals_.last_step == trainer_->steps_done()));
  if (due(config_.train.eval_steps) && evaluated == 0) RETURN_IF_ERROR(evaluate());
  // An earlier process may have ended between an evaluation and its copy.
  if (resumed && evaluated != 0) RETURN_IF_ERROR(copy_best());
  ASSIGN_OR_RETURN(
      const int64_t sampled,
      ranks_.most(metrics_ != nullptr && metrics_->last_sample_step() == trainer_->steps_done()));
  if (samples_due() && sampled == 0) RETURN_IF_ERROR(sample());
  ASSIGN_OR_RETURN(const int stopped_by, signal());
  if (stopped_by != 0) return stop(stopped_by);
  while (trainer_->steps_done() < config_.train.steps) {
    ASSIGN_OR_RETURN(const int64_t enough, ranks_.most(ends_early()));
    if (enough != 0) {
      if (config_.train.save_steps > 0) RETURN_IF_ERROR(commit());
      break;
    }
    RETURN_IF_ERROR(one_step());
    RETURN_IF_ERROR(between_steps());
  }
  return finish();
}

Status TrainRun::one_step() {
  first_row_ = trainer_->rows_consumed();
  ranks_.progress(strf("step %lld", (long long)trainer_->steps_done() + 1));
  RETURN_IF_ERROR(trace_.begin_step(trainer_->steps_done() + 1));
  const SessionCounters before = SessionCounters::read(trainer_->session());
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const StepResult result, trainer_->step());
  const double step_s = step_s_ = seconds_since(start);
  const SessionCounters after = SessionCounters::read(trainer_->session());
  RETURN_IF_ERROR(trace_.end_step(trainer_->steps_done(), trainer_->session().pager()));
  if (routing_) routing_->record(trainer_->steps_done(), result.routing);
  StepUsage usage(before, after, step_s);
  usage.mfu = mfu_of(usage);
  ASSIGN_OR_RETURN(const std::string of_ranks, usages_of_ranks(usage));
  report(result, usage, of_ranks);
  for (const std::string& text : experts_.note(result.tokens_per_expert)) {
    warn(strf("step %lld: ", (long long)trainer_->steps_done()) + text);
  }
  last_loss_ = result.loss;
  if (result.skipped) {
    warn(strf("step %lld: non-finite gradient; the step was skipped, nothing was updated",
              (long long)trainer_->steps_done()));
  }
  return Status();
}

// What any rank was asked by, so that all stop.
Result<int> TrainRun::signal() {
  ASSIGN_OR_RETURN(const int64_t asked, ranks_.most(stop_requested()));
  return static_cast<int>(asked);
}

void TrainRun::write(MetricsType type, const MetricsFields& fields) {
  if (metrics_) metrics_->write(type, fields);
  if (events_) events_->write(type, fields);
}

// All ranks know what it is about.
void TrainRun::warn(const std::string& text) {
  if (!leads()) return;
  log_warn(text);
  write(MetricsType::kWarn, {{"step", trainer_->steps_done()}, {"text", text}});
}

// Counts what this rank's devices did, against the peak that `pagoda plan` takes for the machine. A
// stage's share of the work is that of its layers, as if head and embedding were in all of them.
double TrainRun::mfu_of(const StepUsage& usage) const {
  const Session& session = trainer_->session();
  const RunShape& shape = session.shape();
  const auto cost = model_cost(model_shape(session.config()));
  if (!cost.ok()) return NAN;
  int64_t attended = 0, rows = 0;  // microbatches in each layer
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    for (int64_t b = 0; b < shape.microbatches; ++b) {
      attended += shape.rank_of(shape.attending(l, b)) == shape.rank;
    }
  }
  for (const DeviceUsage& device : usage.devices) rows += device.expert_rows;
  const int64_t sequence_len = config_.data.sequence_len;
  const double flops = part_flops(
      cost.value(), sequence_len,
      static_cast<double>(attended * shape.microbatch_tokens / sequence_len) /
          static_cast<double>(shape.num_layers),
      static_cast<double>(rows));
  return flops / (peak_flops_per_s_ * usage.step_s);
}

// Once, when the launcher would kill what it was told to end before a step and a save are over.
void TrainRun::warn_of_grace(double step_s, double save_s) {
  const Launch launch = read_launch();
  const double needed_s = step_s + save_s;
  if (warned_of_grace_ || launch.grace_s < 0 || needed_s <= launch.grace_s) return;
  warned_of_grace_ = true;
  warn(strf("%s kills processes %g s after SIGTERM or Ctrl-C, and the last step and save took %.1f "
            "s: such a stop may save nothing; send mpirun SIGUSR1 instead, or start it with --mca "
            "odls_base_sigkill_timeout %.0f",
            launch.launcher.c_str(), launch.grace_s, needed_s, std::ceil(2 * needed_s + 1)));
}

// What each rank's usage was, as a JSON list; empty with one rank.
Result<std::string> TrainRun::usages_of_ranks(const StepUsage& usage) {
  if (ranks_.alone()) return std::string();
  MetricsFields fields = {{"rank", int64_t{ranks_.rank()}}, {"step_s", usage.step_s}};
  usage.append_to(fields);
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   ranks_.agree(Status(), metrics_object(fields).json));
  std::string list = "[";
  for (const std::string& of_rank : all) list += (list.size() > 1 ? "," : "") + of_rank;
  return list + "]";
}

void TrainRun::report(const StepResult& result, const StepUsage& usage,
                      const std::string& of_ranks) {
  ProgressReport r;
  r.step = trainer_->steps_done();
  r.steps = config_.train.steps;
  r.loss = result.loss;
  r.aux_loss = result.aux_loss;
  r.grad_norm = result.grad_norm;
  r.learning_rate = result.learning_rate;
  r.tokens = result.tokens;
  r.step_s = usage.step_s;
  r.hit_rate = usage.hit_rate;
  r.stall_share = usage.stall_share();
  r.main_stall = usage.main_stall();
  if (usage.devices.size() > 1) std::tie(r.least_busy, r.most_busy) = usage.busy_shares();
  progress_.step(r);
  MetricsFields fields = {{"step", r.step},
                          {"loss", r.loss},
                          {"aux_loss", r.aux_loss},
                          {"z_loss", config_.optim.z_loss > 0 ? result.z_loss : NAN},
                          {"grad_norm", r.grad_norm},
                          {"learning_rate", r.learning_rate},
                          {"skipped", result.skipped},
                          {"tokens", r.tokens},
                          {"loss_weight", result.total_weight},
                          {"first_row", first_row_},
                          {"rows", trainer_->rows_consumed() - first_row_},
                          {"step_s", r.step_s},
                          {"forward_s", result.forward.wall_s},
                          {"backward_s", result.backward.wall_s},
                          {"cpu_s", result.forward.cpu_s + result.backward.cpu_s},
                          {"tokens_per_s", static_cast<double>(r.tokens) / r.step_s}};
  usage.append_to(fields);
  if (!of_ranks.empty()) fields.emplace_back("ranks", MetricsObject{of_ranks});
  fields.emplace_back("experts", expert_loads(result.tokens_per_expert));
  write(MetricsType::kStep, fields);
}

Status TrainRun::stop(int signal) {
  const int64_t step = trainer_->steps_done();
  if (config_.train.save_steps == 0) {
    const int64_t saved = trainer_->saved_step();
    return Status(
        saved < 0 ? exit_of_signal(signal) : Exit::kStopped,
        strf("stopped by signal %d after step %lld; nothing was saved "
             "(train.save_steps is 0)",
             signal, (long long)step) +
            (saved < 0 ? "" : strf("; --resume continues from step %lld", (long long)saved)));
  }
  log_info(strf("signal %d: saving step %lld", signal, (long long)step));
  const Status saved = commit();
  if (saved.code() == Exit::kDiverged) {
    return Status(Exit::kStopped,
                  strf("stopped by signal %d after step %lld, which was skipped and "
                       "is not saved; continue from step %lld with --resume",
                       signal, (long long)step, (long long)trainer_->saved_step()));
  }
  RETURN_IF_ERROR(saved);
  return Status(Exit::kStopped, strf("stopped by signal %d after step %lld, which is saved; "
                                     "continue with --resume",
                                     signal, (long long)step));
}

bool TrainRun::due(int64_t every) const {
  const int64_t step = trainer_->steps_done();
  return every > 0 && (step == config_.train.steps || step % every == 0);
}

// Before the first step, after the last, and in between.
bool TrainRun::samples_due() const {
  const int64_t step = trainer_->steps_done();
  return step == 0 || step == config_.train.steps || due(config_.sample.steps);
}

Status TrainRun::between_steps() {
  ASSIGN_OR_RETURN(int stopped_by, signal());
  if (stopped_by != 0) return stop(stopped_by);
  RETURN_IF_ERROR(balance_homes());
  const bool evaluates = due(config_.train.eval_steps) && trainer_->can_evaluate();
  const bool samples = samples_due() && trainer_->can_sample();
  if (evaluates) RETURN_IF_ERROR(evaluate());
  if (samples) RETURN_IF_ERROR(sample());
  if (evaluates || samples) {
    ASSIGN_OR_RETURN(stopped_by, signal());
    if (stopped_by != 0) return stop(stopped_by);
  }
  if (due(config_.train.save_steps)) RETURN_IF_ERROR(save(true));
  return follow_speeds();
}

// Experts that exchange homes are told of, with what that was expected to take and bring.
Status TrainRun::balance_homes() {
  ASSIGN_OR_RETURN(const Trainer::Moved moved, trainer_->balance_homes());
  const HomeMoves& moves = moved.moves;
  if (moves.swaps.empty()) return Status();
  const int64_t experts = 2 * std::ssize(moves.swaps);
  log_info(
      strf("step %lld: %lld experts exchanged homes, %s in %.2f s; a step should take %.1f %% "
           "less",
           (long long)trainer_->steps_done(), (long long)experts, format_bytes(moves.bytes).c_str(),
           moved.took_s, 100 * moves.gain_s / step_s_));
  write(MetricsType::kMove, {{"step", trainer_->steps_done()},
                             {"experts", experts},
                             {"swaps", swaps_object(trainer_->session().shape(), moves.swaps)},
                             {"bytes", moves.bytes},
                             {"move_s", moved.took_s},
                             {"expected_move_s", moves.move_s},
                             {"expected_gain_s", moves.gain_s}});
  return Status();
}

// A deal is told of by how many shards each device attends to.
Status TrainRun::follow_speeds() {
  ASSIGN_OR_RETURN(const bool pays, trainer_->measure_shares());
  if (!pays) return Status();
  if (trainer_->makes_checkpoints()) {
    RETURN_IF_ERROR(save(false));
    if (trainer_->saved_step() != trainer_->steps_done()) return Status();
  }
  written_ += written_to_disk(trainer_->session());
  const auto start = std::chrono::steady_clock::now();
  RETURN_IF_ERROR(trainer_->deal_again());
  const double deal_s = seconds_since(start);
  const RunShape& shape = trainer_->session().shape();
  std::vector<int64_t> shards(static_cast<size_t>(shape.devices), 0);
  for (const int device : shape.shard_device) ++shards[static_cast<size_t>(device)];
  std::string text;
  for (const int64_t of_device : shards) text += strf(" %lld", (long long)of_device);
  log_info(strf("step %lld: attention is dealt anew by the devices' speed in %.2f s, in shards:%s",
                (long long)trainer_->steps_done(), deal_s, text.c_str()));
  write(MetricsType::kDeal,
        {{"step", trainer_->steps_done()}, {"shards", shards}, {"deal_s", deal_s}});
  return Status();
}

Status TrainRun::evaluate() {
  if (!trainer_->can_evaluate()) return Status();
  progress_.activity("evaluating");
  const auto evaluated = trainer_->evaluate();
  if (ended_by_signal(evaluated.status())) return Status();
  RETURN_IF_ERROR(evaluated.status());
  const double loss = evaluated.value();
  evals_.add(trainer_->steps_done(), loss);
  log_info(strf("eval at step %lld: loss %.4f", (long long)trainer_->steps_done(), loss));
  write(MetricsType::kEval, {{"step", trainer_->steps_done()}, {"loss", loss}});
  return copy_best();
}

// Rank 0 knows the evaluations of earlier processes.
Status TrainRun::copy_best() {
  if (!config_.train.keep_best) return Status();
  const RankGroup::OwnWork writes(ranks_);
  ASSIGN_OR_RETURN(const int64_t best, ranks_.most(leads() && evals_.last_is_best()));
  return best != 0 ? copy("best model", copies_.write_best(evals_)) : Status();
}

bool TrainRun::ends_early() const {
  return leads() && config_.train.early_stop > 0 && evals_.since_best >= config_.train.early_stop;
}

// A copy that could not be written is no loss to the run.
Status TrainRun::copy(const char* what, const Status& written) {
  if (written.ok() || ended_by_signal(written)) return Status();
  if (written.code() == Exit::kIoError) return written;
  warn(strf("no copy of the %s at step %lld: %s", what, (long long)trainer_->steps_done(),
            written.message().c_str()));
  return Status();
}

// What is written to files that somebody removed ends with this process.
Status TrainRun::check_files() const {
  if (!leads()) return Status();
  RETURN_IF_ERROR(output_.check());
  RETURN_IF_ERROR(metrics_->check());
  return routing_ ? routing_->check() : Status();
}

// A durable checkpoint of this step, if there is none yet.
Status TrainRun::commit() {
  const int64_t step = trainer_->steps_done();
  if (trainer_->saved_step() == step) return Status();
  const RankGroup::OwnWork writes(ranks_);
  RETURN_IF_ERROR(ranks_.agree(check_files()));
  progress_.activity("saving");
  const auto start = std::chrono::steady_clock::now();
  const Status saved = trainer_->save();
  if (saved.code() == Exit::kCannotCreate) {
    return Status(saved.code(), strf("%s; step %lld is saved: --resume continues from it",
                                     saved.message().c_str(), (long long)trainer_->saved_step()));
  }
  RETURN_IF_ERROR(saved);
  const double save_s = seconds_since(start);
  if (step_s_ > 0) warn_of_grace(step_s_, save_s);
  log_info(strf("saved step %lld in %.1f s", (long long)step, save_s));
  write(MetricsType::kCheckpoint, {{"step", step}, {"save_s", save_s}});
  if (config_.train.keep_copies == 0) return Status();
  ASSIGN_OR_RETURN(const int stopped_by, signal());
  if (stopped_by != 0) return Status();
  return copy("newest model", copies_.write_newest(evals_));
}

// Weights that give no token are looked at again by the next step and the next save; samples are
// only to be read.
Status TrainRun::sample() {
  if (!trainer_->can_sample()) return Status();
  const int64_t step = trainer_->steps_done();
  progress_.activity("sampling");
  const auto start = std::chrono::steady_clock::now();
  auto sampled = trainer_->sample();
  if (!sampled.ok()) {
    if (ended_by_signal(sampled.status())) return Status();
    if (sampled.status().code() != Exit::kDiverged) return sampled.status();
    warn(strf("no samples at step %lld: %s", (long long)step, sampled.status().message().c_str()));
    return Status();
  }
  const double sample_s = seconds_since(start);
  for (const Sample& s : sampled.value()) {
    log_info(strf("sample at step %lld: \"%s\" -> \"%s\"%s", (long long)step,
                  printable(s.prompt).c_str(), printable(s.text, kMostSampleChars).c_str(),
                  s.ended ? "" : " ..."));
    write(MetricsType::kSample, {{"step", step},
                                 {"prompt", s.prompt},
                                 {"text", s.text},
                                 {"tokens", s.tokens},
                                 {"ended", s.ended},
                                 {"sample_s", sample_s}});
  }
  return Status();
}

// A failed write of the pages or their sync ends the run; a manifest that could not be written (no
// space) leaves the checkpoint before it, and is tried again at the next turn. So is one that must
// not be, unless the run ends with it. Only turns count as failed: a deal without room waits.
Status TrainRun::save(bool in_turn) {
  const Status saved = commit();
  const bool no_room = saved.code() == Exit::kCannotCreate;
  failed_saves_ = no_room ? failed_saves_ + (in_turn ? 1 : 0) : 0;
  const bool may_go_on = no_room || saved.code() == Exit::kDiverged;
  const bool last = trainer_->steps_done() == config_.train.steps;
  if (saved.ok() || !may_go_on || last || failed_saves_ >= kMostFailedSaves) return saved;
  warn(strf("checkpoint of step %lld skipped, the last is step %lld: %s",
            (long long)trainer_->steps_done(), (long long)trainer_->saved_step(),
            saved.message().c_str()));
  return Status();
}

Status TrainRun::finish() {
  RETURN_IF_ERROR(ranks_.agree(check_files()));
  set_status_line("");
  const std::string& out = config_.train.output_dir;
  const auto steps = static_cast<long long>(trainer_->steps_done());
  if (ends_early()) {
    log_info(
        strf("ended early: %lld evaluations in a row gave no lower loss than %.4f at step %lld",
             (long long)evals_.since_best, evals_.best_loss, (long long)evals_.best_step));
  }
  log_info(last_loss_ ? strf("done: %lld steps, last loss %.4f", steps, *last_loss_)
                      : strf("all %lld steps were done before", steps));
  if (evals_.last_step >= 0) {
    log_info(strf("held-out loss: %.4f at step %lld, %.4f at step %lld (%+.1f %%)",
                  evals_.first_loss, (long long)evals_.first_step, evals_.last_loss,
                  (long long)evals_.last_step,
                  100.0 * (evals_.last_loss / evals_.first_loss - 1.0)));
  }
  const double written = written_ + written_to_disk(trainer_->session());
  if (written > 0) {
    log_info(strf("disk: %s written since the start, %s a day at this rate",
                  format_decimal_bytes(written).c_str(),
                  format_decimal_bytes(written / seconds_since(start_) * 86400).c_str()));
  }
  RETURN_IF_ERROR(copies_.release());
  if (config_.train.keep_best && evals_.best_step >= 0) {
    log_info(strf("best model: %s/best, loss %.4f at step %lld", out.c_str(), evals_.best_loss,
                  (long long)evals_.best_step));
  }
  log_info(strf("metrics: %s/metrics.jsonl", out.c_str()));
  if (trainer_->saved_step() >= 0) {
    log_info(
        strf("checkpoint: %s/checkpoints; make a model folder of it with: pagoda export "
             "--checkpoint %s --out DIR",
             out.c_str(), out.c_str()));
  }
  return Status();
}

}  // namespace pagoda
