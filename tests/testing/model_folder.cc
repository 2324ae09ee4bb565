#include "tests/testing/model_folder.h"

#include <filesystem>

#include "base/random.h"
#include "tests/testing/files.h"

namespace pagoda {
namespace {
constexpr uint64_t kSeed = 7;
}

TensorTable table_of(const Json& config) {
  auto parsed = ModelConfig::parse(config.dump(), "config");
  CHECK(parsed.ok(), "%s", parsed.status().message().c_str());
  return TensorTable::make(parsed.value());
}

Raw random_tensor(StoredDType dtype, std::vector<int64_t> shape, uint64_t key) {
  Raw raw{dtype, shape, {}};
  int64_t count = 1;
  for (int64_t dim : shape) count *= dim;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t r = philox(kSeed, RandomPurpose::kTest, key, static_cast<uint64_t>(i))[0];
    // Clearing a bit of the exponent keeps the value finite.
    const uint32_t bits = dtype == StoredDType::kF32 ? r & ~0x40000000u : r & 0xffffu & ~0x4000u;
    raw.bytes.append(reinterpret_cast<const char*>(&bits),
                     static_cast<size_t>(stored_bytes(dtype)));
  }
  return raw;
}

Model random_model(const TensorTable& table, const std::vector<StoredDType>& dtypes) {
  Model model;
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    model[table.tensors[t].name] =
        random_tensor(dtypes[t % dtypes.size()], table.tensors[t].shape, t);
  }
  return model;
}

void write_safetensors(const std::string& path, const Model& model) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const auto& [name, raw] : model) tensors.push_back({name, raw.dtype, raw.shape});
  auto writer = SafetensorsWriter::create(path, tensors);
  CHECK(writer.ok());
  for (const auto& [name, raw] : model) {
    CHECK(writer->append(raw.bytes.data(), static_cast<int64_t>(raw.bytes.size())).ok());
  }
  CHECK(writer->finish().ok());
}

Model fused(const TensorTable& table, const Model& model) {
  Model result;
  for (const StoredTensor& stored : stored_tensors(table, ExpertLayout::kFused)) {
    Raw& raw = result[stored.name];
    raw.shape = stored.shape;
    for (const int64_t part : stored.parts) {
      raw.dtype = model.at(table.tensors[part].name).dtype;
      raw.bytes += model.at(table.tensors[part].name).bytes;
    }
  }
  return result;
}

ModelFolderTest::ModelFolderTest() {
  std::filesystem::create_directory(in_);
  put_file(in_ + "/config.json", config_.dump(2));
}

void ModelFolderTest::write_shards(const Model& model) {
  const char* kNames[] = {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"};
  Model halves[2];
  index_ = {{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
  int n = 0;
  for (const auto& [name, raw] : model) {
    halves[n % 2][name] = raw;
    index_["weight_map"][name] = kNames[n % 2];
    ++n;
  }
  for (int i = 0; i < 2; ++i) write_safetensors(in_ + "/" + kNames[i], halves[i]);
  put_index();
}

void ModelFolderTest::put_index() {
  put_file(in_ + "/model.safetensors.index.json", index_.dump());
}

void ModelFolderTest::expect_refused(const std::vector<std::string>& parts) {
  const Status status = HfFolder::open(in_).status();
  ASSERT_FALSE(status.ok()) << "accepted, expected: " << parts.front();
  EXPECT_EQ(status.code(), Exit::kBadData) << status.message();
  for (const std::string& part : parts) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

void ModelFolderTest::export_folder(const HfFolder& source, const HfWriter::Options& options,
                                    size_t piece) {
  auto writer = HfWriter::create(options, source.table());
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  for (const int64_t t : writer->order()) {
    std::vector<float> values(static_cast<size_t>(source.table().tensors[t].num_elements()));
    ASSERT_TRUE(source.read_tensor(t, values.data()).ok());
    for (size_t at = 0; at < values.size(); at += piece) {
      const size_t count = std::min(piece, values.size() - at);
      const Status status = writer->append(t, values.data() + at, static_cast<int64_t>(count));
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }
  const Status status = writer->finish();
  ASSERT_TRUE(status.ok()) << status.message();
}

void ModelFolderTest::expect_holds(const std::string& directory, const Model& model) {
  size_t found = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    if (file.path().extension() != ".safetensors") continue;
    auto shard = SafetensorsFile::open(file.path());
    ASSERT_TRUE(shard.ok()) << shard.status().message();
    for (const SafetensorsEntry& entry : shard->entries()) {
      const Raw& raw = model.at(entry.name);
      std::string bytes(static_cast<size_t>(entry.bytes), '\0');
      ASSERT_TRUE(shard->read(entry, 0, bytes.data(), entry.bytes).ok());
      EXPECT_TRUE(bytes == raw.bytes) << entry.name << " differs";
      EXPECT_EQ(entry.dtype, safetensors_name(raw.dtype));
      EXPECT_EQ(entry.shape, raw.shape);
      ++found;
    }
  }
  EXPECT_EQ(found, model.size());
}

}  // namespace pagoda
