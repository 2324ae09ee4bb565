#include "report/routing_recorder.h"

#include <filesystem>

#include "base/log.h"
#include "base/number_text.h"

namespace pagoda {
namespace {

// Whether a line behind the first is of a step up to `last`.
bool is_of_step(std::string_view line, int64_t last) {
  int64_t step = 0;
  return line.ends_with('\n') && parse_int64(std::string(line.substr(0, line.find(' '))), step) &&
         step <= last;
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
  const auto must = kept_step < 0 ? LineFile::Must::kBeNew : LineFile::Must::kAny;
  ASSIGN_OR_RETURN(std::unique_ptr<LineFile> lines, LineFile::open(path, "routing traces", must));
  const std::string header = routing_header(shape);
  std::string first;
  ASSIGN_OR_RETURN(const int64_t kept, lines->kept_bytes([&](std::string_view line) {
    if (!first.empty()) return is_of_step(line, kept_step);
    first = line;
    return first == header;
  }));
  if (!first.empty() && first != header) {
    return Status(Exit::kCannotCreate,
                  strf("train.trace_routing: %s is not the trace of this run and stays as it is; "
                       "name another file", printable(path).c_str()));
  }
  RETURN_IF_ERROR(lines->cut(kept));
  if (first.empty()) lines->add(header);
  return std::unique_ptr<RoutingRecorder>(new RoutingRecorder(std::move(lines)));
}

}  // namespace pagoda
