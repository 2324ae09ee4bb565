// Tensors of a golden file, and how far apart two arrays are.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace pagoda {

class Golden {
 public:
  explicit Golden(const std::string& path)
      : file_(std::move(SafetensorsFile::open(path).value())) {}

  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  std::vector<float> floats(const std::string& name) const { return read<float>(name); }
  std::vector<int32_t> ints(const std::string& name) const { return read<int32_t>(name); }
  float number(const std::string& name) const { return floats(name).at(0); }
  const SafetensorsFile& file() const { return file_; }

 private:
  template <typename T>
  std::vector<T> read(const std::string& name) const {
    const SafetensorsEntry* entry = file_.find(name);
    CHECK(entry != nullptr, "no %s in %s", name.c_str(), file_.path().c_str());
    std::vector<T> values(static_cast<size_t>(entry->bytes) / sizeof(T));
    const Status status = file_.read(*entry, 0, values.data(), entry->bytes);
    CHECK(status.ok(), "%s", status.message().c_str());
    return values;
  }
  SafetensorsFile file_;
};

// norm(a - b) / norm(b)
inline double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK(a.size() == b.size(), "%zu values against %zu", a.size(), b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / std::max(size, 1e-300));
}

}  // namespace pagoda
