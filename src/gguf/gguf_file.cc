#include "gguf/gguf_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/bytes.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/stored_dtype.h"

namespace pagoda {
namespace {

constexpr uint32_t kVersion = 3;
constexpr int64_t kAlign = 32, kQ8BlockBytes = 2 + kQ8Block;
// The types of entries.
constexpr uint32_t kU32 = 4, kI32 = 5, kFloat = 6, kBool = 7, kText = 8, kList = 9;

template <typename T>
void append(T value, std::string& out) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}
void append_text(const std::string& text, std::string& out) {
  append(static_cast<uint64_t>(text.size()), out);
  out += text;
}

void encode_q8(const float* values, std::byte* out) {
  float largest = 0.0f;
  for (int64_t i = 0; i < kQ8Block; ++i) largest = std::max(largest, std::abs(values[i]));
  const float scale = largest / 127.0f, inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  float_to_stored(StoredDType::kF16, &scale, 1, out);
  for (int64_t i = 0; i < kQ8Block; ++i) {
    out[2 + i] = static_cast<std::byte>(static_cast<int8_t>(std::round(values[i] * inverse)));
  }
}

StoredDType stored_type(GgufType type) {
  if (type == GgufType::kF32) return StoredDType::kF32;
  return type == GgufType::kBF16 ? StoredDType::kBF16 : StoredDType::kF16;
}

std::string header_of(const GgufEntries& entries, const std::vector<GgufTensor>& tensors,
                      std::vector<int64_t>* offsets) {
  std::string header = "GGUF";
  append(kVersion, header);
  append(static_cast<uint64_t>(tensors.size()), header);
  append(entries.count(), header);
  header += entries.bytes();
  int64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    append_text(tensor.name, header);
    append(static_cast<uint32_t>(tensor.shape.size()), header);
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      append(static_cast<uint64_t>(tensor.shape[i]), header);
    }
    append(static_cast<uint32_t>(tensor.type), header);
    append(static_cast<uint64_t>(offset), header);
    offsets->push_back(offset);
    offset = align_up(offset + gguf_bytes(tensor.type, tensor.elements()), kAlign);
  }
  header.resize(static_cast<size_t>(align_up(std::ssize(header), kAlign)), '\0');
  for (int64_t& of_tensor : *offsets) of_tensor += std::ssize(header);
  offsets->push_back(std::ssize(header) + offset);  // the end of the file
  return header;
}

}  // namespace

int64_t gguf_bytes(GgufType type, int64_t count) {
  if (type != GgufType::kQ8_0) return count * stored_bytes(stored_type(type));
  CHECK(count % kQ8Block == 0);
  return count / kQ8Block * kQ8BlockBytes;
}

void encode_gguf(GgufType type, const float* values, int64_t count, std::vector<std::byte>& out) {
  out.resize(static_cast<size_t>(gguf_bytes(type, count)));
  if (type != GgufType::kQ8_0) return float_to_stored(stored_type(type), values, count, out.data());
  for (int64_t block = 0; block < count / kQ8Block; ++block) {
    encode_q8(values + block * kQ8Block, out.data() + block * kQ8BlockBytes);
  }
}

void GgufEntries::begin(const std::string& key, uint32_t type) {
  append_text(key, bytes_);
  append(type, bytes_);
  ++count_;
}
void GgufEntries::begin_list(const std::string& key, uint32_t type, size_t count) {
  begin(key, kList);
  append(type, bytes_);
  append(static_cast<uint64_t>(count), bytes_);
}
void GgufEntries::add(const std::string& key, const std::string& text) {
  begin(key, kText);
  append_text(text, bytes_);
}
void GgufEntries::add(const std::string& key, uint32_t number) {
  begin(key, kU32);
  append(number, bytes_);
}
void GgufEntries::add(const std::string& key, float number) {
  begin(key, kFloat);
  append(number, bytes_);
}
void GgufEntries::add(const std::string& key, bool flag) {
  begin(key, kBool);
  bytes_ += flag ? '\1' : '\0';
}
void GgufEntries::add(const std::string& key, const std::vector<std::string>& texts) {
  begin_list(key, kText, texts.size());
  for (const std::string& text : texts) append_text(text, bytes_);
}
void GgufEntries::add(const std::string& key, const std::vector<int32_t>& numbers) {
  begin_list(key, kI32, numbers.size());
  for (const int32_t number : numbers) append(number, bytes_);
}
void GgufEntries::add(const std::string& key, const std::vector<float>& numbers) {
  begin_list(key, kFloat, numbers.size());
  for (const float number : numbers) append(number, bytes_);
}

int64_t GgufTensor::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

Result<GgufWriter> GgufWriter::create(const std::string& path, const GgufEntries& entries,
                                      std::vector<GgufTensor> tensors) {
  std::vector<int64_t> offsets;
  const std::string header = header_of(entries, tensors, &offsets);
  const int64_t end = offsets.back();
  const int64_t free = free_disk_bytes(nearest_directory(path));
  if (free >= 0 && free < end) {
    return Status(
        Exit::kCannotCreate,
        strf("%s: takes %s, and its disk has %s free; make room or name another place",
             printable(path).c_str(), format_bytes_up(end).c_str(), format_bytes(free).c_str()));
  }
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  RETURN_IF_ERROR(file.append(header.data(), std::ssize(header)));
  RETURN_IF_ERROR(file.extend(end));
  return GgufWriter(std::move(file), std::move(tensors), std::move(offsets));
}

Status GgufWriter::write(size_t tensor, int64_t first, const float* values, int64_t count) {
  const GgufType type = tensors_[tensor].type;
  CHECK(first + count <= tensors_[tensor].elements());
  encode_gguf(type, values, count, encoded_);
  return file_.write_at(offsets_[tensor] + gguf_bytes(type, first), encoded_.data(),
                        std::ssize(encoded_));
}

}  // namespace pagoda
