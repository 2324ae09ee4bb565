// `pagoda train`: the loop around a Trainer: what is printed, measured, evaluated and saved when.
#include <algorithm>
#include <chrono>
#include <optional>
#include <tuple>

#include "base/file.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/stop_signal.h"
#include "commands/commands.h"
#include "config/computed_with.h"
#include "preview/chat_date_choice.h"
#include "preview/micro_batch_choice.h"
#include "report/metrics.h"
#include "report/progress.h"
#include "report/report.h"
#include "report/routing_recorder.h"
#include "report/run_output.h"
#include "report/step_trace.h"
#include "report/step_usage.h"
#include "train/process_memory.h"
#include "train/saved_layers.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

constexpr int64_t kMostFailedSaves = 3;
constexpr size_t kMostSampleChars = 2000;  // printed characters of a sample; the metrics have all

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// One run from its first printed line to its last.
class TrainRun {
 public:
  TrainRun(const RunConfig& config, const RunOutput& output, std::unique_ptr<Trainer> trainer,
           std::unique_ptr<MetricsFile> metrics, std::unique_ptr<RoutingRecorder> routing,
           StepTrace* trace, RankGroup& ranks)
      : config_(config),
        output_(output),
        trainer_(std::move(trainer)),
        metrics_(std::move(metrics)),
        routing_(std::move(routing)),
        trace_(*trace),
        ranks_(ranks),
        progress_(config.train.log_steps),
        evals_(metrics_ ? metrics_->evals() : EvalHistory()) {}

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
  Status stop(int signal);
  Status evaluate();
  Status sample();
  Status save();
  Status check_files() const;
  Status commit();
  void warn(const std::string& text);
  void report(const StepResult& result, const StepUsage& usage);
  Status finish();

  const RunConfig& config_;
  const RunOutput& output_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<MetricsFile> metrics_;      // nullptr: another rank writes
  std::unique_ptr<RoutingRecorder> routing_;  // nullptr: not recorded
  StepTrace& trace_;
  RankGroup& ranks_;
  Progress progress_;
  int64_t first_row_ = 0;  // first row of the newest step
  int64_t failed_saves_ = 0;
  EvalHistory evals_;
  std::optional<double> last_loss_;  // loss of the last step of this process
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

Status TrainRun::run(bool resumed) {
  const Status outcome = run_steps(resumed);
  trace_.end_run();
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
  if (!resumed && trainer_->saved_step() == 0) {
    write(MetricsType::kCheckpoint, {{"step", int64_t{0}}});
  }
  // A signal may have come between a step and its evaluation. Rank 0 knows.
  ASSIGN_OR_RETURN(const int64_t evaluated,
                   ranks_.most(leads() && evals_.last_step == trainer_->steps_done()));
  if (due(config_.train.eval_steps) && evaluated == 0) RETURN_IF_ERROR(evaluate());
  ASSIGN_OR_RETURN(
      const int64_t sampled,
      ranks_.most(metrics_ != nullptr && metrics_->last_sample_step() == trainer_->steps_done()));
  if (samples_due() && sampled == 0) RETURN_IF_ERROR(sample());
  ASSIGN_OR_RETURN(const int stopped_by, signal());
  if (stopped_by != 0) return stop(stopped_by);
  while (trainer_->steps_done() < config_.train.steps) {
    RETURN_IF_ERROR(one_step());
    RETURN_IF_ERROR(between_steps());
  }
  return finish();
}

Status TrainRun::one_step() {
  first_row_ = trainer_->rows_consumed();
  ranks_.progress(strf("step %lld", (long long)trainer_->steps_done() + 1));
  trace_.begin_step(trainer_->steps_done() + 1);
  const SessionCounters before = SessionCounters::read(trainer_->session());
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const StepResult result, trainer_->step());
  const double step_s = seconds_since(start);
  const SessionCounters after = SessionCounters::read(trainer_->session());
  trace_.end_step(trainer_->steps_done(), trainer_->session().pager());
  if (routing_) routing_->record(trainer_->steps_done(), result.routing);
  report(result, StepUsage(before, after, step_s));
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
}

// All ranks know what it is about.
void TrainRun::warn(const std::string& text) {
  if (!leads()) return;
  log_warn(text);
  write(MetricsType::kWarn, {{"step", trainer_->steps_done()}, {"text", text}});
}

void TrainRun::report(const StepResult& result, const StepUsage& usage) {
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
  fields.emplace_back("experts", expert_loads(result.tokens_per_expert));
  write(MetricsType::kStep, fields);
}

