#include "train/trainer.h"

#include <cmath>

#include "base/file.h"
#include "base/log.h"
#include "config/computed_with.h"
#include "optim/schedule.h"
#include "tokenizer/text_stream.h"
#include "train/batch.h"
#include "train/model_input.h"
#include "train/prompts.h"
#include "train/start_mark.h"

namespace pagoda {
namespace {

// A run with this many steps in a row without an update has diverged.
constexpr int64_t kMostSkipped = 8;

Result<Dataset> open_text(const std::string& token_path, const std::vector<std::string>& texts,
                          const Tokenizer& tokenizer, const ExampleOptions& examples,
                          const Dataset::Options& options) {
  ASSIGN_OR_RETURN(TokenFile tokens,
                   TokenFile::open_or_create(token_path, texts, tokenizer, examples));
  return Dataset::create(std::move(tokens), options);
}

// Runs that were saved before kernel sets had names are judged by their build alone.
std::string hash_text(const RunConfig& config) {
  return strf("%016llx", (unsigned long long)config.config_hash());
}

// With train.shards as a number, which resolved.toml says.
RunConfig with_sums(RunConfig config) {
  config.train.shards = config.sums().shards;
  return config;
}

void warn_of_other_sums(const RunCheckpoint& saved, const RunConfig& config) {
  const int64_t before = RunConfig::saved_shards(saved.resolved_config);
  const int64_t shards = config.sums().shards;
  if (before == shards) return;
  log_warn(
      strf("step %lld was computed with train.shards = %lld, this goes on with %lld: from "
           "step %lld on, the bits are those of another run",
           (long long)saved.step, (long long)before, (long long)shards, (long long)saved.step + 1));
}

void warn_of_other_kernels(const RunCheckpoint& saved, const RunConfig& config) {
  const std::string build = build_with(config.gpus()), set = kernel_set_with(config.gpus());
  const bool named = !saved.kernel_set.empty();
  if (saved.build == build && (!named || saved.kernel_set == set)) return;
  log_warn(strf("step %lld was saved with kernel set %s (\"%s\"), this is %s (\"%s\"): the run "
                "goes on, and from step %lld on its bits may differ from those it would have had",
                (long long)saved.step, named ? saved.kernel_set.c_str() : "unknown",
                saved.build.c_str(), set.c_str(), build.c_str(), (long long)saved.step + 1));
}

bool is_inside(const std::string& directory, const std::string& output_dir) {
  return directory.starts_with(output_dir + "/");
}

Result<std::vector<TokenIds>> encode_samples(const RunConfig& config, const ModelConfig& model,
                                             const Tokenizer& tokenizer, const ChatTemplate& chat) {
  const RunConfig::Sample& sample = config.sample;
  ASSIGN_OR_RETURN(std::vector<TokenIds> prompts,
                   encode_prompts(sample.prompts, tokenizer, sample.chat ? &chat : nullptr));
  RETURN_IF_ERROR(check_lengths(prompts, sample.max_new_tokens, model, "sample.max_new_tokens"));
  return prompts;
}

}  // namespace

SessionOptions session_options(const RunConfig& config, const std::vector<TokenIds>& prompts) {
  SessionOptions options{run_setup(config)};
  options.size.cache = cache_for(prompts, config.sample.max_new_tokens);
  options.gpus = config.gpus();
  options.size.on_gpu = !options.gpus.empty();
  options.optimizer_threads = config.optimizer_threads();
  options.device_bytes = config.device_budget();
  options.host_bytes = config.host_bytes();
  options.directories = config.disk_directories();
  options.page_slots = config.train.save_steps > 0 ? 2 : 1;
  options.trace_routing = !config.train.trace_routing.empty();
  return options;
}

Result<std::vector<TokenIds>> sample_prompts(const RunConfig& config, const HfFolder& folder) {
  if (config.sample.prompts.empty()) return std::vector<TokenIds>();
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, open_tokenizer(folder));
  ASSIGN_OR_RETURN(
      const ChatTemplate chat,
      find_chat_template(folder.directory(), config.data.chat_template, config.data.chat_date));
  return encode_samples(config, folder.config(), tokenizer, chat);
}

CheckpointDirectory Trainer::checkpoints() const {
  return CheckpointDirectory(storage_, config_.train.output_dir + "/checkpoints");
}

