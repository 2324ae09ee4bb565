#include "data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "data/fingerprint.h"
#include "data/text_source.h"

namespace pagoda {

static_assert(std::endian::native == std::endian::little, "tokens are written as they lie");

namespace {

constexpr int64_t kFormat = 1;
constexpr int64_t kHexBytes = 32;
constexpr int64_t kBlockTokens = int64_t{1} << 18;

struct Header {
  char magic[8] = {'P', 'G', 'D', 'T', 'O', 'K', 'E', 'N'};
  int64_t format = kFormat;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  char fingerprint[kHexBytes] = {};
  char tokens_hash[kHexBytes] = {};
  char header_hash[kHexBytes] = {};
};
static_assert(sizeof(Header) == 128);
constexpr int64_t kHeaderBytes = sizeof(Header);

std::string hash_of(const Header& header) {
  Fingerprint hash;
  hash.add(&header, offsetof(Header, header_hash));
  return hash.hex();
}

void put_hex(const std::string& hex, char* out) { std::memcpy(out, hex.data(), kHexBytes); }

// Writes examples as marked tokens behind the header of a token file.
class TokenWriter : public ExampleSink {
 public:
  explicit TokenWriter(OutputFile& file) : file_(file) {}

  Status example(Example&& example) override {
    if (at_start_) example.tokens.front() |= kDocumentMark;
    at_start_ = !example.continues;
    header_.num_documents += at_start_;
    tokens_.insert(tokens_.end(), example.tokens.begin(), example.tokens.end());
    return static_cast<int64_t>(tokens_.size()) >= kBlockTokens ? flush() : Status();
  }
  // Writes what is left, then the header.
  Status finish(const std::string& fingerprint) {
    RETURN_IF_ERROR(flush());
    put_hex(fingerprint, header_.fingerprint);
    put_hex(hash_.hex(), header_.tokens_hash);
    put_hex(hash_of(header_), header_.header_hash);
    RETURN_IF_ERROR(file_.write_at(0, &header_, kHeaderBytes));
    return file_.commit();
  }

 private:
  Status flush() {
    const int64_t bytes = static_cast<int64_t>(tokens_.size()) * 4;
    header_.num_tokens += static_cast<int64_t>(tokens_.size());
    hash_.add(tokens_.data(), bytes);
    const Status status = file_.append(tokens_.data(), bytes);
    tokens_.clear();
    return status;
  }

  OutputFile& file_;
  Header header_;
  Fingerprint hash_;
  std::vector<uint32_t> tokens_;
  bool at_start_ = true;  // of a document
};

Status tokenize(const std::string& path, const std::vector<std::string>& text_paths,
                const Tokenizer& tokenizer, const ExampleOptions& options,
                const std::string& fingerprint) {
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  const Header empty;
  RETURN_IF_ERROR(file.append(&empty, kHeaderBytes));
  TokenWriter writer(file);
  RETURN_IF_ERROR(read_examples(text_paths, tokenizer, options, writer));
  return writer.finish(fingerprint);
}

Status damaged(const std::string& path, const char* why) {
  return Status(Exit::kIoError, strf("%s: the token file is damaged: %s; remove it, it is made "
                                     "again from the text",
                                     printable(path).c_str(), why));
}

}  // namespace

Result<TokenFile> TokenFile::open(const std::string& path) {
  ASSIGN_OR_RETURN(InputFile input, InputFile::open(path, Links::kRefuse));
  TokenFile file(std::move(input));
  Header header;
  if (file.file_.bytes() < kHeaderBytes) return damaged(path, "no header");
  RETURN_IF_ERROR(file.file_.read(0, &header, kHeaderBytes));
  const Header model;
  if (std::memcmp(header.magic, model.magic, sizeof(header.magic)) != 0 ||
      header.format != kFormat || hash_of(header) != std::string(header.header_hash, kHexBytes)) {
    return damaged(path, "wrong header");
  }
  const int64_t bytes = checked_mul(header.num_tokens, 4);
  if (bytes < 0 || bytes != file.file_.bytes() - kHeaderBytes) return damaged(path, "wrong size");
  file.num_tokens_ = header.num_tokens;
  file.num_documents_ = header.num_documents;
  file.fingerprint_ = std::string(header.fingerprint, kHexBytes);
  file.tokens_hash_ = std::string(header.tokens_hash, kHexBytes);
  RETURN_IF_ERROR(file.check_tokens());
  return file;
}

Status TokenFile::check_tokens() const {
  std::vector<uint32_t> block(static_cast<size_t>(std::min(num_tokens_, kBlockTokens)));
  Fingerprint hash;
  for (int64_t first = 0; first < num_tokens_; first += kBlockTokens) {
    const int64_t count = std::min(kBlockTokens, num_tokens_ - first);
    RETURN_IF_ERROR(read(first, count, block.data()));
    hash.add(block.data(), count * 4);
  }
  return hash.hex() == tokens_hash_ ? Status() : damaged(file_.path(), "wrong checksum");
}

Result<TokenFile> TokenFile::open_or_create(const std::string& path,
                                            const std::vector<std::string>& text_paths,
                                            const Tokenizer& tokenizer,
                                            const ExampleOptions& options) {
  ASSIGN_OR_RETURN(const std::string texts, text_fingerprint(text_paths));
  const std::string made_of = texts + tokenizer.identity() + options.cache_key();
  Fingerprint fingerprint;
  fingerprint.add(made_of.data(), static_cast<int64_t>(made_of.size()));
  if (auto present = open(path); present.ok() && present->fingerprint() == fingerprint.hex()) {
    present->reused_ = true;
    return present;
  }
  RETURN_IF_ERROR(tokenize(path, text_paths, tokenizer, options, fingerprint.hex()));
  return open(path);
}

Status TokenFile::read(int64_t first, int64_t count, uint32_t* out) const {
  CHECK(first >= 0 && count >= 0 && first + count <= num_tokens_);
  return file_.read(kHeaderBytes + first * 4, out, count * 4);
}

}  // namespace pagoda
