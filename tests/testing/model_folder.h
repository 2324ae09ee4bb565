// Tests of Hugging Face folders: a tiny model with random bytes for weights, a folder to read and
// one to write.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "checkpoint/hf_folder.h"
#include "checkpoint/hf_writer.h"
#include "model/json.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_config.h"

namespace pagoda {

// A tensor as a test wants it on disk.
struct Raw {
  StoredDType dtype = StoredDType::kBF16;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Model = std::map<std::string, Raw>;

inline const std::vector<StoredDType> kMixed = {StoredDType::kF32, StoredDType::kBF16,
                                                StoredDType::kF16};

TensorTable table_of(const Json& config);

// Random finite bit patterns of the dtype, not just rounded normals.
Raw random_tensor(StoredDType dtype, std::vector<int64_t> shape, uint64_t key);
// The table's tensors, which take the dtypes in turn.
Model random_model(const TensorTable& table, const std::vector<StoredDType>& dtypes);
// The same with experts stacked into two tensors a layer, as table tensors behind each other.
Model fused(const TensorTable& table, const Model& model);

void write_safetensors(const std::string& path, const Model& model);

// in_ holds config.json alone at first; out_ does not exist.
class ModelFolderTest : public testing::Test {
 protected:
  ModelFolderTest();
  // Two shards and their index, tensors dealt out alternately.
  void write_shards(const Model& model);
  void put_index();
  // Opening in_ is kBadData, and the line holds all parts.
  void expect_refused(const std::vector<std::string>& parts);
  // Writes the source's values, `piece` at a time.
  void export_folder(const HfFolder& source, const HfWriter::Options& options, size_t piece);
  // Each tensor's bytes of a folder equal the model's.
  void expect_holds(const std::string& directory, const Model& model);

  TempDir dir_;
  const Json config_ = tiny_config();
  const TensorTable table_ = table_of(config_);
  const std::string in_ = dir_.file("in"), out_ = dir_.file("out");
  Json index_;
};

}  // namespace pagoda
