// The model that a subcommand reads without training it: a folder, or what a run saved.
#pragma once

#include <memory>
#include <string>

#include "tokenizer/tokenizer.h"
#include "train/weights.h"

namespace pagoda {

// kNoInput when there is no such folder.
Status require_run(const std::string& run, Storage* storage);

// Finds one checkpoint of a run's folder; step -1: the newest valid one. kNoInput when there is no
// such step. A run that is still going may save another one and overwrite this one's pages at any
// time.
Result<FoundCheckpoint> find_checkpoint(const std::string& run, int64_t step, Storage* storage);

// Also opens its stores, locked for reading: no run can save while they are open. Waits for a run
// that holds a lock, as Storage::open() does.
struct OpenCheckpoint {
  FoundCheckpoint found;
  std::unique_ptr<CheckpointPages> pages;
};
Result<OpenCheckpoint> open_checkpoint(const std::string& run, int64_t step, Storage* storage);

// The folder's tokenizer; kBadData when it has ids that the model has not.
Result<Tokenizer> open_tokenizer(const HfFolder& folder);

struct ModelInput {
  std::unique_ptr<HfFolder> folder;  // config and tokenizer; weights too unless it is a run
  Tokenizer tokenizer;
  std::unique_ptr<WeightSource> weights;
  int64_t step = -1;  // the run's step; -1: not from a run
};

// Opens the folder model.path, or, if `run` is not empty, a checkpoint of that run (`step`: see
// find_checkpoint). In that case model.path, if not empty, is where the folder that the run started
// from is now; kMismatch when it has another config.json or tokenizer by now. `storage` is not
// owned.
Result<ModelInput> open_model(const std::string& model_path, const std::string& run, int64_t step,
                              Storage* storage);

}  // namespace pagoda
