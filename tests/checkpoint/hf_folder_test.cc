// Opening Hugging Face folders and reading their values.
#include "checkpoint/hf_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>

#include "tests/testing/files.h"
#include "tests/testing/model_folder.h"
#include "train/weights.h"

namespace pagoda {
namespace {

using Folder = ModelFolderTest;

// A record's tensors behind each other.
Status read_record(const HfFolder& folder, const TensorTable& table, int64_t record, float* out) {
  const RecordSpec& spec = table.records[record];
  for (int64_t t = spec.first_tensor; t < spec.first_tensor + spec.num_tensors; ++t) {
    RETURN_IF_ERROR(folder.read_tensor(t, out + table.tensors[t].offset));
  }
  return Status();
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
      const Status status = read_record(*folder, table_, table_.layer(1), out.data());
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
  expect_refused({name, "is here, but not according to"});
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

// The hub's cache looks like this: every file is a link to a blob elsewhere.
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
  const Status status = read_record(*folder, table_, expert, values.data());
  EXPECT_EQ(status.code(), Exit::kBadData);
  EXPECT_NE(status.message().find(gate_up), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(strf("element %lld", (long long)element)), std::string::npos)
      << status.message();
}

// A range of a tensor that takes turns is what the whole has there.
TEST_F(Folder, RangesOfTensorsThatTakeTurns) {
  for (const char* name : {"gpt_oss", "gpt_oss_mxfp4"}) {
    auto folder = HfFolder::open(std::string(PAGODA_GOLDEN_DIR) + "/" + name);
    ASSERT_TRUE(folder.ok()) << folder.status().message();
    const int64_t expert = folder->table().expert(1, 2);
    for (const TensorRole role : {TensorRole::kUp, TensorRole::kDown, TensorRole::kGateBias}) {
      const int64_t t = folder->table().find(expert, role);
      const int64_t n = folder->table().tensors[static_cast<size_t>(t)].num_elements();
      std::vector<float> all(static_cast<size_t>(n));
      ASSERT_TRUE(folder->read_tensor(t, all.data()).ok());
      for (int64_t first = 0; first < n; first += 7) {
        const int64_t count = std::min<int64_t>(n - first, 1 + first % 50);
        std::vector<float> some(static_cast<size_t>(count));
        ASSERT_TRUE(folder->read_values(t, first, count, some.data()).ok());
        const std::vector<float> want(all.begin() + first, all.begin() + first + count);
        ASSERT_EQ(some, want) << name << ", from " << first;
      }
    }
  }
}

// Files of MXFP4 with one thing wrong.
TEST_F(Folder, NamesWhatIsWrongWithMxfp4) {
  const std::string golden = std::string(PAGODA_GOLDEN_DIR) + "/gpt_oss_mxfp4";
  const std::string up = "model.layers.1.mlp.experts.gate_up_proj";
  const std::string text = get_file(golden + "/model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), 8);
  const Json header = Json::parse(text.substr(8, header_bytes));
  const auto with = [&](const std::function<void(Json&, std::string&)>& change) {
    Json changed = header;
    std::string data = text.substr(8 + header_bytes);
    change(changed, data);
    const std::string json = changed.dump();
    const uint64_t n = json.size();
    put_file(in_ + "/model.safetensors",
             std::string(reinterpret_cast<const char*>(&n), 8) + json + data);
  };
  put_file(in_ + "/config.json", get_file(golden + "/config.json"));
  with([](Json&, std::string&) {});
  EXPECT_TRUE(HfFolder::open(in_).ok());
  with([&](Json& h, std::string&) { h[up + "_scales"]["shape"] = {4, 2, 32}; });
  expect_refused({up + "_scales", "has shape (4, 2, 32)", "makes it (4, 64, 1)"});
  with([&](Json& h, std::string&) { h[up + "_blocks"]["shape"] = {4, 64, 16}; });
  expect_refused({up + "_blocks", "has shape (4, 64, 16)", "makes it (4, 64, 1, 16)"});
  with([&](Json& h, std::string&) { h[up + "_blocks"]["dtype"] = "I8"; });
  expect_refused({up + "_blocks", "is I8; MXFP4 is read as U8"});
  with([&](Json& h, std::string&) {
    h[up + "_scale"] = h[up + "_scales"];
    h.erase(up + "_scales");
  });
  expect_refused({up + "_scales", "is missing"});
  // Scale 255 of row 3 of expert 2, whose first number is 2 * 64 * 32 + 3 * 32.
  const int64_t row = 2 * 64 + 3;
  with([&](Json& h, std::string& data) {
    data[h[up + "_scales"]["data_offsets"][0].get<size_t>() + row] = static_cast<char>(255);
  });
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  const TensorTable& table = folder->table();
  std::vector<float> values(32 * 32);
  const Status status = folder->read_tensor(table.find(table.expert(1, 2), TensorRole::kUp),
                                            values.data());
  EXPECT_EQ(status.code(), Exit::kBadData);
  EXPECT_NE(status.message().find(strf("element %lld", (long long)(row * 32))), std::string::npos)
      << status.message();
  // Without "quantization_config" other tensors are wanted.
  Json config = Json::parse(get_file(golden + "/config.json"));
  config.erase("quantization_config");
  put_file(in_ + "/config.json", config.dump());
  expect_refused({"mlp.experts.gate_up_proj\"", "is missing"});
}

// Files of fp8 with one thing wrong.
TEST_F(Folder, NamesWhatIsWrongWithFp8) {
  const std::string golden = std::string(PAGODA_GOLDEN_DIR) + "/deepseek_v3_fp8";
  const std::string down = "model.layers.1.mlp.experts.2.down_proj.weight";
  const std::string text = get_file(golden + "/model.safetensors");
  put_file(in_ + "/config.json", get_file(golden + "/config.json"));
  const auto with = [&](const std::function<void(Json&, std::string&)>& change) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, text.data(), 8);
    Json header = Json::parse(text.substr(8, header_bytes));
    std::string data = text.substr(8 + header_bytes);
    change(header, data);
    const std::string json = header.dump();
    const uint64_t n = json.size();
    put_file(in_ + "/model.safetensors",
             std::string(reinterpret_cast<const char*>(&n), 8) + json + data);
  };
  with([](Json&, std::string&) {});
  auto whole = HfFolder::open(in_);
  ASSERT_TRUE(whole.ok()) << whole.status().message();
  const int64_t t = whole->table().find(whole->table().expert(1, 2), TensorRole::kDown);
  std::vector<float> all(32 * 24), some(40);
  ASSERT_TRUE(whole->read_tensor(t, all.data()).ok());
  ASSERT_TRUE(whole->read_values(t, 180, 40, some.data()).ok());  // over a border of blocks
  EXPECT_EQ(some, std::vector<float>(all.begin() + 180, all.begin() + 220));
  with([&](Json& h, std::string&) { h[down + "_scale_inv"]["shape"] = {6, 4}; });
  expect_refused({down + "_scale_inv", "F32 of shape (6, 4)", "F32 of (4, 6)"});
  with([&](Json& h, std::string&) {
    h[down + "_scales"] = h[down + "_scale_inv"];
    h.erase(down + "_scale_inv");
  });
  expect_refused({down, "is fp8 and has no \"_scale_inv\""});
  with([&](Json& h, std::string&) {
    h["model.layers.1.mlp.gate.weight_scale_inv"] = h[down + "_scale_inv"];
    h.erase(down + "_scale_inv");
    h[down]["dtype"] = "U8";
  });
  expect_refused({down, "is U8; only F32, BF16 and F16 are read"});
  const int64_t element = 3 * 24 + 5;
  with([&](Json& h, std::string& data) {
    data[h[down]["data_offsets"][0].get<size_t>() + element] = 0x7f;
  });
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  const Status status = folder->read_tensor(t, all.data());
  EXPECT_EQ(status.code(), Exit::kBadData);
  EXPECT_NE(status.message().find(strf("element %lld", (long long)element)), std::string::npos)
      << status.message();
  // Without "quantization_config" they are of a type that is not read.
  Json config = Json::parse(get_file(golden + "/config.json"));
  config.erase("quantization_config");
  put_file(in_ + "/config.json", config.dump());
  with([](Json&, std::string&) {});
  expect_refused({"is F8_E4M3; only F32, BF16 and F16 are read"});
}

float e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const float magnitude = exponent > 0 ? std::ldexp(static_cast<float>(8 + fraction), exponent - 10)
                                       : std::ldexp(static_cast<float>(fraction), -9);
  return bits >= 128 ? -magnitude : magnitude;
}

