// Documents from text files, streamed:
//   NAME.txt    one document: the file's bytes as they are
//   NAME.jsonl  one document a line: the "text" of {"text": ...}; blank lines are skipped
// JSONL must be valid UTF-8 and valid JSON, lines at most 64 MB; the error names file and line (and
// for UTF-8 the column, counted in bytes from 1).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace pagoda {

// Receives documents in order, in pieces: text(...) any number of times, then end_document(). The
// first error ends the reading.
class DocumentSink {
 public:
  virtual ~DocumentSink() = default;
  virtual Status text(std::string_view piece) = 0;
  virtual Status end_document() = 0;
};

// A file whose name ends in neither .txt nor .jsonl is kBadData. Memory: one line, or a block.
Status read_documents(const std::string& path, DocumentSink& sink);

}  // namespace pagoda
