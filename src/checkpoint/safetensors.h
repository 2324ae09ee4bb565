// safetensors files, strictly: a reader for files that may be hostile and a streaming writer.
//
//   u64 little-endian n | n bytes of JSON {"name": {"dtype", "shape", "data_offsets"}, ...} | data
//
// The reader accepts no more than the reference implementation (huggingface/safetensors,
// tensor.rs), and requires: n <= 100,000,000; the header begins with '{'; no duplicate names and no
// unknown fields; known dtypes; at most 8 dimensions and 1,000,000 tensors; data_offsets of all
// tensors cover the data without hole or overlap; each equals its shape's bytes; the last one ends
// the file.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "base/output_file.h"
#include "checkpoint/stored_dtype.h"

namespace pagoda {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // the file's spelling, e.g. "BF16"
  std::vector<int64_t> shape;
  int64_t offset = 0;  // from the start of the file
  int64_t bytes = 0;
};

// "(128, 2048)"
std::string shape_text(const std::vector<int64_t>& shape);

// Reads are const and may run on any number of threads.
class SafetensorsFile {
 public:
  // Checks the whole header before anything is allocated for data. kBadData, kNoInput.
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in file order
  const SafetensorsEntry* find(const std::string& name) const;
  // Bytes [first, first + bytes) of an entry of this file.
  Status read(const SafetensorsEntry& entry, int64_t first, void* out, int64_t bytes) const;

 private:
  explicit SafetensorsFile(InputFile file) : file_(std::move(file)) {}
  InputFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string, size_t> by_name_;
};

// Writes tensors one behind the other, in the order announced, without holding them. The header is
// padded with spaces so that the data begins at a multiple of kIoAlign (direct I/O can read it),
// and says {"format": "pt"}, without which Transformers refuses the file. The file appears under
// its name only at finish().
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    StoredDType dtype = StoredDType::kBF16;
    std::vector<int64_t> shape;
  };
  static Result<SafetensorsWriter> create(const std::string& path,
                                          const std::vector<Tensor>& tensors);
  // The next bytes of the data, in any portions.
  Status append(const void* data, int64_t bytes);
  // REQUIRES: all bytes of all tensors were appended.
  Status finish();

 private:
  SafetensorsWriter(OutputFile file, int64_t end) : file_(std::move(file)), end_bytes_(end) {}
  OutputFile file_;
  int64_t end_bytes_;  // of the finished file
};

}  // namespace pagoda
