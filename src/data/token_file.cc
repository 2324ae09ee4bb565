#include "data/token_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "data/text_source.h"
#include "data/token_writer.h"
#include "tokenizer/fingerprint.h"

namespace pagoda {

static_assert(std::endian::native == std::endian::little, "words are written as they lie");

namespace {

constexpr int64_t kFormat = 2;
constexpr int64_t kHexBytes = 32;
constexpr int64_t kEntryBytes = sizeof(TokenIndexEntry);
constexpr int64_t kIndexBlock = 4096;  // documents looked at together
constexpr int64_t kMostDocuments = int64_t{1} << 31;

struct Header {
  char magic[8] = {'P', 'G', 'D', 'T', 'O', 'K', 'E', 'N'};
  int64_t format = kFormat;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  int64_t num_words = 0;
  char data_hash[kHexBytes] = {};
  char tokenizer_hash[kHexBytes] = {};
  char options_hash[kHexBytes] = {};
  char content_hash[kHexBytes] = {};
  char header_hash[kHexBytes] = {};
};
static_assert(sizeof(Header) == 200);
constexpr int64_t kHeaderBytes = sizeof(Header);

std::string hash_of(const Header& header) {
  Fingerprint hash;
  hash.add(&header, offsetof(Header, header_hash));
  return hash.hex();
}

void put_hex(const std::string& hex, char* out) { std::memcpy(out, hex.data(), kHexBytes); }
std::string get_hex(const char* hex) { return std::string(hex, kHexBytes); }

Status unusable(const std::string& path, const char* why) {
  return Status(Exit::kIoError, strf("%s: the token cache cannot be used: %s; it is made again "
                                     "from the data", printable(path).c_str(), why));
}

// Bytes of a file with this header, or -1 when its numbers cannot be.
int64_t file_bytes(const Header& header) {
  constexpr int64_t kMost = int64_t{1} << 60;
  const int64_t words = checked_mul(header.num_words, 4);
  const int64_t index = checked_mul(header.num_documents, kEntryBytes);
  const bool good = words >= 0 && words < kMost && index >= 0 && index < kMost &&
                    header.num_documents <= kMostDocuments;
  return good ? kHeaderBytes + words + index : -1;
}

}  // namespace

int64_t TokenFile::index_offset() const { return kHeaderBytes + num_words_ * 4; }

std::string TokenFile::fingerprint() const {
  return fingerprint_of(strf("%lld ", (long long)kFormat) + key_.data + key_.tokenizer +
                        key_.options);
}

Status TokenFile::create(const std::string& path, const TokenKey& key,
                         const std::function<Status(ExampleSink&)>& read) {
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path));
  Header header;
  RETURN_IF_ERROR(file.append(&header, kHeaderBytes));
  TokenWriter writer(file);
  RETURN_IF_ERROR(read(writer));
  RETURN_IF_ERROR(writer.finish());
  header.num_tokens = writer.num_tokens();
  header.num_documents = writer.num_documents();
  header.num_words = writer.num_words();
  put_hex(key.data, header.data_hash);
  put_hex(key.tokenizer, header.tokenizer_hash);
  put_hex(key.options, header.options_hash);
  put_hex(writer.content_hash(), header.content_hash);
  put_hex(hash_of(header), header.header_hash);
  RETURN_IF_ERROR(file.write_at(0, &header, kHeaderBytes));
  return file.commit();
}

Result<TokenFile> TokenFile::open(const std::string& path) {
  ASSIGN_OR_RETURN(InputFile input, InputFile::open(path, Links::kRefuse));
  TokenFile file(std::move(input));
  Header header;
  if (file.file_.bytes() < kHeaderBytes) return unusable(path, "it has no header");
  RETURN_IF_ERROR(file.file_.read(0, &header, kHeaderBytes));
  if (std::memcmp(header.magic, Header().magic, sizeof(header.magic)) != 0 ||
      header.format != kFormat) {
    return unusable(path, "it is of another format");
  }
  if (hash_of(header) != get_hex(header.header_hash)) {
    return unusable(path, "its header is damaged");
  }
  if (file_bytes(header) != file.file_.bytes()) return unusable(path, "its size is wrong");
  file.num_tokens_ = header.num_tokens;
  file.num_documents_ = header.num_documents;
  file.num_words_ = header.num_words;
  file.key_ = {get_hex(header.data_hash), get_hex(header.tokenizer_hash),
               get_hex(header.options_hash)};
  file.content_hash_ = get_hex(header.content_hash);
  RETURN_IF_ERROR(file.check_content());
  RETURN_IF_ERROR(file.check_index());
  return file;
}

Status TokenFile::check_content() const {
  std::string block(static_cast<size_t>(kMiB), '\0');
  Fingerprint hash;
  for (int64_t at = kHeaderBytes; at < file_.bytes(); at += kMiB) {
    const int64_t bytes = std::min(kMiB, file_.bytes() - at);
    RETURN_IF_ERROR(file_.read(at, block.data(), bytes));
    hash.add(block.data(), bytes);
  }
  return hash.hex() == content_hash_ ? Status() : unusable(file_.path(), "its checksum is wrong");
}

