#include "checkpoint/hf_folder.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/testing/files.h"
#include "tests/testing/model_folder.h"

namespace pagoda {
namespace {

constexpr const char* kShards[] = {"model-00001-of-00002.safetensors",
                                   "model-00002-of-00002.safetensors"};

// Tensors of a tiny model, dealt to two shards in turn.
class ShardedFolder {
 public:
  ShardedFolder() {
    put_file(dir_.file("config.json"), tiny_config().dump());
    Model halves[2];
    int n = 0;
    for (const auto& [name, raw] : random_model(table_of(tiny_config()), kMixed)) {
      halves[n % 2][name] = raw;
      index_["weight_map"][name] = kShards[n % 2];
      ++n;
    }
    for (int i = 0; i < 2; ++i) write_safetensors(dir_.file(kShards[i]), halves[i]);
  }
  const std::string& path() const { return dir_.path(); }
  const Json& index() const { return index_; }
  void put_index(std::string_view text) const {
    put_file(dir_.file("model.safetensors.index.json"), std::string(text));
  }

 private:
  TempDir dir_;
  Json index_ = {{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
};

const ShardedFolder& folder() {
  static const ShardedFolder the_folder;
  return the_folder;
}

}  // namespace

void fuzz_index(std::string_view input) {
  folder().put_index(input);
  auto opened = HfFolder::open(folder().path());
  if (!opened.ok()) return;
  std::vector<float> values(static_cast<size_t>(opened->table().tensors[0].num_elements()));
  CHECK(opened->read_tensor(0, values.data()).ok());
}

std::vector<std::string> index_seeds() {
  Json other = folder().index();
  other.erase("metadata");
  other["weight_map"].begin().value() = "../" + std::string(kShards[0]);
  return {folder().index().dump(), folder().index().dump(2), other.dump(), R"({"weight_map":{}})"};
}

}  // namespace pagoda
