#include <algorithm>

#include "base/check.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/testing/files.h"
#include "tests/testing/model_folder.h"

namespace pagoda {
namespace {

// A file with any header text, honest about its length.
std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

}  // namespace

void fuzz_safetensors(std::string_view input) {
  static const TempDir dir;
  static const std::string path = dir.file("model.safetensors");
  put_file(path, std::string(input));
  auto file = SafetensorsFile::open(path);
  if (!file.ok()) return;
  int64_t end = -1;
  for (const SafetensorsEntry& entry : file->entries()) {
    CHECK(file->find(entry.name) != nullptr);
    CHECK(end < 0 || entry.offset == end, "a hole before %lld", (long long)entry.offset);
    end = entry.offset + entry.bytes;
    std::string bytes(static_cast<size_t>(entry.bytes), '\0');
    CHECK(file->read(entry, 0, bytes.data(), entry.bytes).ok());
  }
  CHECK(end < 0 || end == static_cast<int64_t>(input.size()));
}

std::vector<std::string> safetensors_seeds() {
  const TempDir dir;
  const std::string path = dir.file("model.safetensors");
  Model model;
  model["a"] = random_tensor(StoredDType::kF32, {2}, 1);
  model["b.weight"] = random_tensor(StoredDType::kBF16, {1, 3}, 2);
  model["empty"] = random_tensor(StoredDType::kF16, {0, 4}, 3);
  write_safetensors(path, model);
  return {get_file(path), file_of("{}", ""),
          file_of(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],)"
                  R"("data_offsets":[0,8]},"b":{"dtype":"BF16","shape":[1,3],)"
                  R"("data_offsets":[8,14]}})",
                  "0123456789abcd"),
          file_of(R"({"x\u00e9":{"data_offsets":[0,3],"dtype":"F4","shape":[2,3,1]},)"
                  R"("y":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[3,6]},)"
                  R"("z":{"dtype":"BOOL","shape":[],"data_offsets":[6,7]}}   )",
                  "1234567")};
}

}  // namespace pagoda
