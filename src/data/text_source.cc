#include "data/text_source.h"

#include <algorithm>

#include "base/file.h"
#include "base/log.h"
#include "tokenizer/fingerprint.h"

namespace pagoda {

namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;

struct NamedKind {
  TextFormat format;
  Compression compression;
};

Result<NamedKind> kind_of(const std::string& path) {
  std::string name = path;
  NamedKind kind{TextFormat::kPlain, Compression::kNone};
  const auto cut = [&](const char* ending) {
    if (!name.ends_with(ending)) return false;
    name.resize(name.size() - std::string_view(ending).size());
    return true;
  };
  if (cut(".gz")) {
    kind.compression = Compression::kGzip;
  } else if (cut(".zst")) {
    kind.compression = Compression::kZstd;
  }
  if (cut(".txt")) return kind;
  kind.format = TextFormat::kJsonLines;
  if (cut(".jsonl")) return kind;
  kind.format = TextFormat::kJsonArray;
  if (cut(".json")) return kind;
  return Status(Exit::kBadData,
                strf("%s: the name must end in .txt (one document), .jsonl (an object a line) or "
                     ".json (an array of objects), and then perhaps in .gz or .zst",
                     printable(path).c_str()));
}

// The file's bytes as they lie.
Status read_packed(const InputFile& file, const BlockVisitor& visit) {
  std::string block(static_cast<size_t>(std::min(file.bytes(), kBlockBytes)), '\0');
  for (int64_t at = 0; at < file.bytes(); at += kBlockBytes) {
    const int64_t bytes = std::min(kBlockBytes, file.bytes() - at);
    RETURN_IF_ERROR(file.read(at, block.data(), bytes));
    RETURN_IF_ERROR(visit(std::string_view(block.data(), static_cast<size_t>(bytes))));
  }
  return Status();
}

// Passes bytes on, but not a byte order mark at their beginning.
class MarkSkipper {
 public:
  explicit MarkSkipper(const BlockVisitor& visit) : visit_(visit) {}

  Status add(std::string_view bytes) {
    while (!begun_ && matched_ < kMark.size() && !bytes.empty()) {
      if (bytes.front() != kMark[matched_]) {
        RETURN_IF_ERROR(finish());
        break;
      }
      ++matched_;
      bytes.remove_prefix(1);
    }
    return bytes.empty() ? Status() : visit_(bytes);
  }
  // What looked like the mark's beginning was something else.
  Status finish() {
    const bool partial = !begun_ && matched_ > 0 && matched_ < kMark.size();
    begun_ = true;
    return partial ? visit_(kMark.substr(0, matched_)) : Status();
  }

 private:
  static constexpr std::string_view kMark = "\xEF\xBB\xBF";
  const BlockVisitor& visit_;
  size_t matched_ = 0;  // bytes of the mark seen and held back
  bool begun_ = false;
};

}  // namespace

Result<TextFormat> text_format(const std::string& path) {
  ASSIGN_OR_RETURN(const NamedKind kind, kind_of(path));
  return kind.format;
}

Status read_blocks(const std::string& path, const BlockVisitor& visit) {
  ASSIGN_OR_RETURN(const NamedKind kind, kind_of(path));
  ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path, Links::kFollow));
  MarkSkipper skipper(visit);
  const BlockVisitor text = [&](std::string_view bytes) { return skipper.add(bytes); };
  if (kind.compression == Compression::kNone) {
    RETURN_IF_ERROR(read_packed(file, text));
    return skipper.finish();
  }
  const std::unique_ptr<Decompressor> stream = Decompressor::create(kind.compression, path);
  RETURN_IF_ERROR(
      read_packed(file, [&](std::string_view packed) { return stream->add(packed, text); }));
  RETURN_IF_ERROR(stream->finish());
  return skipper.finish();
}

Result<std::string> fingerprint_of_files(const std::vector<std::string>& paths) {
  Fingerprint all;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(const NamedKind kind, kind_of(path));
    ASSIGN_OR_RETURN(const InputFile file, InputFile::open(path, Links::kFollow));
    Fingerprint one;
    RETURN_IF_ERROR(read_packed(file, [&](std::string_view block) {
      one.add(block.data(), static_cast<int64_t>(block.size()));
      return Status();
    }));
    all.add(strf("%d %d %lld %s\n", static_cast<int>(kind.format),
                 static_cast<int>(kind.compression), (long long)file.bytes(), one.hex().c_str()));
  }
  return all.hex();
}

}  // namespace pagoda