Result<std::unique_ptr<Trainer>> Trainer::start(const RunConfig& config, bool resume,
                                                Storage* storage, Trace* trace) {
  std::unique_ptr<Trainer> trainer(new Trainer(with_sums(config), storage, trace));
  if (resume) {
    RETURN_IF_ERROR(trainer->checkpoints().sync());
    ASSIGN_OR_RETURN(FoundCheckpoint found, trainer->checkpoints().newest());
    for (const Status& damaged : found.damaged) log_warn(damaged.message());
    RunCheckpoint& checkpoint = found.checkpoint;
    RETURN_IF_ERROR(trainer->open_inputs());
    RETURN_IF_ERROR(trainer->check_resumable(checkpoint));
    warn_of_other_kernels(checkpoint, config);
    warn_of_other_sums(checkpoint, trainer->config_);
    RETURN_IF_ERROR(trainer->continue_from(std::move(checkpoint)));
    // A killed run may have committed this step without removing the one before.
    trainer->checkpoints().remove_older(trainer->saved_step());
  } else {
    RETURN_IF_ERROR(trainer->announce());
    RETURN_IF_ERROR(trainer->open_inputs());
    const Status started = trainer->start_fresh();
    if (!started.ok()) trainer->remove_store();
    RETURN_IF_ERROR(started);
  }
  return trainer;
}

Status Trainer::open_inputs() {
  ASSIGN_OR_RETURN(HfFolder folder, HfFolder::open(config_.model.path));
  folder_ = std::make_unique<HfFolder>(std::move(folder));
  RETURN_IF_ERROR(folder_->config().check_document_len(config_.data.sequence_len));
  ASSIGN_OR_RETURN(tokenizer_, open_tokenizer(*folder_));
  ASSIGN_OR_RETURN(const ExampleOptions examples, config_.example_options(config_.model.path));
  ASSIGN_OR_RETURN(prompts_,
                   encode_samples(config_, folder_->config(), *tokenizer_, examples.chat));
  if (can_sample()) {
    ASSIGN_OR_RETURN(stop_tokens_, stop_tokens(*tokenizer_, *folder_,
                                               config_.sample.chat ? &examples.chat : nullptr));
  }
  Dataset::Options options;
  options.sequence_len = config_.data.sequence_len;
  options.seed = static_cast<uint64_t>(config_.train.seed);
  options.too_long = config_.data.too_long;
  const std::string& out = config_.train.output_dir;
  ASSIGN_OR_RETURN(Dataset data, open_text(out + "/tokens.bin", config_.data.path, *tokenizer_,
                                           examples, options));
  data_ = std::make_unique<Dataset>(std::move(data));
  if (config_.data.eval_path.empty()) return Status();
  options.order = RowOrder::kInOrder;
  ASSIGN_OR_RETURN(Dataset eval, open_text(out + "/eval_tokens.bin", {config_.data.eval_path},
                                           *tokenizer_, examples, options));
  eval_data_ = std::make_unique<Dataset>(std::move(eval));
  return Status();
}

Status Trainer::start_fresh() {
  SessionOptions options = session_options(config_, prompts_);
  options.file_name = checkpoint_.file_name;
  options.trace = trace_;
  checkpoint_.config_hash = hash_text(config_);
  checkpoint_.resolved_config = config_.to_toml();
  checkpoint_.model_json = folder_->config().json;
  checkpoint_.model_path = absolute_path(config_.model.path);
  checkpoint_.tokenizer = tokenizer_->identity();
  checkpoint_.data_fingerprint = data_->file().fingerprint();
  checkpoint_.build = build_with(config_.gpus());
  checkpoint_.kernel_set = kernel_set_with(config_.gpus());
  checkpoint_.page_slots = options.page_slots;
  checkpoint_.microbatches = options.size.microbatches;
  checkpoint_.microbatch_tokens = options.size.microbatch_tokens;
  checkpoint_.dtype = dtype_name(options.size.dtype);
  checkpoint_.state_format = stored_state_name(options.adam.state);
  ASSIGN_OR_RETURN(session_, Session::create(folder_->config(), options, storage_));
  checkpoint_.store_id = session_->file().store_id();
  checkpoint_.record_steps.assign(session_->table().records.size(), 0);
  const auto source = weights_of_folder(*folder_);
  RETURN_IF_ERROR(load_weights(*source, *session_));
  make_runner();
  if (config_.train.save_steps == 0) return Status();
  RETURN_IF_ERROR(save());
  // From here on a fresh run is a resumed one.
  runner_.reset();
  session_.reset();
  ASSIGN_OR_RETURN(RunCheckpoint saved, checkpoints().load(0));
  return continue_from(std::move(saved));
}

