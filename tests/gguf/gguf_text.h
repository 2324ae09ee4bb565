// A GGUF file read back, for tests of what has been written.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/check.h"
#include "gguf/gguf_file.h"
#include "model/json.h"
#include "tests/testing/files.h"
#include "tests/testing/sha256.h"

namespace pagoda {

// Reads a file, trusting it: what it has been made by is under test.
class GgufText {
 public:
  explicit GgufText(const std::string& path) : bytes_(get_file(path)) {
    CHECK(bytes_.substr(0, 4) == "GGUF");
    at_ = 4;
    CHECK(take<uint32_t>() == 3);
    const auto tensors = take<uint64_t>(), entries = take<uint64_t>();
    for (uint64_t i = 0; i < entries; ++i) {
      const std::string key = text();
      CHECK(!values_.contains(key), "%s stands there twice", key.c_str());
      values_[key] = value(take<uint32_t>());
    }
    for (uint64_t i = 0; i < tensors; ++i) read_tensor();
    const size_t data = (at_ + 31) / 32 * 32;
    for (auto& [name, tensor] : tensors_) tensor.at += data;
  }

  struct Tensor {
    std::vector<uint64_t> shape;
    uint32_t type = 0;
    size_t at = 0;
  };
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }
  const Json& entry(const std::string& key) const { return values_.at(key); }
  bool has(const std::string& key) const { return values_.contains(key); }
  std::string sha256(const Tensor& tensor) const {
    int64_t count = 1;
    for (const uint64_t size : tensor.shape) count *= static_cast<int64_t>(size);
    Sha256 sha;
    const int64_t bytes = gguf_bytes(static_cast<GgufType>(tensor.type), count);
    CHECK(tensor.at + static_cast<size_t>(bytes) <= bytes_.size());
    sha.add(bytes_.data() + tensor.at, bytes);
    return sha.hex();
  }

 private:
  template <typename T>
  T take() {
    T value;
    CHECK(at_ + sizeof(T) <= bytes_.size());
    std::memcpy(&value, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  std::string text() {
    const auto size = take<uint64_t>();
    CHECK(at_ + size <= bytes_.size());
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  Json value(uint32_t type) {
    switch (type) {
      case 4:
        return take<uint32_t>();
      case 5:
        return take<int32_t>();
      case 6:
        return take<float>();
      case 7:
        return take<uint8_t>() != 0;
      case 8:
        return text();
      case 9: {
        const auto of = take<uint32_t>();
        const auto count = take<uint64_t>();
        Json list = Json::array();
        for (uint64_t i = 0; i < count; ++i) list.push_back(value(of));
        return list;
      }
    }
    CHECK(false, "a value of type %u", type);
    return Json();
  }
  void read_tensor() {
    const std::string name = text();
    Tensor& tensor = tensors_[name];
    const auto dimensions = take<uint32_t>();
    for (uint32_t d = 0; d < dimensions; ++d) tensor.shape.push_back(take<uint64_t>());
    tensor.type = take<uint32_t>();
    tensor.at = take<uint64_t>();
    CHECK(tensor.at % 32 == 0);
  }

  std::string bytes_;
  size_t at_ = 0;
  std::map<std::string, Json> values_;
  std::map<std::string, Tensor> tensors_;
};

// The entries alone, written to a file and read back.
inline GgufText read_back(const GgufEntries& entries, const std::string& path) {
  auto writer = GgufWriter::create(path, entries, {});
  CHECK(writer.ok() && writer->finish().ok());
  return GgufText(path);
}

}  // namespace pagoda
