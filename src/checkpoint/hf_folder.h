// A Hugging Face model folder, opened against the tensor table of its own config.json:
//   config.json
//   model.safetensors, or model.safetensors.index.json and the shards it names
// Opening checks everything but the values: each tensor of the table is present once, with its
// shape and as F32, BF16 or F16 (or as MXFP4 or fp8, if config.json says so), and the folder holds
// no other tensor but what Transformers ignores: the constants of rotary embeddings
// (*.rotary_emb.inv_freq), where word embeddings are tied an lm_head.weight that is the embedding
// byte for byte, and the layers that predict further tokens, of which all is kept as it is
// (kept()). So no expert can be left random and no weight be dropped in silence. Values are checked
// when they are read. Experts may have tensors of their own or fused ones, but not both.
//
// The folder is the user's, and its files may be links (those of the hub's cache are); what an
// index names must be a plain name in the folder. Only regular files are opened.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "checkpoint/safetensors.h"
#include "model/tensors.h"

namespace pagoda {

// A tensor that is not trained; an export gets its bytes.
struct KeptTensor {
  std::string name;
  StoredDType dtype = StoredDType::kBF16;
  std::vector<int64_t> shape;
  int64_t bytes = 0;
  size_t shard = 0;
};

// Reads are const and may run on any number of threads; each uses a few MiB of scratch.
class HfFolder {
 public:
  // Errors name file and tensor: kNoInput for an absent file, kBadData for the rest.
  static Result<HfFolder> open(const std::string& directory, ModelKind kind = ModelKind::kMoe);

  const std::string& directory() const { return directory_; }
  const ModelConfig& config() const { return config_; }
  const TensorTable& table() const { return table_; }
  // The stored type of each tensor, in table order. kBF16 for MXFP4, which it holds exactly, and
  // for fp8, whose products with their scales are rounded to it, as Transformers does.
  const std::vector<StoredDType>& dtypes() const { return dtypes_; }
  ExpertLayout layout() const { return layout_; }
  const std::vector<KeptTensor>& kept() const { return kept_; }

  // Values of a tensor as fp32 (the master weights), num_elements of them. A NaN or an infinity is
  // kBadData with the tensor's name and the element.
  Status read_tensor(int64_t tensor, float* out) const;
  // Reads `count` values from element `first` on.
  Status read_values(int64_t tensor, int64_t first, int64_t count, float* out) const;
  // Bytes [first, first + bytes) of a tensor of kept().
  Status read_kept(const KeptTensor& kept, int64_t first, void* out, int64_t bytes) const;

 private:
  struct Where {
    size_t shard = 0;
    size_t entry = 0;  // index into the shard's entries()
  };
  struct Place {
    Where where;
    int64_t first = 0;  // element of the entry that the tensor, or its block, begins at
    bool in_order = true;  // any elements can be read by themselves
    BlockOrder order;      // if not
    bool mxfp4 = false, fp8 = false;
    Where scales;      // if one of them
  };
  // A tensor that is not in the table.
  struct Other {
    size_t shard;
    const SafetensorsEntry* entry;
  };
  HfFolder() = default;
  Status open_shards();
  Status open_index(const std::string& index_path);
  Status choose_layout();
  Status match_table();
  Status check_others(const std::vector<Other>& others);
  bool is_of_next_token_layer(const std::string& name) const;
  Status keep(const Other& other);
  // Elements as the file has them, where a correction is one.
  Status read_stored(int64_t tensor, int64_t first, int64_t count, float* out) const;
  // Whether a tensor that is not in the table changes nothing.
  Result<bool> is_redundant(const SafetensorsFile& file, const SafetensorsEntry& entry) const;
  Status match_tensor(const StoredTensor& stored, bool scales, Where where);
  // Finds the scales of tensors in fp8 among others and takes them from there.
  Status match_fp8(std::vector<Other>& others);
  Status read_fp8(int64_t tensor, int64_t first, int64_t count, float* out) const;
  void place_parts(const StoredTensor& stored, Where where, Where scales);
  const SafetensorsEntry& entry_at(Where where) const {
    return shards_[where.shard].entries()[where.entry];
  }
  // `count` elements of the tensor's entry from `first` on, as the file has them.
  Status read_entry(int64_t tensor, int64_t first, int64_t count, float* out) const;
  // read_stored for a tensor that is not in order.
  Status read_turns(int64_t tensor, int64_t first, int64_t count, float* out) const;

  std::string directory_;
  ModelConfig config_;
  TensorTable table_;
  std::vector<SafetensorsFile> shards_;
  std::vector<Place> places_;  // in table order
  std::vector<StoredDType> dtypes_;
  std::vector<KeptTensor> kept_;
  ExpertLayout layout_ = ExpertLayout::kPerExpert;
};

}  // namespace pagoda
