// The subcommands other than `train`.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/bytes.h"
#include "base/log.h"
#include "base/stop_signal.h"
#include "base/terminal_text.h"
#include "checkpoint/init_folder.h"
#include "checkpoint/upcycle.h"
#include "commands/commands.h"
#include "commands/forward_run.h"
#include "commands/gguf_export.h"
#include "report/model_card.h"
#include "report/report.h"
#include "train/batch.h"
#include "train/model_input.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

// Storage for reading a run's checkpoints; small files and one page at a time.
Result<std::unique_ptr<Storage>> open_reader(const std::string& run) {
  return open_storage(IoKind::kThreads, run);
}

// The text as rows, in the order of the file. `scratch`: a folder for its tokens.
Result<Dataset> open_text(const RunConfig& config, const ModelInput& model,
                          const std::string& scratch) {
  ASSIGN_OR_RETURN(const ExampleOptions examples,
                   config.example_options(model.folder->directory()));
  ASSIGN_OR_RETURN(TokenFile tokens,
                   TokenFile::open_or_create(scratch + "/eval_tokens.bin", {config.data.eval_path},
                                             model.tokenizer, examples));
  Dataset::Options order;
  order.sequence_len = config.data.sequence_len;
  order.order = RowOrder::kInOrder;
  order.too_long = config.data.too_long;
  return Dataset::create(std::move(tokens), order);
}

// Loss of the model on the first `batches` batches of the text.
Result<LossSum> evaluate_text(const RunConfig& config, const EvalFlags& flags, ForwardRun& run,
                              const Dataset& dataset, int64_t batches) {
  LossSum total;
  ASSIGN_OR_RETURN(SessionOptions options, run.options(flags.routing));
  const int64_t rows = config.train.micro_batch_tokens / config.data.sequence_len;
  const int64_t counted = std::min(batches, div_ceil(dataset.num_rows(), rows));
  run.deal_to_devices(options,
                      [&](SessionOptions& dealt, int64_t most) { dealt.deal_text(counted, most); });
  RETURN_IF_ERROR(run.in_session(options, [&](Session& session) -> Status {
    Ledger ledger(false, 0, std::vector<int64_t>(session.table().records.size(), 0));
    StepRunner runner(&session, &ledger, 1.0);
    ASSIGN_OR_RETURN(total,
                     evaluate_rows(runner, dataset, batches, options.size.microbatches, rows));
    return Status();
  }));
  return total;
}

// The line, or the JSON object; it says when rows were left out.
std::string loss_text(double loss, double tokens, int64_t rows, int64_t all_rows, bool json) {
  if (json) {
    return strf("{\"loss\": %.17g, \"tokens\": %.0f, \"rows\": %lld, \"rows_of_text\": %lld}\n",
                loss, tokens, (long long)rows, (long long)all_rows);
  }
  const std::string part = strf("; the first %lld of the text's %lld rows, as "
                                "train.eval_batches says",
                                (long long)rows, (long long)all_rows);
  return strf("loss %.6f over %.0f tokens", loss, tokens) + (rows < all_rows ? part : "") + "\n";
}

}  // namespace

Status run_eval(const RunConfig& config, const EvalFlags& flags, RankGroup& ranks) {
  ForwardRun run(config, ranks);
  RETURN_IF_ERROR(run.open(flags.checkpoint));
  ASSIGN_OR_RETURN(const std::string scratch, run.scratch());
  auto dataset = open_text(config, run.model(), scratch);
  RETURN_IF_ERROR(ranks.agree(dataset.status()));
  RETURN_IF_ERROR(run.check_alike("held-out data", dataset->file().fingerprint()));
  const int64_t batch_rows = config.train.micro_batch_tokens / config.data.sequence_len;
  const int64_t batches =
      flags.whole_text ? div_ceil(dataset->num_rows(), batch_rows) : config.train.eval_batches;
  ASSIGN_OR_RETURN(const LossSum total, evaluate_text(config, flags, run, *dataset, batches));
  const double loss = total.loss / total.weight;
  if (!std::isfinite(loss)) {
    return Status(Exit::kDiverged, "the loss is not finite; the weights have diverged: take an "
                                   "earlier checkpoint, or train in fp32");
  }
  if (!run.leads()) return Status();
  const int64_t rows = std::min(dataset->num_rows(), batches * batch_rows);
  print_result(loss_text(loss, total.weight, rows, dataset->num_rows(), flags.json));
  return Status();
}

Result<std::string> checkpoint_settings(const std::string& run) {
  ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, open_reader(run));
  ASSIGN_OR_RETURN(const FoundCheckpoint found, find_checkpoint(run, -1, storage.get()));
  return found.checkpoint.resolved_config;
}

