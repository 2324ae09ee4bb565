#include "checkpoint/hf_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>

#include "base/random.h"
#include "base/stop_signal.h"
#include "checkpoint/hf_writer.h"
#include "tests/testing/files.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_config.h"
#include "train/weights.h"

namespace pagoda {
namespace {

constexpr uint64_t kSeed = 7;

// A tensor as a test wants it on disk.
struct Raw {
  StoredDType dtype = StoredDType::kBF16;
  std::vector<int64_t> shape;
  std::string bytes;
};
using Model = std::map<std::string, Raw>;

TensorTable table_of(const Json& config) {
  auto parsed = ModelConfig::parse(config.dump(), "config");
  CHECK(parsed.ok(), "%s", parsed.status().message().c_str());
  return TensorTable::make(parsed.value());
}

// Random finite bit patterns of the dtype, not just rounded normals.
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

Model random_model(const TensorTable& table, std::vector<StoredDType> dtypes) {
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

class Folder : public testing::Test {
 protected:
  Folder() {
    std::filesystem::create_directory(in_);
    put_file(in_ + "/config.json", config_.dump(2));
  }
  // Two shards and their index, tensors dealt out alternately.
  void write_shards(const Model& model) {
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
  void put_index() { put_file(in_ + "/model.safetensors.index.json", index_.dump()); }
  void expect_refused(const std::vector<std::string>& parts) {
    const Status status = HfFolder::open(in_).status();
    ASSERT_FALSE(status.ok()) << "accepted, expected: " << parts.front();
    EXPECT_EQ(status.code(), Exit::kBadData) << status.message();
    for (const std::string& part : parts) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
  void export_folder(const HfFolder& source, const HfWriter::Options& options, size_t piece) {
    auto writer = HfWriter::create(options, source.table());
    ASSERT_TRUE(writer.ok()) << writer.status().message();
    for (const int64_t t : writer->order()) {
      std::vector<float> values(static_cast<size_t>(source.table().tensors[t].num_elements()));
      ASSERT_TRUE(source.read_tensor(t, values.data()).ok());
      for (size_t at = 0; at < values.size(); at += piece) {
        const size_t count = std::min(piece, values.size() - at);
        const Status status =
            writer->append(t, values.data() + at, static_cast<int64_t>(count));
        ASSERT_TRUE(status.ok()) << status.message();
      }
    }
    const Status status = writer->finish();
    ASSERT_TRUE(status.ok()) << status.message();
  }
  // Each tensor's bytes of a folder equal the model's.
  void expect_holds(const std::string& directory, const Model& model) {
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

  TempDir dir_;
  const Json config_ = tiny_config();
  const TensorTable table_ = table_of(config_);
  const std::string in_ = dir_.file("in"), out_ = dir_.file("out");
  Json index_;
};

const std::vector<StoredDType> kMixed = {StoredDType::kF32, StoredDType::kBF16, StoredDType::kF16};

TEST_F(Folder, UntrainedExportIsByteExact) {
  for (const auto& dtypes : {std::vector<StoredDType>{StoredDType::kBF16},
                             std::vector<StoredDType>{StoredDType::kF32}, kMixed}) {
    std::filesystem::remove_all(out_);
    const Model model = random_model(table_, dtypes);
    write_safetensors(in_ + "/model.safetensors", model);
    auto folder = HfFolder::open(in_);
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
    ASSERT_TRUE(options.ok());
    export_folder(folder.value(), options.value(), 100);
    expect_holds(out_, model);
    EXPECT_EQ(get_file(out_ + "/config.json"), get_file(in_ + "/config.json"));
  }
}

TEST_F(Folder, ShardsInAndOutAreByteExact) {
  const Model model = random_model(table_, kMixed);
  write_shards(model);
  for (const char* name :
       {"tokenizer.json", "vocab.json", "merges.txt", "generation_config.json"}) {
    put_file(in_ + "/" + name, std::string("content of ") + name);
  }
  put_file(in_ + "/README.md", "not copied");
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
  ASSERT_TRUE(options.ok());
  options->shard_bytes = 4000;
  export_folder(folder.value(), options.value(), 1 << 20);
  expect_holds(out_, model);
  EXPECT_EQ(get_file(out_ + "/merges.txt"), "content of merges.txt");
  EXPECT_EQ(get_file(out_ + "/generation_config.json"), "content of generation_config.json");
  EXPECT_FALSE(std::filesystem::exists(out_ + "/README.md"));
  EXPECT_FALSE(std::filesystem::exists(out_ + "/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(out_ + "/model.safetensors.index.json"));
  int64_t total = 0, files = 0;
  for (const auto& [name, raw] : model) total += static_cast<int64_t>(raw.bytes.size());
  const Json index = Json::parse(get_file(out_ + "/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], total);
  for (const auto& file : std::filesystem::directory_iterator(out_)) {
    EXPECT_NE(file.path().extension(), ".tmp");
    files += file.path().extension() == ".safetensors";
  }
  EXPECT_GT(files, 3);
  auto again = HfFolder::open(out_);
  EXPECT_TRUE(again.ok()) << again.status().message();
}

TEST_F(Folder, ChangedDtypeIsSaidInTheConfig) {
  write_safetensors(in_ + "/model.safetensors", random_model(table_, {StoredDType::kBF16}));
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok());
  auto same = HfWriter::options_for(out_, folder.value(), DType::kBF16);
  EXPECT_EQ(same->config_json, folder->config().json);
  auto wider = HfWriter::options_for(out_, folder.value(), DType::kF32);
  Json expected = config_;
  expected["torch_dtype"] = "float32";
  EXPECT_EQ(Json::parse(wider->config_json), expected);
  auto five = config_with_dtype(R"({"z":1,"dtype":"bfloat16","a":2})", StoredDType::kF32, "f");
  EXPECT_EQ(five.value(), "{\n  \"z\": 1,\n  \"dtype\": \"float32\",\n  \"a\": 2\n}\n");
}

TEST_F(Folder, RecordWeightsAreTheRoundedMaster) {
  write_safetensors(in_ + "/model.safetensors", random_model(table_, kMixed));
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok());
  for (size_t r = 0; r < table_.records.size(); ++r) {
    const RecordSpec& record = table_.records[r];
    const auto count = static_cast<size_t>(record.num_elements);
    std::vector<float> f32(count), master(count);
    std::vector<bf16> weights(count);
    const auto index = static_cast<int64_t>(r);
    ASSERT_TRUE(folder->read_record_weights(index, DType::kF32, f32.data()).ok());
    ASSERT_TRUE(folder->read_record_weights(index, DType::kBF16, weights.data()).ok());
    for (int64_t t = record.first_tensor; t < record.first_tensor + record.num_tensors; ++t) {
      ASSERT_TRUE(folder->read_tensor(t, master.data() + table_.tensors[t].offset).ok());
    }
    for (size_t i = 0; i < count; ++i) {
      ASSERT_EQ(std::memcmp(&f32[i], &master[i], 4), 0) << record.name() << " element " << i;
      ASSERT_EQ(weights[i].bits, bf16_round_weight(master[i]).bits)
          << record.name() << " element " << i << " = " << master[i];
    }
  }
}

TEST_F(Folder, NamesWhatIsMissingUnusedOrMisshapen) {
  const Model good = random_model(table_, {StoredDType::kBF16});
  const std::string name = "model.layers.1.mlp.experts.2.down_proj.weight";
  const auto with = [&](const std::function<void(Model&)>& change) {
    Model model = good;
    change(model);
    write_safetensors(in_ + "/model.safetensors", model);
  };
  with([&](Model& m) { m.erase(name); });
  expect_refused({name, "is missing"});
  with([&](Model& m) { m.erase(name), m.erase("model.norm.weight"); });
  expect_refused({name, "is missing", "and 1 more"});
  with([&](Model& m) { m["model.layers.1.mlp.experts.3.up_proj.weight"] = m[name]; });
  expect_refused({"experts.3.up_proj.weight", "not part of the model", "model.safetensors"});
  with([&](Model& m) { std::swap(m[name].shape[0], m[name].shape[1]); });
  expect_refused({name, "has shape (12, 16)", "makes it (16, 12)"});
  with([&](Model& m) { m["model.norm.weight"].shape = {1, 16}; });
  expect_refused({"model.norm.weight", "(1, 16)"});
  with([](Model&) {});
  EXPECT_TRUE(HfFolder::open(in_).ok());
}

// What Transformers ignores, and nothing else.
TEST_F(Folder, TensorsThatChangeNothingArePassedOver) {
  Json config = config_;
  config["tie_word_embeddings"] = true;
  put_file(in_ + "/config.json", config.dump(2));
  const Model good = random_model(table_of(config), {StoredDType::kBF16});
  Model model = good;
  model["model.layers.0.self_attn.rotary_emb.inv_freq"] = random_tensor(StoredDType::kF32, {4}, 99);
  model["lm_head.weight"] = good.at("model.embed_tokens.weight");
  write_safetensors(in_ + "/model.safetensors", model);
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  ASSERT_TRUE(export_weights(*weights_of_folder(folder.value()), folder.value(), out_).ok());
  expect_holds(out_, good);
  Model other = model;
  other["lm_head.weight"].bytes.back() ^= 1;
  write_safetensors(in_ + "/model.safetensors", other);
  expect_refused({"\"lm_head.weight\" is not part of the model"});
  other = model;
  other["lm_head.weight"] = random_tensor(StoredDType::kF32, other["lm_head.weight"].shape, 98);
  write_safetensors(in_ + "/model.safetensors", other);
  expect_refused({"\"lm_head.weight\" is not part of the model"});
}

TEST_F(Folder, NamesAWrongDtype) {
  Json header = Json::object();
  int64_t end = 0;
  for (const TensorSpec& tensor : table_.tensors) {
    const bool odd = tensor.name == "model.norm.weight";
    const int64_t begin = end;
    end += tensor.num_elements() * (odd ? 1 : 2);
    header[tensor.name] = {{"dtype", odd ? "F8_E4M3" : "BF16"},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, end}}};
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  put_file(in_ + "/model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) +
                                           text + std::string(static_cast<size_t>(end), '\0'));
  expect_refused({"model.norm.weight", "F8_E4M3"});
}

TEST_F(Folder, NamesNonFiniteWeights) {
  const std::string name = "model.layers.1.mlp.gate.weight";
  for (const auto& [dtype, bits] : std::map<StoredDType, std::vector<uint32_t>>{
           {StoredDType::kF32, {0x7f800000u, 0xff800000u, 0x7fc00000u}},
           {StoredDType::kBF16, {0x7f80u, 0xffc1u}},
           {StoredDType::kF16, {0x7c00u, 0xfe00u}}}) {
    for (const uint32_t pattern : bits) {
      Model model = random_model(table_, {dtype});
      std::memcpy(model[name].bytes.data() + 5 * stored_bytes(dtype), &pattern,
                  static_cast<size_t>(stored_bytes(dtype)));
      write_safetensors(in_ + "/model.safetensors", model);
      auto folder = HfFolder::open(in_);
      ASSERT_TRUE(folder.ok()) << folder.status().message();
      std::vector<float> out(static_cast<size_t>(table_.records[table_.layer(1)].num_elements));
      const Status status = folder->read_record_weights(table_.layer(1), DType::kF32, out.data());
      EXPECT_EQ(status.code(), Exit::kBadData);
      EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("element 5"), std::string::npos) << status.message();
    }
  }
}

TEST_F(Folder, IndexAndShardsMustAgree) {
  const Model model = random_model(table_, {StoredDType::kBF16});
  const std::string name = "lm_head.weight";
  write_shards(model);
  ASSERT_TRUE(HfFolder::open(in_).ok());
  const Json good = index_;
  const std::string here = good["weight_map"][name];
  const std::string other = here == "model-00001-of-00002.safetensors"
                                ? "model-00002-of-00002.safetensors"
                                : "model-00001-of-00002.safetensors";
  index_["weight_map"][name] = other;
  put_index();
  expect_refused({name});
  index_ = good;
  index_["weight_map"].erase(name);
  put_index();
  expect_refused({name, "not said to be here"});
  index_ = good;
  index_["weight_map"]["model.extra"] = here;
  put_index();
  expect_refused({"model.extra", "where the index puts it"});
  index_ = Json::object();
  put_index();
  expect_refused({"weight_map"});
}

TEST_F(Folder, IndexCannotLeadOutOfTheFolder) {
  write_shards(random_model(table_, {StoredDType::kBF16}));
  const Json good = index_;
  for (const char* path : {"../secret.safetensors", "/etc/passwd", "a/b", "..", ".", "", ".hidden",
                           "line\nbreak", "nul\u0001"}) {
    index_ = good;
    index_["weight_map"]["lm_head.weight"] = path;
    put_index();
    expect_refused({"lm_head.weight", "plain file"});
  }
}

// As the hub's cache has it: every file is a link to a blob elsewhere.
TEST_F(Folder, FilesMayBeLinks) {
  const Model model = random_model(table_, kMixed);
  write_shards(model);
  const std::string blobs = dir_.file("blobs");
  std::filesystem::create_directory(blobs);
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::directory_iterator(in_)) files.push_back(file.path());
  for (const auto& file : files) {
    const std::string blob = "blob-" + file.filename().string();
    std::filesystem::rename(file, blobs + "/" + blob);
    std::filesystem::create_symlink("../blobs/" + blob, file);
  }
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
  export_folder(folder.value(), options.value(), 1000);
  expect_holds(out_, model);
  for (const auto& file : std::filesystem::directory_iterator(out_)) {
    EXPECT_FALSE(file.is_symlink()) << file.path();
  }
}

// Whatever stands where a file should: refused at once, by name.
TEST_F(Folder, NothingButRegularFilesIsRead) {
  write_shards(random_model(table_, {StoredDType::kBF16}));
  for (const char* name : {"config.json", "model.safetensors.index.json",
                           "model-00002-of-00002.safetensors"}) {
    const std::string path = in_ + "/" + name, kept = dir_.file("kept");
    std::filesystem::rename(path, kept);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    expect_refused({name, "not a regular file"});
    std::filesystem::remove(path);
    std::filesystem::create_symlink("/dev/zero", path);
    expect_refused({name, "not a regular file"});
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
    expect_refused({name, "not a regular file"});
    std::filesystem::remove(path);
    for (const char* target : {"nowhere", name}) {  // name: a link to itself
      std::filesystem::create_symlink(target, path);
      const Status status = HfFolder::open(in_).status();
      EXPECT_EQ(status.code(), Exit::kNoInput) << status.message();
      EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
      std::filesystem::remove(path);
    }
    std::filesystem::rename(kept, path);
  }
  EXPECT_TRUE(HfFolder::open(in_).ok());
}

// Experts stacked into two tensors a layer, as table tensors behind each other.
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

TEST_F(Folder, FusedExpertsAreReadAndWrittenBackFused) {
  const Model model = random_model(table_, {StoredDType::kBF16}), stacked = fused(table_, model);
  EXPECT_EQ(stacked.at("model.layers.1.mlp.experts.gate_up_proj").shape,
            (std::vector<int64_t>{3, 24, 16}));
  EXPECT_EQ(stacked.at("model.layers.1.mlp.experts.down_proj").shape,
            (std::vector<int64_t>{3, 16, 12}));
  EXPECT_EQ(stacked.size(), model.size() - 9 + 2);
  write_shards(stacked);
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_EQ(folder->layout(), ExpertLayout::kFused);
  for (size_t t = 0; t < table_.tensors.size(); ++t) {
    const Raw& raw = model.at(table_.tensors[t].name);
    std::vector<float> values(static_cast<size_t>(table_.tensors[t].num_elements()));
    ASSERT_TRUE(folder->read_tensor(static_cast<int64_t>(t), values.data()).ok());
    std::string back(raw.bytes.size(), '\0');
    float_to_stored(raw.dtype, values.data(), static_cast<int64_t>(values.size()), back.data());
    EXPECT_TRUE(back == raw.bytes) << table_.tensors[t].name;
  }
  auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
  options->shard_bytes = 3000;
  export_folder(folder.value(), options.value(), 77);
  expect_holds(out_, stacked);
}

TEST_F(Folder, NamesWhatIsWrongWithFusedExperts) {
  const Model model = random_model(table_, {StoredDType::kBF16});
  const std::string gate_up = "model.layers.1.mlp.experts.gate_up_proj";
  const std::string down = "model.layers.1.mlp.experts.down_proj";
  const std::string one = "model.layers.1.mlp.experts.2.down_proj.weight";
  const auto with = [&](const std::function<void(Model&)>& change) {
    Model stacked = fused(table_, model);
    change(stacked);
    write_safetensors(in_ + "/model.safetensors", stacked);
  };
  with([&](Model& m) { m[one] = model.at(one); });
  expect_refused({"mixes two layouts", one, "experts."});
  with([&](Model& m) { m.erase(down), m[one] = model.at(one); });
  expect_refused({"mixes two layouts", one, gate_up});
  with([&](Model& m) { m.erase(down); });
  expect_refused({down, "is missing"});
  with([&](Model& m) { m[gate_up].shape = {3, 16, 24}; });
  expect_refused({gate_up, "has shape (3, 16, 24)", "makes it (3, 24, 16)"});
  // Element 1 of expert 2's up projection, counted in the fused tensor.
  const uint16_t nan = 0x7fc0;
  const int64_t element = (2 * 24 + 12) * 16 + 1;
  with([&](Model& m) { std::memcpy(m[gate_up].bytes.data() + 2 * element, &nan, 2); });
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  const int64_t expert = table_.expert(1, 2);
  std::vector<float> values(static_cast<size_t>(table_.records[expert].num_elements));
  const Status status = folder->read_record_weights(expert, DType::kF32, values.data());
  EXPECT_EQ(status.code(), Exit::kBadData);
  EXPECT_NE(status.message().find(gate_up), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(strf("element %lld", (long long)element)), std::string::npos)
      << status.message();
}

// Tensors of whole 4 KiB come first and begin on such borders.
TEST_F(Folder, LargeTensorsBeginOnBorders) {
  Json config = config_;
  config["moe_intermediate_size"] = 128;  // experts of 16 x 128 bf16 values: 4 KiB
  put_file(in_ + "/config.json", config.dump());
  const TensorTable table = table_of(config);
  const Model model = random_model(table, {StoredDType::kBF16});
  write_safetensors(in_ + "/model.safetensors", model);
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
  export_folder(folder.value(), options.value(), 1 << 20);
  expect_holds(out_, model);
  auto file = SafetensorsFile::open(out_ + "/model.safetensors");
  ASSERT_TRUE(file.ok());
  int64_t aligned = 0;
  for (const SafetensorsEntry& entry : file->entries()) {
    if (entry.bytes % 4096 != 0) continue;
    EXPECT_EQ(entry.offset % 4096, 0) << entry.name;
    ++aligned;
  }
  EXPECT_EQ(aligned, 9);
}

// What Transformers wrote comes back with the same tensors and the same config.
class RoundTrip : public Folder, public testing::WithParamInterface<const char*> {
 protected:
  static Model model_of(const std::string& directory) {
    Model model;
    for (const auto& path : std::filesystem::directory_iterator(directory)) {
      const std::string name = path.path().filename();
      if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
      auto file = SafetensorsFile::open(path.path());
      CHECK(file.ok(), "%s", file.status().message().c_str());
      for (const SafetensorsEntry& entry : file->entries()) {
        Raw& raw = model[entry.name];
        raw = {*stored_dtype_of(entry.dtype), entry.shape,
               std::string(static_cast<size_t>(entry.bytes), '\0')};
        CHECK(file->read(entry, 0, raw.bytes.data(), entry.bytes).ok());
      }
    }
    return model;
  }
};

TEST_P(RoundTrip, IsByteExact) {
  const std::string golden = std::string(PAGODA_GOLDEN_DIR) + "/" + GetParam();
  auto folder = HfFolder::open(golden);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  const bool fused = std::string(GetParam()).ends_with("_fused");
  EXPECT_EQ(folder->layout(), fused ? ExpertLayout::kFused : ExpertLayout::kPerExpert);
  const Status written = export_weights(*weights_of_folder(folder.value()), folder.value(), out_);
  ASSERT_TRUE(written.ok()) << written.message();
  expect_holds(out_, model_of(golden));
  for (const char* name : {"config.json", "generation_config.json"}) {
    EXPECT_EQ(get_file(out_ + "/" + name), get_file(golden + "/" + name));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, RoundTrip,
                         testing::Values("qwen3_moe_tiny", "qwen3_moe_tied", "qwen3_moe_bf16",
                                         "qwen3_moe_bf16_fused", "mixtral", "mixtral_fused",
                                         "olmoe", "olmoe_fused", "qwen2_moe", "qwen2_moe_fused"));

TEST_F(Folder, SaysWhenThereIsNoModelOrTwo) {
  EXPECT_EQ(HfFolder::open(in_).status().code(), Exit::kNoInput);
  EXPECT_EQ(HfFolder::open(dir_.file("absent")).status().code(), Exit::kNoInput);
  write_shards(random_model(table_, {StoredDType::kBF16}));
  write_safetensors(in_ + "/model.safetensors", random_model(table_, {StoredDType::kBF16}));
  expect_refused({"holds both"});
}

TEST_F(Folder, WriterRefusesUsedFoldersAndNonFiniteValues) {
  write_safetensors(in_ + "/model.safetensors", random_model(table_, {StoredDType::kBF16}));
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok());
  auto options = HfWriter::options_for(in_, folder.value(), std::nullopt);
  const std::string before = get_file(in_ + "/model.safetensors");
  EXPECT_EQ(HfWriter::create(options.value(), table_).status().code(), Exit::kCannotCreate);
  EXPECT_EQ(get_file(in_ + "/model.safetensors"), before);
  options->directory = out_;
  options->dtypes.assign(table_.tensors.size(), StoredDType::kF16);
  for (const float value : {1e6f, std::numeric_limits<float>::infinity(), std::nanf("")}) {
    auto writer = HfWriter::create(options.value(), table_);
    ASSERT_TRUE(writer.ok());
    const float values[] = {1.0f, value};
    const int64_t first = writer->order().front();
    const Status status = writer->append(first, values, 2);
    EXPECT_EQ(status.code(), Exit::kDiverged);
    EXPECT_NE(status.message().find(table_.tensors[first].name), std::string::npos);
    EXPECT_NE(status.message().find("element 1"), std::string::npos) << status.message();
    EXPECT_EQ(std::filesystem::status(out_).permissions(), std::filesystem::perms::owner_all);
  }
  EXPECT_FALSE(std::filesystem::exists(out_)) << "the next could not have been created";
}

// Only what the writer made: not a folder that was there, nor what others put into it.
TEST_F(Folder, WhatIsNotFinishedIsRemoved) {
  write_safetensors(in_ + "/model.safetensors", random_model(table_, {StoredDType::kBF16}));
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok());
  const auto stopped = [&](const std::string& directory) {
    request_stop(SIGTERM);
    const Status status =
        export_weights(*weights_of_folder(folder.value()), folder.value(), directory);
    request_stop(0);
    EXPECT_EQ(status.code(), exit_of_signal(SIGTERM)) << status.message();
  };
  stopped(dir_.file("a/b/out"));
  EXPECT_FALSE(std::filesystem::exists(dir_.file("a")));
  std::filesystem::create_directory(out_);
  stopped(out_);
  EXPECT_TRUE(std::filesystem::is_empty(out_));
  {
    auto options = HfWriter::options_for(out_, folder.value(), std::nullopt);
    options->shard_bytes = 1;
    auto writer = HfWriter::create(options.value(), table_);
    ASSERT_TRUE(writer.ok());
    const int64_t first = writer->order().front();
    std::vector<float> values(static_cast<size_t>(table_.tensors[first].num_elements()));
    ASSERT_TRUE(writer->append(first, values.data(), static_cast<int64_t>(values.size())).ok());
    put_file(out_ + "/mine", "x");
    EXPECT_GT(std::distance(std::filesystem::directory_iterator(out_), {}), 2);
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(out_), {}), 1);
  EXPECT_EQ(get_file(out_ + "/mine"), "x");
  std::filesystem::remove(out_ + "/mine");
  EXPECT_TRUE(export_weights(*weights_of_folder(folder.value()), folder.value(), out_).ok());
}

}  // namespace
}  // namespace pagoda