// Writes STARTING, so that if this start is killed the next one in this folder knows what it left
// (report/run_output.h).
Status Trainer::announce() {
  checkpoint_.directories = config_.disk_directories();
  checkpoint_.file_name = new_page_file_name();
  const std::string& folder = config_.train.output_dir;
  const std::string text = start_mark_text(
      folder, PageFile::paths({checkpoint_.directories, checkpoint_.file_name}));
  RETURN_IF_ERROR(make_durable_directory(storage_, folder));
  RETURN_IF_ERROR(storage_->write_file(folder + "/" + kStartMark, text));
  return storage_->sync_directory(folder);
}

void Trainer::remove_store() {
  runner_.reset();
  session_.reset();
  const Status removed =
      PageFile::remove(storage_, {checkpoint_.directories, checkpoint_.file_name});
  if (!removed.ok()) log_warn(removed.message());
}

Status Trainer::continue_from(RunCheckpoint checkpoint) {
  // Directories that are named say where the store is now; it may have moved.
  if (!config_.memory.disk.empty()) {
    checkpoint.directories = config_.disk_directories();
  } else if (!is_inside(checkpoint.directories.front(), config_.train.output_dir)) {
    config_.memory.disk = checkpoint.directories;
  }
  SessionOptions options = session_options(config_, prompts_);
  options.directories = checkpoint.directories;
  options.file_name = checkpoint.file_name;
  options.page_slots = static_cast<int>(checkpoint.page_slots);
  options.trace = trace_;
  ASSIGN_OR_RETURN(session_, Session::open(folder_->config(), options, storage_,
                                           checkpoint.store_id, checkpoint.pages));
  if (config_.train.save_steps > 0) RETURN_IF_ERROR(checkpoints().reserve(checkpoint));
  saved_step_ = checkpoint.step;
  checkpoint_ = std::move(checkpoint);
  checkpoint_.config_hash = hash_text(config_);  // train.shards may be other than before
  checkpoint_.resolved_config = config_.to_toml();
  checkpoint_.build = build_with(config_.gpus());
  checkpoint_.kernel_set = kernel_set_with(config_.gpus());
  checkpoint_.model_path = absolute_path(config_.model.path);  // it may have moved
  make_runner();
  return Status();
}

void Trainer::make_runner() {
  ledger_ = std::make_unique<Ledger>(config_.optim.untouched == UntouchedKind::kSkip,
                                     checkpoint_.updates, checkpoint_.record_steps);
  runner_ = std::make_unique<StepRunner>(session_.get(), ledger_.get(), config_.optim.clip_norm);
}

Status Trainer::check_resumable(const RunCheckpoint& checkpoint) const {
  auto mismatch = [&](const std::string& what, const char* remedy) {
    return Status(Exit::kMismatch, strf("%s step %lld: %s; the checkpoint is untouched: %s",
                                        checkpoints().path().c_str(), (long long)checkpoint.step,
                                        what.c_str(), remedy));
  };
  RunConfig as_saved = config_;
  as_saved.train.shards = RunConfig::saved_shards(checkpoint.resolved_config);
  if (checkpoint.config_hash != hash_text(as_saved)) {
    const std::string what = as_saved.difference_from(checkpoint.resolved_config);
    return mismatch(what.empty() ? "saved by a build with other options" : what,
                    "resume with the settings of its resolved.toml, or start in a new "
                    "train.output_dir");
  }
  if (checkpoint.data_fingerprint != data_->file().fingerprint()) {
    return mismatch("the training data or the model's tokenizer have changed since it was saved",
                    "restore them, or start in a new train.output_dir");
  }
  if (checkpoint.model_json != folder_->config().json) {
    return mismatch("model.path has another config.json than it was started from",
                    "restore the folder, or start in a new train.output_dir");
  }
  RETURN_IF_ERROR(state_format_of(checkpoint).status());
  if (checkpoint.record_steps.size() != TensorTable::make(folder_->config()).records.size()) {
    return mismatch("it has another number of records than the model", "resume from an export");
  }
  // A copy of the folder must not write into the store that the original's checkpoint refers to.
  const std::string& folder = config_.train.output_dir;
  if (!is_inside(checkpoint.directories.front(), folder) &&
      checkpoint.run_folder != absolute_path(folder) &&
      storage_->exists(checkpoint.run_folder + "/checkpoints")) {
    return mismatch("this is a copy of " + checkpoint.run_folder + ", whose pages are in " +
                        checkpoint.directories.front(),
                    "resume that, or export it and start anew");
  }
  return Status();
}

