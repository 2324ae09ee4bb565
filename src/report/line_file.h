// A text file that a run adds whole lines to. Lines are written out at once, so that a crash loses
// none; a line of which only a part fitted is removed again. One thread uses it.
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

  // Opens `path` for adding to it, and creates it if need be. `what` names the content in errors:
  // "metrics". kCannotCreate when it cannot be opened, is a link or no regular file, or is there
  // with kBeNew.
  static Result<std::unique_ptr<LineFile>> open(const std::string& path, const char* what,
                                                Must must = Must::kAny);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // Bytes of the whole lines before the first line for which `keep` is false. `keep` gets each line
  // with its newline, and last the rest of the file without one. kIoError; kCannotCreate for a line
  // longer than any that pagoda writes.
  Result<int64_t> kept_bytes(const std::function<bool(std::string_view)>& keep) const;
  // Removes everything behind the first `bytes`, which are whole lines. kCannotCreate.
  Status cut(int64_t bytes);
  // Adds all of `lines`, which end with a newline (or records of bytes, of a file that is never
  // cut), or nothing; a failure warns once and never stops a run.
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
