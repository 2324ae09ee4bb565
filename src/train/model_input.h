// The model that a subcommand reads without training it: a folder, or what a run saved.
#pragma once

#include <memory>
#include <string>

#include "tokenizer/tokenizer.h"
#include "train/weights.h"

namespace pagoda {

// kNoInput when there is no such folder.
Status require_run(const std::string& run, Storage* storage);

// One checkpoint of a run's folder; step -1: the newest valid one.
Result<RunCheckpoint> find_checkpoint(const std::string& run, int64_t step, Storage* storage);

// The folder a run started from, where it was then or, if not empty, at `now`. kMismatch when that
// is another model.
Result<HfFolder> open_initial_folder(const RunCheckpoint& checkpoint, const std::string& now);

// The folder's tokenizer; kBadData when it has ids that the model has not.
Result<Tokenizer> open_tokenizer(const HfFolder& folder);

struct ModelInput {
  std::unique_ptr<HfFolder> folder;  // config and tokenizer; weights too unless it is a run
  std::unique_ptr<WeightSource> weights;
};

// The folder model.path, or with `run` not empty that run's newest checkpoint; then model.path, if
// named, is where the folder it started from is now. `storage` is not owned.
Result<ModelInput> open_model(const std::string& model_path, const std::string& run,
                              Storage* storage);

}  // namespace pagoda
