// The model that a subcommand reads without training it: a folder, or what a run saved.
#pragma once

#include <memory>
#include <string>

#include "tokenizer/tokenizer.h"
#include "train/weights.h"

namespace pagoda {

// kNoInput when there is no such folder.
Status require_run(const std::string& run, Storage* storage);

// One checkpoint of a run's folder; step -1: the newest valid one. kNoInput when there is no such
// step. A run that goes on may save another and overwrite this one's pages at any time.
Result<FoundCheckpoint> find_checkpoint(const std::string& run, int64_t step, Storage* storage);

// The same with its page file, locked for reading: no run can save as long as that is open. Waits
// for a run that has it, as Storage::open().
struct OpenCheckpoint {
  FoundCheckpoint found;
  std::unique_ptr<PageFile> file;
};
Result<OpenCheckpoint> open_checkpoint(const std::string& run, int64_t step, Storage* storage);

// The folder's tokenizer; kBadData when it has ids that the model has not.
Result<Tokenizer> open_tokenizer(const HfFolder& folder);

struct ModelInput {
  std::unique_ptr<HfFolder> folder;  // config and tokenizer; weights too unless it is a run
  Tokenizer tokenizer;
  std::unique_ptr<WeightSource> weights;
  int64_t step = -1;  // of the run; -1: it is none
};

// The folder model.path, or with `run` not empty a checkpoint of that run (`step` as
// find_checkpoint); then model.path, if not empty, is where the folder it started from is now.
// kMismatch when that has another config.json or tokenizer by now. `storage` is not owned.
Result<ModelInput> open_model(const std::string& model_path, const std::string& run, int64_t step,
                              Storage* storage);

}  // namespace pagoda