double Trainer::learning_rate() const {
  return config_.optim.learning_rate *
         schedule_factor(config_.optim.schedule, checkpoint_.step, config_.optim.warmup_steps,
                         config_.train.steps);
}

Result<StepResult> Trainer::step() {
  const int64_t rows = config_.train.micro_batch_tokens / config_.data.sequence_len;
  ASSIGN_OR_RETURN(const StepBatch batch,
                   make_batch(*data_, static_cast<uint64_t>(checkpoint_.rows_consumed),
                              config_.micro_batches(), rows));
  ASSIGN_OR_RETURN(StepResult result, runner_->train(batch, learning_rate()));
  ++checkpoint_.step;
  loss_is_finite_ = std::isfinite(result.loss);
  if (loss_is_finite_) weights_are_spoilt_ = false;
  checkpoint_.rows_consumed += config_.micro_batches() * rows;
  skipped_in_a_row_ = result.skipped ? skipped_in_a_row_ + 1 : 0;
  if (skipped_in_a_row_ >= kMostSkipped) {
    return Status(
        Exit::kDiverged,
        strf("step %lld: %lld steps in a row had non-finite gradients and were skipped; "
             "the last checkpoint (step %lld) is intact: export it, and train from that "
             "in a new run with a lower optim.learning_rate",
             (long long)checkpoint_.step, (long long)skipped_in_a_row_, (long long)saved_step_));
  }
  return result;
}

Result<double> Trainer::evaluate() {
  RETURN_IF_ERROR(runner_->drain());
  const int64_t rows = config_.train.micro_batch_tokens / config_.data.sequence_len;
  ASSIGN_OR_RETURN(const LossSum total,
                   evaluate_rows(*runner_, *eval_data_, config_.train.eval_batches,
                                 config_.micro_batches(), rows));
  const double loss = total.loss / total.weight;
  weights_are_spoilt_ = !std::isfinite(loss);
  return loss;
}

Result<std::vector<Sample>> Trainer::sample() {
  RETURN_IF_ERROR(runner_->drain());
  PassRunner runner(session_.get());
  GenerationSettings settings;
  settings.max_new_tokens = config_.sample.max_new_tokens;
  settings.stop_tokens = stop_tokens_;
  ASSIGN_OR_RETURN(const std::vector<Continuation> continuations,
                   generate(runner, prompts_, settings));
  std::vector<Sample> samples;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const TokenIds& tokens = continuations[i].tokens;
    samples.push_back({config_.sample.prompts[i],
                       continuation_text(*tokenizer_, prompts_[i], tokens),
                       static_cast<int64_t>(tokens.size()), continuations[i].ended});
  }
  return samples;
}

// A skipped step may mean that the one before it spoilt the weights, and only a good step shows
// that it did not. After the last step there is none; then a finite loss must do.
bool Trainer::weights_are_trusted() const {
  if (weights_are_spoilt_) return false;
  const bool last = checkpoint_.step == config_.train.steps;
  return skipped_in_a_row_ == 0 || (last && skipped_in_a_row_ == 1 && loss_is_finite_);
}

Status Trainer::save() {
  if (saved_step_ == checkpoint_.step) return Status();
  if (!weights_are_trusted()) {
    return Status(
        Exit::kDiverged,
        strf("step %lld was not saved because its loss or gradients are not finite; the last "
             "checkpoint (step %lld) is intact: export it, and train from that in a new "
             "run with a lower optim.learning_rate",
             (long long)checkpoint_.step, (long long)saved_step_));
  }
  RETURN_IF_ERROR(runner_->drain());
  RETURN_IF_ERROR(session_->pager().flush());
  RETURN_IF_ERROR(session_->file().sync());
  checkpoint_.updates = ledger_->updates();
  checkpoint_.record_steps = ledger_->steps_of_record();
  checkpoint_.pages = session_->file().versions();
  RETURN_IF_ERROR(checkpoints().commit(checkpoint_));
  session_->file().committed();
  checkpoints().remove_older(checkpoint_.step);
  const Status reserved = checkpoints().reserve(checkpoint_);
  if (!reserved.ok()) log_warn(reserved.message());
  checkpoint_.pages.clear();
  saved_step_ = checkpoint_.step;
  return Status();
}

}  // namespace pagoda
