#include "train/model_input.h"

#include <algorithm>

#include "base/log.h"

namespace pagoda {
namespace {

Result<ModelInput> open_folder(const std::string& path) {
  ASSIGN_OR_RETURN(HfFolder opened, HfFolder::open(path));
  auto folder = std::make_unique<HfFolder>(std::move(opened));
  ASSIGN_OR_RETURN(Tokenizer tokenizer, open_tokenizer(*folder));
  auto weights = weights_of_folder(*folder);
  return ModelInput{std::move(folder), std::move(tokenizer), std::move(weights)};
}

}  // namespace

Status require_run(const std::string& run, Storage* storage) {
  if (storage->exists(run)) return Status();
  return Status(Exit::kNoInput, strf("%s: no such folder; name the train.output_dir of a run",
                                     printable(run).c_str()));
}

Result<FoundCheckpoint> find_checkpoint(const std::string& run, int64_t step, Storage* storage) {
  RETURN_IF_ERROR(require_run(run, storage));
  const CheckpointDirectory directory(storage, run + "/checkpoints");
  if (step < 0) return directory.newest();
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, directory.steps());
  if (std::find(steps.begin(), steps.end(), step) != steps.end()) {
    ASSIGN_OR_RETURN(RunCheckpoint checkpoint, directory.load(step));
    return FoundCheckpoint{std::move(checkpoint), {}};
  }
  std::string there;
  for (const int64_t s : steps) there += (there.empty() ? "" : ", ") + std::to_string(s);
  return Status(Exit::kNoInput,
                strf("%s has no step %lld; there is: %s", printable(directory.path()).c_str(),
                     (long long)step, there.empty() ? "none" : there.c_str()));
}

Result<OpenCheckpoint> open_checkpoint(const std::string& run, int64_t step, Storage* storage) {
  OpenCheckpoint open;
  ASSIGN_OR_RETURN(open.found, find_checkpoint(run, step, storage));
  for (;;) {
    // Stores are closed only after the next ones are open, so that no run comes in between.
    ASSIGN_OR_RETURN(open.pages, CheckpointPages::open(open.found.checkpoint, storage));
    // The run may have saved, and ended, after its manifest was read and before its lock was free.
    ASSIGN_OR_RETURN(FoundCheckpoint now, find_checkpoint(run, step, storage));
    const RunCheckpoint& then = open.found.checkpoint;
    const bool same = now.checkpoint.step == then.step && now.checkpoint.stores == then.stores;
    open.found = std::move(now);
    if (same) return open;
  }
}

Result<Tokenizer> open_tokenizer(const HfFolder& folder) {
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::open(folder.directory()));
  if (tokenizer.vocab_size() <= folder.config().vocab_size) return tokenizer;
  return Status(Exit::kBadData,
                strf("%s: the tokenizer has %lld ids, the model %lld; use the model's own "
                     "tokenizer.json", folder.directory().c_str(),
                     (long long)tokenizer.vocab_size(), (long long)folder.config().vocab_size));
}

Result<ModelInput> open_model(const std::string& model_path, const std::string& run, int64_t step,
                              Storage* storage) {
  if (run.empty()) return open_folder(model_path);
  ASSIGN_OR_RETURN(OpenCheckpoint open, open_checkpoint(run, step, storage));
  for (const Status& damaged : open.found.damaged) log_warn(damaged.message());
  const RunCheckpoint& checkpoint = open.found.checkpoint;
  ASSIGN_OR_RETURN(ModelInput input,
                   open_folder(model_path.empty() ? checkpoint.model_path : model_path));
  const bool same_config = input.folder->config().json == checkpoint.model_json;
  if (!same_config || input.tokenizer.identity() != checkpoint.tokenizer) {
    return Status(Exit::kMismatch,
                  strf("%s has another %s than the run started from; name the folder it started "
                       "from, or restore it",
                       printable(input.folder->directory()).c_str(),
                       same_config ? "tokenizer" : "config.json"));
  }
  ASSIGN_OR_RETURN(input.weights, weights_of_checkpoint(checkpoint, std::move(open.pages)));
  input.step = checkpoint.step;
  return input;
}

}  // namespace pagoda