// The checksum finds accidents, not what somebody wrote: documents must lie behind each other and
// have the tokens that the header tells.
Status TokenFile::check_index() const {
  const Status wrong = unusable(file_.path(), "its index is wrong");
  std::vector<TokenDocument> block(static_cast<size_t>(kIndexBlock));
  int64_t next_word = 0, tokens = 0;
  for (int64_t first = 0; first < num_documents_; first += kIndexBlock) {
    const int64_t count = std::min(kIndexBlock, num_documents_ - first);
    RETURN_IF_ERROR(documents(first, count, block.data()));
    for (int64_t i = 0; i < count; ++i) {
      const TokenDocument& d = block[static_cast<size_t>(i)];
      const bool trained = d.first_trained != kNoneTrained;
      if (d.first_word != next_word || d.num_tokens < 1 || d.num_tokens > num_words_) return wrong;
      if (trained && d.first_trained >= d.num_tokens) return wrong;
      next_word += d.num_tokens + 2 * d.num_runs;
      tokens += d.num_tokens;
    }
  }
  return next_word == num_words_ && tokens == num_tokens_ ? Status() : wrong;
}

Result<TokenFile> TokenFile::open_or_create(const std::string& path, const TokenKey& key,
                                            const std::function<Status(ExampleSink&)>& read) {
  if (auto present = open(path); !present.ok()) {
    if (present.status().code() != Exit::kNoInput) log_warn(present.status().message());
  } else if (present->key_ == key) {
    present->reused_ = true;
    return present;
  } else {
    const TokenKey& other = present->key_;
    const char* what = other.data != key.data             ? "other data"
                       : other.tokenizer != key.tokenizer ? "another tokenizer"
                                                          : "another template or other options";
    log_info(strf("%s: the token cache was made with %s; it is made again",
                  printable(path).c_str(), what));
  }
  RETURN_IF_ERROR(create(path, key, read));
  return open(path);
}

Result<TokenFile> TokenFile::open_or_create(const std::string& path,
                                            const std::vector<std::string>& data_paths,
                                            const Tokenizer& tokenizer,
                                            const ExampleOptions& options) {
  ASSIGN_OR_RETURN(const std::string data, fingerprint_of_files(data_paths));
  ASSIGN_OR_RETURN(TokenFile file, open_or_create(
      path, {data, fingerprint_of(tokenizer.identity()), fingerprint_of(options.cache_key())},
      [&](ExampleSink& sink) { return read_examples(data_paths, tokenizer, options, sink); }));
  // A cache may come from a larger machine.
  RETURN_IF_ERROR(check_row_count(file.num_documents(), options.most_rows, path));
  file.num_ids_ = tokenizer.vocab_size();
  return file;
}

Status TokenFile::documents(int64_t first, int64_t count, TokenDocument* out) const {
  CHECK(first >= 0 && count >= 0 && first + count <= num_documents_);
  // One entry more says where the last document ends.
  const bool more = first + count < num_documents_;
  std::vector<TokenIndexEntry> entries(static_cast<size_t>(count) + 1);
  entries.back().first_word = static_cast<uint64_t>(num_words_);
  RETURN_IF_ERROR(file_.read(index_offset() + first * kEntryBytes, entries.data(),
                             (count + more) * kEntryBytes));
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const TokenIndexEntry& entry = entries[i];
    const uint64_t tokens =
        entries[i + 1].first_word - entry.first_word - 2 * uint64_t{entry.num_runs};
    out[i] = {static_cast<int64_t>(entry.first_word), static_cast<int64_t>(tokens),
              entry.num_runs, entry.first_trained};
  }
  return Status();
}

Status TokenFile::tokens(const TokenDocument& document, int64_t first, int64_t count,
                         uint32_t* out) const {
  CHECK(first >= 0 && count >= 0 && first + count <= document.num_tokens);
  RETURN_IF_ERROR(file_.read(kHeaderBytes + (document.first_word + first) * 4, out, count * 4));
  if (std::all_of(out, out + count, [this](uint32_t id) { return id < num_ids_; })) return Status();
  return Status(Exit::kIoError,
                strf("%s: holds a token that the tokenizer does not have; remove the file, it is "
                     "made again", printable(file_.path()).c_str()));
}

Status TokenFile::weights(const TokenDocument& document, int64_t count, float* out) const {
  CHECK(count >= 0 && count <= document.num_tokens);
  std::fill_n(out, count, 1.0f);
  // Each run has at least one token.
  std::vector<WeightRun> runs(static_cast<size_t>(std::min(document.num_runs, count)));
  RETURN_IF_ERROR(file_.read(kHeaderBytes + (document.first_word + document.num_tokens) * 4,
                             runs.data(), static_cast<int64_t>(runs.size() * sizeof(WeightRun))));
  int64_t at = 0;
  for (const WeightRun& run : runs) {
    const int64_t tokens = std::min<int64_t>(run.count, count - at);
    std::fill_n(out + at, tokens, run.weight);
    at += tokens;
  }
  return Status();
}

}  // namespace pagoda