Status TrainRun::stop(int signal) {
  const int64_t step = trainer_->steps_done();
  if (config_.train.save_steps == 0) {
    const int64_t saved = trainer_->saved_step();
    return Status(saved < 0 ? exit_of_signal(signal) : Exit::kStopped,
                  strf("stopped by signal %d after step %lld; nothing was saved "
                       "(train.save_steps is 0)", signal, (long long)step) +
                      (saved < 0 ? "" : strf("; --resume continues from step %lld",
                                             (long long)saved)));
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
                                     "continue with --resume", signal, (long long)step));
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
  const bool evaluates = due(config_.train.eval_steps) && trainer_->can_evaluate();
  const bool samples = samples_due() && trainer_->can_sample();
  if (evaluates) RETURN_IF_ERROR(evaluate());
  if (samples) RETURN_IF_ERROR(sample());
  if (evaluates || samples) {
    ASSIGN_OR_RETURN(stopped_by, signal());
    if (stopped_by != 0) return stop(stopped_by);
  }
  if (due(config_.train.save_steps)) RETURN_IF_ERROR(save());
  return Status();
}

// A signal that interrupts work between steps is looked at behind it.
bool ended_by_signal(const Status& status) { return static_cast<int>(status.code()) > 128; }

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
  RETURN_IF_ERROR(ranks_.agree(check_files()));
  progress_.activity("saving");
  const auto start = std::chrono::steady_clock::now();
  const Status saved = trainer_->save();
  if (saved.code() == Exit::kCannotCreate) {
    return Status(saved.code(),
                  strf("%s; step %lld is saved: --resume continues from it",
                       saved.message().c_str(), (long long)trainer_->saved_step()));
  }
  RETURN_IF_ERROR(saved);
  const double save_s = seconds_since(start);
  log_info(strf("saved step %lld in %.1f s", (long long)step, save_s));
  write(MetricsType::kCheckpoint, {{"step", step}, {"save_s", save_s}});
  return Status();
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
    warn(strf("no samples at step %lld: %s", (long long)step,
              sampled.status().message().c_str()));
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
// not be, unless the run ends with it.
Status TrainRun::save() {
  const Status saved = commit();
  const bool no_room = saved.code() == Exit::kCannotCreate;
  failed_saves_ = no_room ? failed_saves_ + 1 : 0;
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
  log_info(last_loss_ ? strf("done: %lld steps, last loss %.4f", steps, *last_loss_)
                      : strf("all %lld steps were done before", steps));
  if (evals_.last_step >= 0) {
    log_info(strf("held-out loss: %.4f at step %lld, %.4f at step %lld (%+.1f %%)",
                  evals_.first_loss, (long long)evals_.first_step, evals_.last_loss,
                  (long long)evals_.last_step,
                  100.0 * (evals_.last_loss / evals_.first_loss - 1.0)));
  }
  const auto written = static_cast<double>(trainer_->session().file().counters().write_bytes);
  if (written > 0) {
    log_info(strf("disk: %s written since the start, %s a day at this rate",
                  format_decimal_bytes(written).c_str(),
                  format_decimal_bytes(written / seconds_since(start_) * 86400).c_str()));
  }
  log_info(strf("metrics: %s/metrics.jsonl", out.c_str()));
  if (trainer_->saved_step() >= 0) {
    log_info(strf("checkpoint: %s/checkpoints; make a model folder of it with: pagoda export "
                  "--checkpoint %s --out DIR", out.c_str(), out.c_str()));
  }
  return Status();
}

// nullptr: the run records none.
Result<std::unique_ptr<RoutingRecorder>> open_routing(const RunConfig& config, bool resumed,
                                                      Trainer& trainer) {
  if (config.train.trace_routing.empty()) return std::unique_ptr<RoutingRecorder>();
  return RoutingRecorder::open(config.train.trace_routing, routed_shape(trainer.session().shape()),
                               resumed ? trainer.steps_done() : -1);
}

// Says which tensors stay as they came, so that nobody takes them for trained.
void say_what_is_kept(const HfFolder& folder) {
  const ModelConfig& config = folder.config();
  int64_t bytes = 0;
  for (const KeptTensor& kept : folder.kept()) bytes += kept.bytes;
  if (!folder.kept().empty()) {
    log_info(strf("layers from %lld on predict further tokens and are not trained: their %zu "
                  "tensors (%s) are exported as they are",
                  (long long)config.num_layers, folder.kept().size(),
                  format_bytes(bytes).c_str()));
  }
  if (config.router_correction) {
    log_info("the routers' corrections of the choice are neither trained nor updated by load: "
             "they stay as they are");
  }
}

}  // namespace

Status resolve_run(RunConfig& config, bool resume) {
  RETURN_IF_ERROR(HfFolder::open(config.model.path).status());
  RETURN_IF_ERROR(choose_micro_batch(config, resume));
  return choose_chat_date(config, resume);
}

