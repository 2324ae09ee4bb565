#include "data/text_source.h"

#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "base/log.h"
#include "base/utf8.h"
#include "model/json.h"

namespace pagoda {

namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;
constexpr int64_t kMaxLineBytes = 64000000;

enum class TextKind : uint8_t { kPlain, kJsonLines };

Result<TextKind> kind_of(const std::string& path) {
  if (path.ends_with(".txt")) return TextKind::kPlain;
  if (path.ends_with(".jsonl")) return TextKind::kJsonLines;
  return Status(Exit::kBadData,
                strf("%s: the name must end in .txt (one document) or .jsonl (one {\"text\": ...} "
                     "a line)",
                     printable(path).c_str()));
}

// Calls visit(block) for the file's bytes in order.
template <typename Visit>
Status for_each_block(const InputFile& file, const Visit& visit) {
  std::string block(static_cast<size_t>(std::min(file.bytes(), kBlockBytes)), '\0');
  for (int64_t at = 0; at < file.bytes(); at += kBlockBytes) {
    const int64_t bytes = std::min(kBlockBytes, file.bytes() - at);
    RETURN_IF_ERROR(file.read(at, block.data(), bytes));
    RETURN_IF_ERROR(visit(std::string_view(block.data(), static_cast<size_t>(bytes))));
  }
  return Status();
}

// Cuts blocks into lines and hands each line's text to the sink.
class JsonLines {
 public:
  JsonLines(const std::string& path, DocumentSink& sink) : path_(path), sink_(sink) {}

  Status block(std::string_view bytes) {
    while (!bytes.empty()) {
      const size_t newline = bytes.find('\n');
      const std::string_view part = bytes.substr(0, newline);
      if (static_cast<int64_t>(line_.size() + part.size()) > kMaxLineBytes) {
        ++number_;
        return bad(strf("line longer than %lld bytes", (long long)kMaxLineBytes));
      }
      line_.append(part);
      if (newline == std::string_view::npos) return Status();
      RETURN_IF_ERROR(end_line());
      bytes.remove_prefix(newline + 1);
    }
    return Status();
  }
  // Also at the end of the file, for a last line without newline.
  Status end_line() {
    ++number_;
    const Status status = document();
    line_.clear();
    return status;
  }

 private:
  Status document() {
    if (line_.find_first_not_of(" \t\r") == std::string::npos) return Status();
    const size_t invalid = first_invalid_utf8(line_);
    if (invalid != std::string::npos) {
      return Status(Exit::kBadData,
                    strf("%s:%lld:%zu: invalid UTF-8; nothing was trained, repair or remove the "
                         "line",
                         printable(path_).c_str(), (long long)number_, invalid + 1));
    }
    const JsonLimits limits{.max_bytes = kMaxLineBytes, .max_string_bytes = kMaxLineBytes};
    ASSIGN_OR_RETURN(const Json row,
                     parse_json(line_, strf("%s:%lld", path_.c_str(), (long long)number_), limits));
    const auto text = row.find("text");
    if (text == row.end() || !text->is_string()) return bad("has no string \"text\"");
    RETURN_IF_ERROR(sink_.text(text->get_ref<const std::string&>()));
    return sink_.end_document();
  }
  Status bad(const std::string& why) const {
    return Status(Exit::kBadData,
                  strf("%s:%lld: %s; nothing was trained, repair or remove the line",
                       printable(path_).c_str(), (long long)number_, why.c_str()));
  }

  const std::string& path_;
  DocumentSink& sink_;
  std::string line_;
  int64_t number_ = 0;
};

}  // namespace

Status read_documents(const std::string& path, DocumentSink& sink) {
  ASSIGN_OR_RETURN(const TextKind kind, kind_of(path));
  ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path, Links::kFollow));
  if (kind == TextKind::kPlain) {
    RETURN_IF_ERROR(for_each_block(file, [&](std::string_view block) { return sink.text(block); }));
    return sink.end_document();
  }
  JsonLines lines(path, sink);
  RETURN_IF_ERROR(for_each_block(file, [&](std::string_view block) { return lines.block(block); }));
  return lines.end_line();
}

}  // namespace pagoda
