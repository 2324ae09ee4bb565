// Writes a Hugging Face model folder that Transformers loads: weights in shards of at most 5 GB,
// then the index, the config and the files of the tokenizer.
//
// Tensors are dealt to shards in table order. Within a shard those of whole 4 KiB come first, so
// that, the header being padded too, each of them begins on a 4 KiB border and direct I/O can read
// it where it lies; the format allows no gaps behind the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/new_folder.h"
#include "checkpoint/hf_folder.h"

namespace pagoda {

class HfWriter {
 public:
  struct Options {
    std::string directory;            // created (0700), or empty
    std::string config_json;          // written as it is
    ExpertLayout layout = ExpertLayout::kPerExpert;
    std::vector<StoredDType> dtypes;  // of each tensor, in table order; one for parts of one tensor
    // Where generation_config.json and the tokenizer's files are copied from, if present; "": none.
    std::string companions_directory;
    // Its kept tensors are copied behind the others; nullptr: there are none. It must outlive the
    // writer.
    const HfFolder* kept_of = nullptr;
    int64_t shard_bytes = 5000000000;  // a larger tensor gets a shard of its own
  };
  // Options for exporting a model that came from `source`: companions and layout are the same.
  // Without `dtype` every tensor keeps its type and config.json is written byte for byte. Otherwise
  // all tensors but corrections and kept ones are `dtype`, and the config's dtype is set to it if
  // that changes any tensor. `source` must outlive the writer.
  static Result<Options> options_for(const std::string& directory, const HfFolder& source,
                                     std::optional<DType> dtype);

  // kCannotCreate when the directory holds anything, or its disk has no room for the weights. The
  // table must outlive the writer. An unfinished folder is removed with the writer. If the process
  // dies it has no config.json, so nothing takes it for a model.
  static Result<HfWriter> create(Options options, const TensorTable& table);

  // The bytes that create() asks the disk for.
  static int64_t needed_bytes(Options options, const TensorTable& table);

  // Every tensor of the table, in the order in which they must come.
  const std::vector<int64_t>& order() const { return order_; }
  // The next `count` values of `tensor`, which may come in pieces unless it is a correction. The
  // writer holds what takes turns until a block of the file is complete.
  // REQUIRES: that order, without gaps. A NaN or an infinity, or a value too large for F16, is
  // kDiverged and names the tensor; a stop that was asked for (base/stop_signal.h) is
  // exit_of_signal().
  Status append(int64_t tensor, const float* values, int64_t count);
  // For other files of the folder.
  NewFolder& folder() { return *folder_; }
  // REQUIRES: every tensor was written.
  Status finish();

 private:
  struct Shard {
    std::vector<StoredTensor> tensors;
    std::vector<KeptTensor> kept;  // behind those
    size_t end = 0;                // in order_
  };
  HfWriter(Options options, const TensorTable& table)
      : options_(std::move(options)), table_(&table) {}
  int64_t bytes_of(const StoredTensor& stored) const;
  void plan_shards();
  std::string shard_name(size_t shard) const;
  Status begin_shard();
  // The next values of the file, those of `tensor` from element `at` on.
  Status append_stored(int64_t tensor, const float* values, int64_t count, int64_t at);
  Status append_turn(int64_t tensor, const float* values, int64_t count);
  Status end_tensor();
  Status copy_kept();
  Status write_index();
  Status copy_companions();
  int64_t needed_bytes() const;

  Options options_;
  const TensorTable* table_;
  std::vector<Shard> shards_;
  std::vector<int64_t> order_;
  std::vector<std::optional<BlockOrder>> turns_;  // like order_; set for what is not in order
  std::vector<float> block_;  // of the file, being filled
  int64_t total_bytes_ = 0;
  size_t shard_ = 0;          // being written
  size_t next_ = 0;           // in order_, being written
  int64_t next_element_ = 0;  // its next element
  std::optional<NewFolder> folder_;  // set when create() ends
  std::optional<SafetensorsWriter> file_;
};

// The config text without "quantization_config": what is written is not quantised.
std::string config_unquantised(const std::string& config_json);

// The config text with its "dtype" or "torch_dtype" set (added as "torch_dtype" when it has
// neither); the order of keys is kept, and the text too when it says so already. `where` names it
// in errors.
Result<std::string> config_with_dtype(const std::string& config_json, StoredDType dtype,
                                      const std::string& where);

// Copies the tokenizer's files (tokenizer.json, vocab.json, ...) that `from` holds.
Status copy_tokenizer_files(const std::string& from, NewFolder& to);

}  // namespace pagoda
