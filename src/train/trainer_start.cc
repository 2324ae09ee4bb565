// How a trainer comes to its first step: inputs, stores, a checkpoint to go on from.
#include <xxhash.h>

#include <algorithm>
#include <sstream>

#include "base/file.h"
#include "base/log.h"
#include "base/number_text.h"
#include "checkpoint/manifest.h"
#include "checkpoint/start_mark.h"
#include "config/computed_with.h"
#include "model/hidden_parts.h"
#include "parallel/host_name.h"
#include "train/model_input.h"
#include "train/page_move.h"
#include "train/process_memory.h"
#include "train/prompts.h"
#include "train/trainer.h"

namespace pagoda {
namespace {

Result<Dataset> open_text(const std::string& token_path, const std::vector<std::string>& texts,
                          const Tokenizer& tokenizer, const ExampleOptions& examples,
                          const Dataset::Options& options) {
  ASSIGN_OR_RETURN(TokenFile tokens,
                   TokenFile::open_or_create(token_path, texts, tokenizer, examples));
  return Dataset::create(std::move(tokens), options);
}

// 32 hex digits.
std::string hash_of(const std::string& bytes) {
  const XXH128_hash_t h = XXH3_128bits(bytes.data(), bytes.size());
  return strf("%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
}

std::string hash_text(const RunConfig& config) {
  return strf("%016llx", (unsigned long long)config.config_hash());
}

// With train.shards as a number, which resolved.toml says.
RunConfig with_sums(RunConfig config) {
  config.train.shards = config.sums().shards;
  return config;
}

void warn_of_other_sums(const RunCheckpoint& saved, const RunConfig& config) {
  const int64_t before = RunConfig::saved_sums(saved.resolved_config).shards;
  const int64_t shards = config.sums().shards;
  if (before == shards) return;
  log_warn(
      strf("step %lld was computed with train.shards = %lld, this goes on with %lld: from "
           "step %lld on, the bits are those of another run",
           (long long)saved.step, (long long)before, (long long)shards, (long long)saved.step + 1));
}

// Runs that were saved before kernel sets had names are judged by their build alone.
void warn_of_other_kernels(const RunCheckpoint& saved, const RunConfig& config) {
  const std::string build = build_with(config.gpus()), set = kernel_set_with(config.gpus());
  const bool named = !saved.kernel_set.empty();
  if (saved.build == build && (!named || saved.kernel_set == set)) return;
  log_warn(
      strf("step %lld was saved with kernel set %s (\"%s\"), this is %s (\"%s\"): the run "
           "goes on, and from step %lld on its bits may differ from those it would have had",
           (long long)saved.step, named ? saved.kernel_set.c_str() : "unknown", saved.build.c_str(),
           set.c_str(), build.c_str(), (long long)saved.step + 1));
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

Result<std::vector<TokenIds>> sample_prompts(const RunConfig& config, const HfFolder& folder) {
  if (config.sample.prompts.empty()) return std::vector<TokenIds>();
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, open_tokenizer(folder));
  ASSIGN_OR_RETURN(
      const ChatTemplate chat,
      find_chat_template(folder.directory(), config.data.chat_template, config.data.chat_date));
  return encode_samples(config, folder.config(), tokenizer, chat);
}

Result<std::unique_ptr<Trainer>> Trainer::start(const RunConfig& config, bool resume,
                                                Storage* storage, Trace* trace, RankGroup* ranks) {
  std::unique_ptr<Trainer> trainer(new Trainer(with_sums(config), storage, trace, ranks));
  RETURN_IF_ERROR(resume ? trainer->resume() : trainer->begin());
  return trainer;
}

Status Trainer::begin() {
  RETURN_IF_ERROR(announce(kStartMark, {}));
  RETURN_IF_ERROR(open_all_inputs());
  const Status started = start_fresh();
  // Once a rank is lost nobody knows whether rank 0 has saved step 0: what is there stays for the
  // next start to go on from, or to remove.
  if (!started.ok() && !ranks_.broken()) remove_store();
  return started;
}

Status Trainer::resume() {
  ASSIGN_OR_RETURN(RunCheckpoint checkpoint, of_rank_0(find_newest()));
  RETURN_IF_ERROR(open_all_inputs());
  RETURN_IF_ERROR(ranks_.agree(check_resumable(checkpoint)));
  if (leads()) {
    warn_of_other_kernels(checkpoint, config_);
    warn_of_other_sums(checkpoint, config_);
  }
  RETURN_IF_ERROR(remove_moved(checkpoint));
  ASSIGN_OR_RETURN(SessionOptions options, joined_options());
  RETURN_IF_ERROR(continue_from(std::move(checkpoint), std::move(options)));
  // A killed run may have committed this step without removing the one before.
  if (leads()) checkpoints().remove_older(saved_step());
  return Status();
}

Result<RunCheckpoint> Trainer::find_newest() const {
  if (!leads()) return RunCheckpoint();
  RETURN_IF_ERROR(checkpoints().sync());
  ASSIGN_OR_RETURN(FoundCheckpoint found, checkpoints().newest());
  for (const Status& damaged : found.damaged) log_warn(damaged.message());
  return std::move(found.checkpoint);
}

// What rank 0 found, on all ranks.
Result<RunCheckpoint> Trainer::of_rank_0(Result<RunCheckpoint> found) const {
  if (ranks_.alone()) return found;
  std::string text;
  if (leads() && found.ok()) {
    const CheckpointFiles files = encode_checkpoint(found.value(), config_.train.output_dir);
    text = strf("%lld %zu ", (long long)found.value().step, files.manifest.size()) +
           files.manifest + files.pages;
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks_.agree(found.status(), text));
  auto received = leads() ? std::move(found) : decode_sent(all[0]);
  RETURN_IF_ERROR(ranks_.agree(received.status()));
  return received;
}

Result<RunCheckpoint> Trainer::decode_sent(const std::string& text) const {
  int64_t step = 0;
  size_t length = 0;
  NumberReader in(text);
  const bool good = in.read(step, int64_t{0}, INT64_MAX) && in.read(length, size_t{0}, text.size());
  if (!good || in.rest().size() < length) {
    return Status(Exit::kIoError,
                  "rank 0 sent what is no checkpoint; see that all ranks run the "
                  "same program");
  }
  const CheckpointFiles files = {std::string(in.rest().substr(0, length)),
                                 std::string(in.rest().substr(length))};
  return decode_checkpoint(files, step,
                           checkpoints().path() + strf("/step-%08lld", (long long)step),
                           config_.train.output_dir);
}

// Others find what rank 0 has made, where they see the run's folder.
Status Trainer::open_all_inputs() {
  RETURN_IF_ERROR(ranks_.agree(leads() ? open_inputs() : Status()));
  if (ranks_.alone()) return Status();
  Status opened;
  if (!leads()) {
    opened = make_durable_directory(storage_, config_.train.output_dir);
    if (opened.ok()) opened = open_inputs();
  }
  RETURN_IF_ERROR(ranks_.agree(opened));
  return check_alike();
}

// Compares what all ranks must have alike with what rank 0 has.
Status Trainer::check_alike() const {
  const std::string kernels = kernel_set_with(config_.gpus());
  const std::vector<std::pair<const char*, std::string>> own = {
      {"config.json", folder_->config().json},
      {"tokenizer", tokenizer_->identity()},
      {"training data", data_->file().fingerprint()},
      {"held-out data", eval_data_ ? eval_data_->file().fingerprint() : ""},
      {"kernel set", kernels},
  };
  std::string text;
  for (const auto& [what, value] : own) text += hash_of(value) + "\n";
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks_.agree(Status(), text));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream here(all[rank]), there(all[0]);
    for (const auto& [what, value] : own) {
      std::string mine, of_rank_0;
      std::getline(here, mine);
      std::getline(there, of_rank_0);
      if (mine == of_rank_0) continue;
      if (&value == &own.back().second) {
        if (leads()) {
          log_warn(
              strf("rank %zu computes with another kernel set than rank 0 (%s): bits may "
                   "differ from those of a run with one set",
                   rank, kernels.c_str()));
        }
        continue;
      }
      return Status(Exit::kMismatch,
                    strf("rank %zu has another %s than rank 0; nothing was changed: give all ranks "
                         "the same model and data",
                         rank, what));
    }
  }
  return Status();
}

Status Trainer::open_inputs() {
  ASSIGN_OR_RETURN(HfFolder folder, HfFolder::open(config_.model.path));
  folder_ = std::make_unique<HfFolder>(std::move(folder));
  ASSIGN_OR_RETURN(model_, with_hidden_parts(folder_->config(), config_.hidden_shares()));
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

Result<SessionOptions> Trainer::joined_options() const {
  SessionOptions options = session_options(config_, prompts_);
  RETURN_IF_ERROR(set_frozen(config_, model_, options));
  options.trace = trace_;
  options.ranks = &ranks_;
  RETURN_IF_ERROR(join_ranks(config_, ranks_, options));
  RETURN_IF_ERROR(choose_table_ranks(model_, options));
  return options;
}

Status Trainer::start_fresh() {
  ASSIGN_OR_RETURN(SessionOptions options, joined_options());
  options.file_name = store_.file_name;
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
  ASSIGN_OR_RETURN(session_, Session::create(model_, options, storage_));
  checkpoint_.record_steps.assign(session_->table().records.size(), 0);
  const auto source = weights_of_folder(*folder_);
  RETURN_IF_ERROR(load_weights(*source, *session_));
  make_runner();
  if (config_.train.save_steps == 0) return Status();
  RETURN_IF_ERROR(save());
  // From here on a fresh run is a resumed one.
  runner_.reset();
  session_.reset();
  ASSIGN_OR_RETURN(RunCheckpoint saved,
                   of_rank_0(leads() ? checkpoints().load(0) : RunCheckpoint()));
  ASSIGN_OR_RETURN(options, joined_options());
  return continue_from(std::move(saved), std::move(options));
}

// Names a new store for each rank, and writes a mark of them in the run's folder, with `left`, the
// files that these take the place of: if this start is killed, the next one in this folder knows
// what it left (report/run_output.h for STARTING, remove_moved() for MOVING).
Status Trainer::announce(const char* mark, const std::vector<PageFile::Options>& left) {
  store_.host = host_name();
  store_.directories = config_.disk_directories();
  store_.file_name = new_page_file_name();
  const std::string& folder = config_.train.output_dir;
  std::vector<std::string> paths = PageFile::paths({store_.directories, store_.file_name});
  for (const PageFile::Options& options : left) {
    for (const std::string& path : PageFile::paths(options)) paths.push_back(path);
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   ranks_.agree(Status(), start_mark_text(folder, paths,
                                                          ranks_.alone() ? "" : store_.host)));
  if (!leads()) return ranks_.agree(Status());
  std::string text;
  for (const std::string& of_rank : all) text += of_rank;
  Status written = make_durable_directory(storage_, folder);
  if (written.ok()) written = storage_->write_file(folder + "/" + mark, text);
  if (written.ok()) written = storage_->sync_directory(folder);
  return ranks_.agree(written);
}

void Trainer::remove_store() {
  runner_.reset();
  session_.reset();
  const Status removed = PageFile::remove(storage_, {store_.directories, store_.file_name});
  if (!removed.ok()) log_warn(removed.message());
}

Status Trainer::continue_from(RunCheckpoint checkpoint, SessionOptions options) {
  options.page_slots = static_cast<int>(checkpoint.page_slots);
  const RunShape shape = make_run_shape(model_shape(model_), options);
  Status opened(Exit::kMismatch, "pages are not at home");
  SessionOptions as_saved = options;
  as_saved.homes = homes_of(checkpoint, shape, ranks_.size());
  const bool at_home = !as_saved.homes.empty();
  if (at_home) opened = open_store(checkpoint, std::move(as_saved));
  // What a rank keeps beside its own pages, and pages between stages, may need more room than when
  // its store was made, and its store may be on the machine of another rank now.
  const bool moves = opened.code() == Exit::kMismatch || opened.code() == Exit::kNoCheckpoint;
  const bool fits = ranks_.alone() && at_home && !shape.stages.several();
  if (moves && !fits) opened = move_pages(checkpoint, std::move(options));
  RETURN_IF_ERROR(opened);
  if (config_.train.save_steps > 0) {
    RETURN_IF_ERROR(ranks_.agree(leads() ? checkpoints().reserve(checkpoint) : Status()));
  }
  saved_step_ = checkpoint.step;
  checkpoint_ = std::move(checkpoint);
  checkpoint_.stores.clear();
  checkpoint_.config_hash = hash_text(config_);  // train.shards may be other than before
  checkpoint_.resolved_config = config_.to_toml();
  checkpoint_.build = build_with(config_.gpus());
  checkpoint_.kernel_set = kernel_set_with(config_.gpus());
  checkpoint_.model_path = absolute_path(config_.model.path);  // it may have moved
  make_runner();
  return Status();
}

// Those of the stores that are not where the checkpoint says may have come here with their disks.
void Trainer::look_on_own_disks(RunCheckpoint& checkpoint) const {
  for (CheckpointStore& store : checkpoint.stores) {
    CheckpointStore here = store;
    here.directories = config_.disk_directories();
    const bool is_there = check_store_is_there(store, checkpoint.step, storage_).ok();
    if (!is_there && check_store_is_there(here, checkpoint.step, storage_).ok()) store = here;
  }
}

// Goes on in the store that this rank had.
Status Trainer::open_store(const RunCheckpoint& checkpoint, SessionOptions options) {
  const CheckpointStore& found = checkpoint.stores[static_cast<size_t>(ranks_.rank())];
  store_ = {host_name(), found.directories, found.file_name, "", {}};
  // Directories that are named say where the store is now; it may have moved.
  if (!config_.memory.disk.empty()) {
    store_.directories = config_.disk_directories();
  } else if (!is_inside(found.directories.front(), config_.train.output_dir)) {
    config_.memory.disk = found.directories;
  }
  options.directories = store_.directories;
  options.file_name = store_.file_name;
  CheckpointStore now = found;
  now.directories = store_.directories;
  RETURN_IF_ERROR(ranks_.agree(check_store_is_there(now, checkpoint.step, storage_)));
  ASSIGN_OR_RETURN(session_, Session::open(model_, options, storage_, found.store_id, found.pages));
  return Status();
}

// Goes on in new stores. The old ones are those of the saved step until there is another.
Status Trainer::move_pages(RunCheckpoint checkpoint, SessionOptions options) {
  if (!config_.memory.disk.empty()) look_on_own_disks(checkpoint);
  auto pages = CheckpointPages::open_some(checkpoint, storage_);
  RETURN_IF_ERROR(ranks_.agree(pages.status()));
  ASSIGN_OR_RETURN(const std::vector<int> readers,
                   store_readers(checkpoint, *pages.value(), ranks_));
  std::vector<PageFile::Options> left;
  for (size_t s = 0; s < readers.size(); ++s) {
    if (readers[s] != ranks_.rank()) continue;
    left.push_back({checkpoint.stores[s].directories, checkpoint.stores[s].file_name});
  }
  RETURN_IF_ERROR(announce(kMoveMark, left));
  options.directories = store_.directories;
  options.file_name = store_.file_name;
  auto session = Session::create(model_, options, storage_);
  const Status copied =
      session.ok() ? copy_pages(*pages.value(), readers, *session.value()) : session.status();
  if (copied.ok()) {
    session_ = session.take();
    left_ = std::move(left);
    moved_ = true;
  } else {
    if (session.ok()) session = Status(copied);  // closes its files
    remove_store();
  }
  return copied;
}

// Removes what a run left that was killed between its move to new stores and its next checkpoint,
// or just behind that: of the old and the new ones those that the checkpoint does not name.
Status Trainer::remove_moved(const RunCheckpoint& checkpoint) {
  const std::string& folder = config_.train.output_dir;
  const std::string mark = folder + "/" + kMoveMark;
  Result<std::string> text = std::string();
  if (leads() && storage_->exists(mark)) text = storage_->read_file(mark, kMostMarkBytes);
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   ranks_.agree(text.status(), text.ok() ? text.value() : ""));
  // These names are this run's alone, wherever its disks are now.
  std::vector<std::string> kept;
  for (const CheckpointStore& store : checkpoint.stores) kept.push_back(store.file_name);
  std::vector<MarkedFile> marked = marked_page_files(all[0]);
  std::erase_if(marked, [&](const MarkedFile& file) {
    const std::string name = file.path.substr(file.path.rfind('/') + 1);
    return std::ranges::count(kept, name.substr(0, name.rfind('.'))) > 0;
  });
  ASSIGN_OR_RETURN(const std::vector<std::string> hosts, ranks_.agree(Status(), host_name()));
  if (leads()) warn_of_files_elsewhere(marked, hosts);
  for (const MarkedFile& file : marked) {
    const std::string path =
        absolute_path(file.path.starts_with("/") ? file.path : folder + "/" + file.path);
    const std::string directory = path.substr(0, path.rfind('/'));
    const std::vector<std::string> disks = config_.disk_directories();
    const bool ours = std::ranges::any_of(
        disks, [&](const std::string& disk) { return absolute_path(disk) == directory; });
    if (!ours && path_inside(path, folder).empty()) continue;
    const Status removed = storage_->remove_file(path);
    if (!removed.ok()) log_warn(removed.message());
  }
  return ranks_.agree(leads() && !all[0].empty() ? storage_->remove_file(mark) : Status());
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
  const SumShape saved = RunConfig::saved_sums(checkpoint.resolved_config);
  as_saved.train.shards = saved.shards;
  const bool by_shards = config_.train.expert_shards > 1 && saved.expert_shards > 1;
  if (by_shards) as_saved.train.expert_shards = saved.expert_shards;
  // A build with more options hashes more; a run that had none of them had their defaults.
  const bool same = checkpoint.config_hash == hash_text(as_saved);
  const std::string what = same ? "" : as_saved.difference_from(checkpoint.resolved_config);
  if (!what.empty()) {
    return mismatch(what,
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
  if (checkpoint.record_steps.size() != TensorTable::make(model_).records.size()) {
    return mismatch("it has another number of records than the model", "resume from an export");
  }
  // A copy of the folder must not write into the stores that the original's checkpoint refers to.
  const std::string& folder = config_.train.output_dir;
  const bool copy = checkpoint.run_folder != absolute_path(folder) &&
                    storage_->exists(checkpoint.run_folder + "/checkpoints");
  for (const CheckpointStore& store : checkpoint.stores) {
    if (!copy || is_inside(store.directories.front(), folder)) continue;
    return mismatch("this is a copy of " + checkpoint.run_folder + ", whose pages are in " +
                        store.directories.front(),
                    "resume that, or export it and start anew");
  }
  return Status();
}

}  // namespace pagoda
