#include "train/model_input.h"

#include "base/log.h"

namespace pagoda {

Status require_run(const std::string& run, Storage* storage) {
  if (storage->exists(run)) return Status();
  return Status(Exit::kNoInput, strf("%s: no such folder; name the train.output_dir of a run",
                                     printable(run).c_str()));
}

Result<RunCheckpoint> find_checkpoint(const std::string& run, int64_t step, Storage* storage) {
  RETURN_IF_ERROR(require_run(run, storage));
  const CheckpointDirectory directory(storage, run + "/checkpoints");
  return step < 0 ? directory.newest() : directory.load(step);
}

Result<HfFolder> open_initial_folder(const RunCheckpoint& checkpoint, const std::string& now) {
  const std::string& path = now.empty() ? checkpoint.model_path : now;
  ASSIGN_OR_RETURN(HfFolder folder, HfFolder::open(path));
  if (folder.config().json == checkpoint.model_json) return folder;
  return Status(Exit::kMismatch,
                strf("%s has another config.json than the run started from; name the folder it "
                     "started from", path.c_str()));
}

Result<Tokenizer> open_tokenizer(const HfFolder& folder) {
  ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::open(folder.directory()));
  if (tokenizer.vocab_size() <= folder.config().vocab_size) return tokenizer;
  return Status(Exit::kBadData,
                strf("%s: the tokenizer has %lld ids, the model %lld; use the model's own "
                     "tokenizer.json", folder.directory().c_str(),
                     (long long)tokenizer.vocab_size(), (long long)folder.config().vocab_size));
}

Result<ModelInput> open_model(const std::string& model_path, const std::string& run,
                              Storage* storage) {
  ModelInput input;
  if (run.empty()) {
    ASSIGN_OR_RETURN(HfFolder opened, HfFolder::open(model_path));
    input.folder = std::make_unique<HfFolder>(std::move(opened));
    input.weights = weights_of_folder(*input.folder);
    return input;
  }
  ASSIGN_OR_RETURN(const RunCheckpoint checkpoint, find_checkpoint(run, -1, storage));
  ASSIGN_OR_RETURN(HfFolder opened, open_initial_folder(checkpoint, model_path));
  input.folder = std::make_unique<HfFolder>(std::move(opened));
  ASSIGN_OR_RETURN(input.weights, weights_of_checkpoint(checkpoint, storage));
  return input;
}

}  // namespace pagoda