// The golden file with scales of blocks of 10 rows and 7 columns, none of which divides a matrix.
// So are DeepSeek-V3's own: blocks of 128 rows, and kv_a_proj_with_mqa has 576. (Transformers 5.23
// refuses such scales; its quotient of rows and scales would be no block.) Blocks begin at
// multiples of their size, and the last one ends with the matrix.
TEST_F(Folder, Fp8BlocksEndWithTheMatrix) {
  constexpr int64_t kRows = 10, kColumns = 7;
  const std::string golden = std::string(PAGODA_GOLDEN_DIR) + "/deepseek_v3_fp8";
  const std::string text = get_file(golden + "/model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, text.data(), 8);
  const Json before = Json::parse(text.substr(8, header_bytes));
  Json header;
  std::string data;
  const auto append = [&](const std::string& name, Json entry, const std::string& bytes) {
    entry["data_offsets"] = {data.size(), data.size() + bytes.size()};
    header[name] = std::move(entry);
    data += bytes;
  };
  std::map<std::string, std::vector<float>> scales;
  for (const auto& [name, entry] : before.items()) {
    if (name == "__metadata__") continue;
    const auto at = entry["data_offsets"][0].get<size_t>();
    if (!name.ends_with("_scale_inv")) {
      append(name, entry,
             text.substr(8 + header_bytes + at, entry["data_offsets"][1].get<size_t>() - at));
      continue;
    }
    const Json shape = before[name.substr(0, name.size() - 10)]["shape"];
    const int64_t rows = div_ceil(shape[0].get<int64_t>(), kRows);
    const int64_t columns = div_ceil(shape[1].get<int64_t>(), kColumns);
    std::vector<float>& made = scales[name];
    for (int64_t i = 0; i < rows * columns; ++i) {
      made.push_back(0.1f + 0.013f * static_cast<float>(i * i % 17));
    }
    append(name, {{"dtype", "F32"}, {"shape", {rows, columns}}},
           std::string(reinterpret_cast<const char*>(made.data()), made.size() * sizeof(float)));
  }
  const std::string json = header.dump();
  const uint64_t n = json.size();
  put_file(in_ + "/model.safetensors",
           std::string(reinterpret_cast<const char*>(&n), 8) + json + data);
  Json config = Json::parse(get_file(golden + "/config.json"));
  config["quantization_config"]["weight_block_size"] = {kRows, kColumns};
  put_file(in_ + "/config.json", config.dump());
  auto folder = HfFolder::open(in_);
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  int compared = 0;
  for (size_t t = 0; t < folder->table().tensors.size(); ++t) {
    const TensorSpec& tensor = folder->table().tensors[t];
    const auto found = scales.find(tensor.name + "_scale_inv");
    if (found == scales.end()) continue;
    const int64_t columns = tensor.shape[1], across = div_ceil(columns, kColumns);
    const auto first = header[tensor.name]["data_offsets"][0].get<size_t>();
    std::vector<float> got(static_cast<size_t>(tensor.num_elements()));
    ASSERT_TRUE(folder->read_tensor(static_cast<int64_t>(t), got.data()).ok());
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      const int64_t block = i / columns / kRows * across + i % columns / kColumns;
      const auto bits = static_cast<uint8_t>(data[first + static_cast<size_t>(i)]);
      const float product = e4m3(bits) * found->second[static_cast<size_t>(block)];
      ASSERT_EQ(got[static_cast<size_t>(i)], to_float(bf16_round(product))) << tensor.name << i;
    }
    ++compared;
  }
  EXPECT_EQ(compared, std::ssize(scales));
  EXPECT_GT(compared, 40);
}

TEST_F(Folder, SaysWhenThereIsNoModelOrTwo) {
  EXPECT_EQ(HfFolder::open(in_).status().code(), Exit::kNoInput);
  EXPECT_EQ(HfFolder::open(dir_.file("absent")).status().code(), Exit::kNoInput);
  write_shards(random_model(table_, {StoredDType::kBF16}));
  write_safetensors(in_ + "/model.safetensors", random_model(table_, {StoredDType::kBF16}));
  expect_refused({"holds both"});
}

}  // namespace
}  // namespace pagoda
