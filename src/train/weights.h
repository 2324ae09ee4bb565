// Reads weights from a Hugging Face folder or a run's checkpoint and writes them into a session or
// an exported folder. Values travel as fp32, a record at a time. A session whose experts have parts
// (model/hidden_parts.h) takes them from whole experts; folders and checkpoints give whole ones.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "checkpoint/hf_folder.h"
#include "train/checkpoint_pages.h"
#include "train/session.h"

namespace pagoda {

class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual const ModelConfig& config() const = 0;
  virtual std::string name() const = 0;  // "DIR", for messages
  // The record's tensors behind each other, num_elements values.
  virtual Status read_record(int64_t record, float* out) = 0;
};

// `folder` must outlive the source.
std::unique_ptr<WeightSource> weights_of_folder(const HfFolder& folder);

// The fp32 master weights of a checkpoint, of whole experts.
Result<std::unique_ptr<WeightSource>> weights_of_checkpoint(const RunCheckpoint& checkpoint,
                                                            std::unique_ptr<CheckpointPages> pages);

// The fp32 masters of a session that trains, without pending updates, while it stands between
// steps. It must outlive the source. REQUIRES of a record that is read: its home is this rank.
std::unique_ptr<WeightSource> weights_of_session(Session& session);

// Gives every record of a fresh session its content: weights, master weights, zero moments. A value
// that is finite but beyond the range of the session's dtype is kBadData, with tensor and element.
// With several ranks each fills the records that are at home there; an error of one is one of all.
Status load_weights(WeightSource& source, Session& session);

// Writes `source` as a Hugging Face folder with the layout, the tokenizer and, unless `dtype` is
// given, the dtypes of `original`, and with this README.md; "": without one.
Status export_weights(WeightSource& source, const HfFolder& original, const std::string& directory,
                      std::optional<DType> dtype = std::nullopt, const std::string& readme = "");

// Writes the masters of a session in the same way. REQUIRES: the session trains, stands between
// steps and has no pending updates. With several ranks each of them calls it: rank 0 writes the
// folder, and the others send it what is at home with them, a record at a time. Returns the same
// everywhere: the errors of export_weights(), and of reading a page.
Status export_session(Session& session, const HfFolder& original, const std::string& directory,
                      const std::string& readme);

}  // namespace pagoda
