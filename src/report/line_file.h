// A text file that a run adds whole lines to, written out at once, so that a crash loses nothing
// that was added: what of a line did not fit is taken away again. One thread uses it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/held_file.h"
#include "base/status.h"

namespace pagoda {

class LineFile {
 public:
  enum class Must : uint8_t { kAny, kBeNew };

  // Opens `path` for adding to it, creating it. `what` it holds, for errors: "metrics".
  // kCannotCreate when it cannot be opened, is a link or no regular file, or is there with kBeNew.
  static Result<std::unique_ptr<LineFile>> open(const std::string& path, const char* what,
                                                Must must = Must::kAny);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // Bytes of the whole lines before the first for which `keep` is false. It gets each with its
  // newline, and what follows the last newline without one. kIoError; kCannotCreate for a line
  // longer than any that pagoda writes.
  Result<int64_t> kept_bytes(const std::function<bool(std::string_view)>& keep) const;
  // Takes away all behind the first `bytes`, which are whole lines. kCannotCreate.
  Status cut(int64_t bytes);
  // REQUIRES: `lines` ends with a newline. All of it or nothing; a failure warns once and never
  // stops a run.
  void add(std::string_view lines);

  const std::string& path() const { return path_; }
  // kIoError when the file is not at its path any more (base/held_file.h).
  Status check() const { return check_held(file_, path_); }

 private:
  LineFile(int file, std::string path, const char* what)
      : file_(file), path_(std::move(path)), what_(what) {}

  int file_;
  std::string path_;
  const char* what_;
  int64_t bytes_ = 0;  // length of the whole lines in the file
  bool warned_ = false;
};

}  // namespace pagoda
