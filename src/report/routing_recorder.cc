#include "report/routing_recorder.h"

#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "base/number_text.h"

namespace pagoda {
namespace {

// What is kept of a trace: whole lines up to the first one of a later step.
struct Kept {
  std::string header;  // "": the file is empty or not there
  int64_t bytes = 0;
};

Kept kept_lines(const std::string& path, int64_t step) {
  Kept kept;
  std::ifstream in(path, std::ios::binary);
  for (std::string line; std::getline(in, line);) {
    const bool whole = !in.eof();  // it ends with a newline
    if (kept.bytes == 0) kept.header = whole ? line + "\n" : line;
    int64_t of_step = 0;
    const bool numbered = parse_int64(line.substr(0, line.find(' ')), of_step);
    if (!whole || (kept.bytes > 0 && (!numbered || of_step > step))) break;
    kept.bytes += static_cast<int64_t>(line.size()) + 1;
  }
  return kept;
}

}  // namespace

Status RoutingRecorder::check_new(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return Status();
  return Status(Exit::kCannotCreate,
                strf("train.trace_routing: %s is there and stays as it is; name a new file, or "
                     "remove that one", printable(path).c_str()));
}

Result<std::unique_ptr<RoutingRecorder>> RoutingRecorder::open(const std::string& path,
                                                               const RoutedShape& shape,
                                                               int64_t kept_step) {
  const std::string header = routing_header(shape);
  const Kept kept = kept_step < 0 ? Kept() : kept_lines(path, kept_step);
  if (!kept.header.empty() && kept.header != header) {
    return Status(Exit::kCannotCreate,
                  strf("train.trace_routing: %s is not the trace of this run and stays as it is; "
                       "name another file", printable(path).c_str()));
  }
  const auto must = kept_step < 0 ? LineFile::Must::kBeNew : LineFile::Must::kAny;
  ASSIGN_OR_RETURN(std::unique_ptr<LineFile> lines, LineFile::open(path, "routing traces", must));
  RETURN_IF_ERROR(lines->cut(kept.bytes));
  if (kept.header.empty()) lines->add(header);
  return std::unique_ptr<RoutingRecorder>(new RoutingRecorder(std::move(lines)));
}

}  // namespace pagoda