Status run_init(const InitFlags& flags) {
  install_stop_signals();
  InitOptions options;
  options.config_path = flags.config_path;
  options.tokenizer_directory = flags.tokenizer_path;
  options.out_directory = flags.output_dir;
  options.seed = static_cast<uint64_t>(flags.seed);
  RETURN_IF_ERROR(init_folder(options));
  log_info(strf("wrote %s", flags.output_dir.c_str()));
  return Status();
}

Status run_upcycle(const UpcycleFlags& flags) {
  install_stop_signals();
  UpcycleOptions options;
  options.dense_directory = flags.dense_path;
  options.num_experts = flags.experts;
  options.experts_per_token = flags.top_k;
  options.noise = flags.noise;
  options.seed = static_cast<uint64_t>(flags.seed);
  options.out_directory = flags.output_dir;
  RETURN_IF_ERROR(upcycle_folder(options));
  log_info(strf("wrote %s", flags.output_dir.c_str()));
  return Status();
}

namespace {

Status say_exported(const ModelInput& model, const ExportFlags& flags) {
  log_info(strf("wrote step %lld of %s to %s", (long long)model.step, flags.checkpoint.c_str(),
                flags.output_dir.c_str()));
  return Status();
}

}  // namespace

Status run_export(const ExportFlags& flags) {
  install_stop_signals();
  ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, open_reader(flags.checkpoint));
  ASSIGN_OR_RETURN(const ModelInput model, open_model(flags.model_path, flags.checkpoint,
                                                      flags.step, storage.get()));
  if (flags.gguf) {
    RETURN_IF_ERROR(export_gguf(*model.weights, *model.folder, flags.output_dir, *flags.gguf));
    return say_exported(model, flags);
  }
  ASSIGN_OR_RETURN(const FoundCheckpoint found,
                   find_checkpoint(flags.checkpoint, model.step, storage.get()));
  ModelCard card;
  card.model_path = found.checkpoint.model_path;
  card.resolved_config = found.checkpoint.resolved_config;
  card.step = model.step;
  take_held_out_loss(flags.checkpoint + "/metrics.jsonl", card);
  RETURN_IF_ERROR(export_weights(*model.weights, *model.folder, flags.output_dir, flags.dtype,
                                 model_card_text(card)));
  return say_exported(model, flags);
}

Status run_ckpt_list(const CkptFlags& flags) {
  ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, open_reader(flags.run));
  RETURN_IF_ERROR(require_run(flags.run, storage.get()));
  const CheckpointDirectory directory(storage.get(), flags.run + "/checkpoints");
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, directory.steps());
  if (steps.empty()) {
    return Status(Exit::kNoCheckpoint, strf("no checkpoint in %s", directory.path().c_str()));
  }
  std::string json;
  for (int64_t step : steps) {
    const auto checkpoint = directory.load(step);
    const Status status =
        checkpoint.ok() ? state_format_of(checkpoint.value()).status() : checkpoint.status();
    const char* state = status.ok()                          ? "ok"
                        : status.code() == Exit::kMismatch ? "another format"
                        : status.code() == Exit::kNoInput  ? "not readable"
                                                           : "damaged";
    const auto pages = static_cast<long long>(checkpoint.ok() ? checkpoint.value().num_pages() : 0);
    if (flags.json) {
      json += strf("%s{\"step\": %lld, \"state\": \"%s\", \"pages\": %lld}",
                   json.empty() ? "" : ", ", (long long)step, state, pages);
    } else {
      std::printf("step %lld  %s  %lld pages\n", (long long)step, state, pages);
    }
  }
  if (flags.json) std::printf("[%s]\n", json.c_str());
  return Status();
}

Status run_ckpt_verify(const CkptFlags& flags) {
  ASSIGN_OR_RETURN(std::unique_ptr<Storage> storage, open_reader(flags.run));
  ASSIGN_OR_RETURN(const OpenCheckpoint open, open_checkpoint(flags.run, -1, storage.get()));
  const auto step = static_cast<long long>(open.found.checkpoint.step);
  const auto pages = static_cast<long long>(open.found.checkpoint.num_pages());
  const Status verified = open.pages->verify();
  if (!open.found.damaged.empty()) {
    const Status& newest = open.found.damaged.front();
    const std::string outcome =
        verified.ok() ? strf("all of its %lld pages are good", pages) : verified.message();
    return Status(newest.code(), strf("%s; the newest valid one is step %lld: %s",
                                      newest.message().c_str(), step, outcome.c_str()));
  }
  RETURN_IF_ERROR(verified);
  if (flags.json) {
    std::printf("{\"step\": %lld, \"pages\": %lld, \"ok\": true}\n", step, pages);
  } else {
    std::printf("step %lld: %lld pages verified\n", step, pages);
  }
  return Status();
}

}  // namespace pagoda
