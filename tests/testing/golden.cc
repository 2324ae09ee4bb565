#include "tests/testing/golden.h"

#include <cmath>
#include <filesystem>
#include <functional>

#include "tests/testing/files.h"

namespace pagoda {
namespace {

template <typename T>
std::vector<T> read(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsEntry* entry = file.find(name);
  CHECK(entry != nullptr, "no %s in %s", name.c_str(), file.path().c_str());
  std::vector<T> values(static_cast<size_t>(entry->bytes) / sizeof(T));
  const Status status = file.read(*entry, 0, values.data(), entry->bytes);
  CHECK(status.ok(), "%s", status.message().c_str());
  return values;
}

}  // namespace

std::string golden(const std::string& name) { return std::string(PAGODA_GOLDEN_DIR) + "/" + name; }

std::string patched_folder(const TempDir& dir, const std::string& name, const Json& patch) {
  const std::string folder = dir.file(name + std::to_string(std::hash<Json>()(patch)));
  std::filesystem::copy(golden(name), folder);
  Json config = Json::parse(get_file(folder + "/config.json"));
  config.merge_patch(patch);
  put_file(folder + "/config.json", config.dump());
  return folder;
}

Golden::Golden(const std::string& path) : file_(std::move(SafetensorsFile::open(path).value())) {}

std::vector<float> Golden::floats(const std::string& name) const {
  const SafetensorsEntry* entry = file_.find(name);
  if (entry == nullptr || entry->dtype != "BF16") return read<float>(file_, name);
  std::vector<float> values;
  for (const bf16 value : read<bf16>(file_, name)) values.push_back(to_float(value));
  return values;
}

std::vector<int32_t> Golden::ints(const std::string& name) const {
  return read<int32_t>(file_, name);
}

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK(a.size() == b.size(), "%zu values against %zu", a.size(), b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / std::max(size, 1e-300));
}

}  // namespace pagoda
