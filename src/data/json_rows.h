// The rows of a .jsonl or .json file, one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "data/text_source.h"
#include "model/json_type.h"

namespace pagoda {

// A row may have this many bytes as it lies in the file.
inline constexpr int64_t kMaxRowBytes = 64000000;

struct RowPlace {
  const std::string& path;
  TextFormat format;
  int64_t number;  // line, or element of the array, from 1; 0: before the first
  std::string_view source = {};  // the row as it is written; during a visit

  std::string text() const;    // "PATH:12", "PATH: row 12"; not yet printable()
  std::string suffix() const;  // what is behind the path there
  // kBadData "PLACE: WHY; nothing was trained, REMEDY".
  Status bad(const std::string& why, const char* remedy = "repair the file") const;
};

// Calls `visit` for each row in order; blank lines are no rows. Rows must be valid UTF-8 and JSON
// (model/json.h says what is refused), an array must end and have nothing behind it. kBadData
// naming the row, and for UTF-8 the byte in it. Memory: one row.
// REQUIRES: text_format(path) is not kPlain.
Status read_json_rows(const std::string& path,
                      const std::function<Status(const RowPlace&, const Json&)>& visit);

}  // namespace pagoda
