// Writes a GGUF file, version 3, which llama.cpp and what is built on it read (ggml's specification
// of the format):
//
//   "GGUF", u32 version, u64 tensors, u64 entries
//   an entry:   text key, u32 type, value
//   a tensor:   text name, u32 dimensions, u64 of each (the last of a row-major shape first),
//               u32 type, u64 offset from the begin of the data
//   zeros up to a multiple of 32, then the tensors' data, each from a multiple of 32 on
//
// A text is u64 length and bytes; all numbers are little-endian.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/output_file.h"
#include "base/status.h"

namespace pagoda {

// How a tensor's numbers are stored; the values are ggml's.
enum class GgufType : uint32_t { kF32 = 0, kF16 = 1, kQ8_0 = 8, kBF16 = 30 };

inline constexpr int64_t kQ8Block = 32;  // numbers of a row that share a scale

// Bytes of a tensor with so many numbers. REQUIRES of kQ8_0: whole blocks.
int64_t gguf_bytes(GgufType type, int64_t count);

// Rounds numbers to a type. kBF16: as weights are rounded, to the bits of an exported folder; ggml
// rounds a number in the middle of two to the even one, which may be the other. kQ8_0: a block's
// scale is its largest magnitude / 127, stored in fp16 behind which stand the 32 quotients, rounded
// half away from zero (ggml's quantize_row_q8_0_ref).
void encode_gguf(GgufType type, const float* values, int64_t count, std::vector<std::byte>& out);

// The entries of a header, in the order in which they are added.
class GgufEntries {
 public:
  void add(const std::string& key, const std::string& text);
  void add(const std::string& key, const char* text) { add(key, std::string(text)); }
  void add(const std::string& key, uint32_t number);
  void add(const std::string& key, float number);
  void add(const std::string& key, bool flag);
  void add(const std::string& key, const std::vector<std::string>& texts);
  void add(const std::string& key, const std::vector<int32_t>& numbers);
  void add(const std::string& key, const std::vector<float>& numbers);

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(const std::string& key, uint32_t type);
  void begin_list(const std::string& key, uint32_t type, size_t count);

  std::string bytes_;
  uint64_t count_ = 0;
};

struct GgufTensor {
  std::string name;
  std::vector<int64_t> shape;  // row-major, at most 4 dimensions
  GgufType type = GgufType::kF32;
  int64_t elements() const;
};

// The file appears under its name only at finish(); without that, nothing is left of it. Tensors
// may be written in any order and pieces. One thread.
class GgufWriter {
 public:
  // kCannotCreate, also if the disk has no room for it.
  static Result<GgufWriter> create(const std::string& path, const GgufEntries& entries,
                                   std::vector<GgufTensor> tensors);

  // Writes `count` numbers of a tensor from element `first` on. kIoError, and kCannotCreate without
  // room. REQUIRES of kQ8_0: whole blocks.
  Status write(size_t tensor, int64_t first, const float* values, int64_t count);
  Status finish() { return file_.commit(); }

 private:
  GgufWriter(OutputFile file, std::vector<GgufTensor> tensors, std::vector<int64_t> offsets)
      : file_(std::move(file)), tensors_(std::move(tensors)), offsets_(std::move(offsets)) {}

  OutputFile file_;
  std::vector<GgufTensor> tensors_;
  std::vector<int64_t> offsets_;  // in the file
  std::vector<std::byte> encoded_;
};

}  // namespace pagoda
