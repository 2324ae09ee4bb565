// `pagoda train`: what happens before the loop around a trainer (commands/train_run.h).
#include <optional>

#include "base/file.h"
#include "base/log.h"
#include "base/output_file.h"
#include "base/stop_signal.h"
#include "commands/commands.h"
#include "commands/train_run.h"
#include "model/hidden_parts.h"
#include "parallel/host_name.h"
#include "preview/chat_date_choice.h"
#include "preview/layout_choice.h"
#include "preview/micro_batch_choice.h"
#include "preview/zebra_choice.h"
#include "report/report.h"
#include "train/process_memory.h"
#include "train/saved_layers.h"

namespace pagoda {
namespace {

// nullptr: the run records none.
Result<std::unique_ptr<RoutingRecorder>> open_routing(const RunConfig& config, bool resumed,
                                                      Trainer& trainer) {
  if (config.train.trace_routing.empty()) return std::unique_ptr<RoutingRecorder>();
  return RoutingRecorder::open(config.train.trace_routing, routed_shape(trainer.session().shape()),
                               resumed ? trainer.steps_done() : -1);
}

// Says which tensors stay as they came, so that nobody takes them for trained.
void say_what_is_kept(const HfFolder& folder, double correction_speed) {
  const ModelConfig& config = folder.config();
  int64_t bytes = 0;
  for (const KeptTensor& kept : folder.kept()) bytes += kept.bytes;
  if (!folder.kept().empty()) {
    log_info(strf("layers from %lld on predict further tokens and are not trained: their %zu "
                  "tensors (%s) are exported as they are",
                  (long long)config.num_layers, folder.kept().size(),
                  format_bytes(bytes).c_str()));
  }
  if (config.router_correction && correction_speed == 0.0) {
    log_info(
        "the routers' corrections of the choice are neither trained nor updated by load: "
        "they stay as they are (optim.correction_speed)");
  }
}

}  // namespace

Status resolve_run(RunConfig& config, bool resume, RankGroup& ranks,
                   const std::optional<MachineSheet>& measured) {
  RETURN_IF_ERROR(ranks.agree(HfFolder::open(config.model.path).status()));
  RETURN_IF_ERROR(choose_micro_batch(config, resume, ranks));
  if (measured && ranks.alone()) RETURN_IF_ERROR(choose_layout(*measured, config));
  RETURN_IF_ERROR(ranks.agree(resolve_zebra(config, ranks, measured)));
  return ranks.agree(ranks.rank() == 0 ? choose_chat_date(config, resume) : Status());
}

namespace {

// The plan of a run, which is printed before anything is written.
struct Prepared {
  std::unique_ptr<HfFolder> folder;
  ModelConfig model;  // as it is trained
  std::vector<TokenIds> prompts;
};

Result<Prepared> prepare(const RunConfig& config, bool resume) {
  Prepared prepared;
  ASSIGN_OR_RETURN(HfFolder folder, HfFolder::open(config.model.path));
  prepared.folder = std::make_unique<HfFolder>(std::move(folder));
  ASSIGN_OR_RETURN(prepared.model,
                   with_hidden_parts(prepared.folder->config(), config.hidden_shares()));
  say_what_is_kept(*prepared.folder, config.optim.correction_speed);
  ASSIGN_OR_RETURN(prepared.prompts, sample_prompts(config, *prepared.folder));
  if (!resume && !config.train.trace_routing.empty()) {
    RETURN_IF_ERROR(RoutingRecorder::check_new(config.train.trace_routing));
  }
  return prepared;
}

Status report_plan(const RunConfig& config, const TrainFlags& flags, const Prepared& prepared,
                   Trace* trace, RankGroup& ranks) {
  const ModelConfig& model = prepared.model;
  SessionOptions options = session_options(config, prepared.prompts);
  RETURN_IF_ERROR(ranks.agree(set_frozen(config, model, options)));
  options.trace = trace;
  options.ranks = &ranks;
  RETURN_IF_ERROR(join_ranks(config, ranks, options));
  RETURN_IF_ERROR(choose_table_ranks(model, options));
  ASSIGN_OR_RETURN(const MemoryPlan memory, Session::plan(model, options));
  options = with_groups(std::move(options), memory);
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

// Takes the run's folder. Page files that a killed start left are on the disks of all ranks.
Status take_folder(RunOutput& output, bool resume, RankGroup& ranks) {
  const bool leads = ranks.rank() == 0;
  if (resume) return ranks.agree(leads ? output.reuse() : Status());
  auto killed = leads ? output.killed_start() : std::optional<std::string>();
  const std::string mark = killed.ok() ? killed.value().value_or("") : "";
  ASSIGN_OR_RETURN(const std::vector<std::string> marks, ranks.agree(killed.status(), mark));
  const std::vector<MarkedFile> left = marked_page_files(marks[0]);
  const Status removed = leads ? Status() : output.remove_from_disks(left);
  ASSIGN_OR_RETURN(const std::vector<std::string> hosts, ranks.agree(removed, host_name()));
  if (leads) warn_of_files_elsewhere(left, hosts);
  return ranks.agree(leads ? output.create() : Status());
}

Result<TrainRecords> open_records(const RunConfig& config, bool resume, Trainer& trainer) {
  TrainRecords records;
  ASSIGN_OR_RETURN(records.metrics, MetricsFile::open(config.train.output_dir + "/metrics.jsonl",
                                                      resume ? trainer.steps_done() : -1));
  ASSIGN_OR_RETURN(records.routing, open_routing(config, resume, trainer));
  RETURN_IF_ERROR(
      write_text_file(config.train.output_dir + "/resolved.toml", trainer.config().to_toml()));
  if (!config.train.tensorboard) return records;
  ASSIGN_OR_RETURN(records.events, EventFile::create(config.train.output_dir + "/tensorboard",
                                                     trainer.steps_done() + 1));
  return records;
}

// Opens what the run writes beside its pages. Behind this the run's folder stays.
Result<TrainRecords> begin_records(const RunConfig& config, bool resume, Trainer& trainer,
                                   RunOutput& output, RankGroup& ranks) {
  const bool leads = ranks.rank() == 0;
  log_info("data: " + dataset_text(trainer.data()));
  if (trainer.eval_data()) log_info("held-out data: " + dataset_text(*trainer.eval_data()));
  if (resume) log_info(strf("resuming from step %lld", (long long)trainer.steps_done()));
  auto records = leads ? open_records(config, resume, trainer) : TrainRecords();
  RETURN_IF_ERROR(ranks.agree(records.status()));
  RETURN_IF_ERROR(ModelCopies(config, &trainer, &ranks).begin());
  RETURN_IF_ERROR(ranks.agree(leads ? output.keep() : Status()));
  return records;
}

}  // namespace

Status run_train(const RunConfig& config, const TrainFlags& flags, RankGroup* of_run) {
  install_stop_signals();
  RankGroup alone;
  RankGroup& ranks = of_run != nullptr ? *of_run : alone;
  RankGroup::OwnWork begins(ranks);
  auto prepared = prepare(config, flags.resume);
  RETURN_IF_ERROR(ranks.agree(prepared.status()));
  StepTrace trace(config.trace_range(), config.train.output_dir + "/trace.json", &ranks);
  warn_of_gpus(config);
  RETURN_IF_ERROR(report_plan(config, flags, *prepared, trace.trace(), ranks));
  RunOutput output(config.train.output_dir, config.disk_directories());
  RETURN_IF_ERROR(take_folder(output, flags.resume, ranks));
  auto storage =
      open_storage(config.memory.io, nearest_directory(config.disk_directories().front()));
  RETURN_IF_ERROR(ranks.agree(storage.status()));
  log_info("io: " + (*storage)->describe());
  auto started = Trainer::start(config, flags.resume, storage->get(), trace.trace(), &ranks);
  auto records = started.ok() ? begin_records(config, flags.resume, **started, output, ranks)
                              : Result<TrainRecords>(started.status());
  if (ranks.broken()) output.leave_to_next_start();
  RETURN_IF_ERROR(records.status());
  begins.end();
  TrainRun run(config, output, started.take(), records.take(), &trace, ranks);
  return run.run(flags.resume);
}

}  // namespace pagoda