namespace {

// The plan of a run, which is printed before anything is written.
struct Prepared {
  std::unique_ptr<HfFolder> folder;
  std::vector<TokenIds> prompts;
};

Result<Prepared> prepare(const RunConfig& config, bool resume) {
  Prepared prepared;
  ASSIGN_OR_RETURN(HfFolder folder, HfFolder::open(config.model.path));
  prepared.folder = std::make_unique<HfFolder>(std::move(folder));
  say_what_is_kept(*prepared.folder);
  ASSIGN_OR_RETURN(prepared.prompts, sample_prompts(config, *prepared.folder));
  if (!resume && !config.train.trace_routing.empty()) {
    RETURN_IF_ERROR(RoutingRecorder::check_new(config.train.trace_routing));
  }
  return prepared;
}

Status report_plan(const RunConfig& config, const TrainFlags& flags, const Prepared& prepared,
                   Trace* trace, RankGroup& ranks) {
  const ModelConfig& model = prepared.folder->config();
  SessionOptions options = session_options(config, prepared.prompts);
  options.trace = trace;
  options.ranks = &ranks;
  RETURN_IF_ERROR(join_ranks(config, ranks, options));
  ASSIGN_OR_RETURN(const MemoryPlan memory, Session::plan(model, options));
  options.size.group_blocks = memory.group_blocks;
  options.size.saved_layers = saved_layers(model, options, memory);
  const RunOutlook outlook = {config.train.steps, config.train.save_steps, config.memory.drive_tbw,
                              flags.resume};
  for (const std::string& line : plan_report(model, options, memory, outlook)) log_info(line);
  if (config.data.sequence_len > model.max_position_embeddings && ranks.rank() == 0) {
    log_warn(
        strf("data.sequence_len = %lld is more than the %lld positions of the model's "
             "max_position_embeddings: it has not learnt positions beyond these",
             (long long)config.data.sequence_len, (long long)model.max_position_embeddings));
  }
  return ranks.agree(check_machine_memory(model, options, memory));
}

// Opens what rank 0 writes beside the trainer's files.
struct Records {
  std::unique_ptr<MetricsFile> metrics;
  std::unique_ptr<RoutingRecorder> routing;
};

Result<Records> open_records(const RunConfig& config, bool resume, Trainer& trainer) {
  Records records;
  ASSIGN_OR_RETURN(records.metrics, MetricsFile::open(config.train.output_dir + "/metrics.jsonl",
                                                      resume ? trainer.steps_done() : -1));
  ASSIGN_OR_RETURN(records.routing, open_routing(config, resume, trainer));
  RETURN_IF_ERROR(
      write_text_file(config.train.output_dir + "/resolved.toml", trainer.config().to_toml()));
  return records;
}

}  // namespace

Status run_train(const RunConfig& config, const TrainFlags& flags, RankGroup* of_run) {
  install_stop_signals();
  RankGroup alone;
  RankGroup& ranks = of_run != nullptr ? *of_run : alone;
  const bool leads = ranks.rank() == 0;
  auto prepared = prepare(config, flags.resume);
  RETURN_IF_ERROR(ranks.agree(prepared.status()));
  StepTrace trace(leads ? config.trace_range() : std::nullopt,
                  config.train.output_dir + "/trace.json");
  warn_of_gpus(config);
  RETURN_IF_ERROR(report_plan(config, flags, *prepared, trace.trace(), ranks));
  RunOutput output(config.train.output_dir, config.disk_directories());
  if (leads) {
    RETURN_IF_ERROR(ranks.agree(flags.resume ? output.reuse() : output.create()));
  } else {
    RETURN_IF_ERROR(ranks.agree(Status()));
  }
  auto storage =
      open_storage(config.memory.io, nearest_directory(config.disk_directories().front()));
  RETURN_IF_ERROR(ranks.agree(storage.status()));
  log_info("io: " + (*storage)->describe());
  ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                   Trainer::start(config, flags.resume, storage->get(), trace.trace(), &ranks));
  log_info("data: " + dataset_text(trainer->data()));
  if (trainer->eval_data()) log_info("held-out data: " + dataset_text(*trainer->eval_data()));
  if (flags.resume) {
    log_info(strf("resuming from step %lld", (long long)trainer->steps_done()));
  }
  auto records = leads ? open_records(config, flags.resume, *trainer) : Records();
  RETURN_IF_ERROR(ranks.agree(records.status()));
  RETURN_IF_ERROR(ranks.agree(leads ? output.keep() : Status()));
  TrainRun run(config, output, std::move(trainer), std::move(records->metrics),
               std::move(records->routing), &trace, ranks);
  return run.run(flags.resume);
}

}  // namespace pagoda
