#include "tokenizer/tokenizer.h"

#include <mutex>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/utf8.h"
#include "model/json.h"
#include "tokenizer/end_token.h"
#include "tokenizer/fingerprint.h"
#include "tokenizer/tokenizer_json.h"

namespace pagoda {

namespace {

constexpr int64_t kMaxTokenizerBytes = int64_t{1} << 26;
constexpr JsonLimits kTokenizerLimits = {.max_bytes = kMaxTokenizerBytes,
                                         .max_values = int64_t{1} << 22};
// Part of identity(): raise it when a change here changes ids.
constexpr const char* kEngine = "bpe 1";

// Where a call's results go.
struct Output {
  std::vector<uint32_t>* ids;
  std::vector<TokenRange>* ranges;  // nullptr: not wanted
  void add(uint32_t id, TokenRange range) {
    ids->push_back(id);
    if (ranges != nullptr) ranges->push_back(range);
  }
};

}  // namespace

class Tokenizer::Engine {
 public:
  static Result<std::shared_ptr<const Engine>> open(const std::string& directory);

  int64_t vocab_size() const { return vocab_size_; }
  uint32_t end_of_text() const { return end_of_text_; }
  std::optional<uint32_t> begin_of_text() const { return begin_of_text_; }
  const std::string& identity() const { return identity_; }
  Status encode(std::string_view text, Output out) const;
  std::string decode(std::span<const uint32_t> ids, bool skip_special) const;
  std::optional<uint32_t> find(std::string_view token) const;
  std::vector<std::string> special_tokens() const;

 private:
  // What one call of encode needs, kept for the next.
  struct Memory {
    MatchMemory match;
    BpeMemory bpe;
    std::vector<TextPart> parts, normalized_parts;
    std::vector<TokenRange> words;
    std::vector<WordToken> tokens;
    size_t room_bytes = 0;  // how much longer the normalized text of this call may become
  };

  Engine(TokenizerSpec spec, Bpe bpe);
  Status check_added_tokens(const std::string& where);
  Status check_template(const std::vector<uint32_t>& before_text, const std::string& where);
  Status make_finders();
  const AddedToken* added(uint32_t id) const;
  Status encode_well_formed(std::string_view text, uint32_t begin, Memory* memory,
                            Output* out) const;
  Status encode_text(std::string_view part, uint32_t begin, Memory* memory, Output* out) const;
  Status encode_words(const AlignedText& text, Memory* memory, Output* out) const;
  std::unique_ptr<Memory> take_memory() const;

  std::vector<AddedToken> added_tokens_;
  std::unordered_map<std::string_view, const AddedToken*> added_by_content_;
  std::unordered_map<uint32_t, const AddedToken*> added_by_id_;
  AddedTokenFinder raw_finder_, normalized_finder_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  Decoder decoder_;
  int64_t vocab_size_ = 0;
  uint32_t end_of_text_ = 0;
  std::optional<uint32_t> begin_of_text_;
  std::string identity_;
  mutable std::mutex memory_mutex_;  // guards idle_memory_
  mutable std::vector<std::unique_ptr<Memory>> idle_memory_;
};

Tokenizer::Engine::Engine(TokenizerSpec spec, Bpe bpe)
    : added_tokens_(std::move(spec.added_tokens)),
      normalizer_(std::move(spec.normalizer)),
      pre_tokenizer_(std::move(spec.prefix), std::move(spec.splits), spec.byte_level),
      bpe_(std::move(bpe)),
      decoder_(std::move(spec.decoder)) {}

Result<std::shared_ptr<const Tokenizer::Engine>> Tokenizer::Engine::open(
    const std::string& directory) {
  const std::string path = directory + "/tokenizer.json", where = printable(path);
  ASSIGN_OR_RETURN(const std::string text,
                   read_text_file(path, Links::kFollow, kMaxTokenizerBytes));
  ASSIGN_OR_RETURN(Json root, parse_json(text, path, kTokenizerLimits));
  ASSIGN_OR_RETURN(TokenizerSpec spec, read_tokenizer_json(root, where));
  root = nullptr;  // it is as large again as the result
  ASSIGN_OR_RETURN(Bpe bpe, Bpe::create(std::move(spec.model), spec.byte_level, where + ": model"));
  const std::vector<uint32_t> before_text = spec.before_text;
  std::shared_ptr<Engine> engine(new Engine(std::move(spec), std::move(bpe)));
  RETURN_IF_ERROR(engine->check_added_tokens(where));
  if (const Status status = engine->make_finders(); !status.ok()) {
    return Status(status.code(), where + ": added_tokens: " + status.message());
  }
  RETURN_IF_ERROR(engine->check_template(before_text, where));
  const auto find = [&](const std::string& token) { return engine->find(token); };
  ASSIGN_OR_RETURN(engine->end_of_text_,
                   end_token(directory, engine->added_tokens_, engine->vocab_size_, find));
  Fingerprint fingerprint;
  fingerprint.add(text.data(), static_cast<int64_t>(text.size()));
  engine->identity_ =
      strf("%s, %s, end of text %u", kEngine, fingerprint.hex().c_str(), engine->end_of_text_);
  return std::shared_ptr<const Engine>(std::move(engine));
}

// Hugging Face tokenizers gives an added token the id of the model's token that is spelt like it,
// else the next free one, whatever the file says. Where the two disagree nobody knows which was
// trained.
Status Tokenizer::Engine::check_added_tokens(const std::string& where) {
  const Vocabulary& vocabulary = bpe_.vocabulary();
  int64_t next = vocabulary.size();
  vocab_size_ = vocabulary.end_id();
  for (size_t i = 0; i < added_tokens_.size(); ++i) {
    const AddedToken& token = added_tokens_[i];
    const auto bad = [&](const std::string& why) {
      return Status(Exit::kBadData, strf("%s: added_tokens[%zu] (\"%s\"): %s", where.c_str(), i,
                                         printable(token.content).c_str(), why.c_str()));
    };
    const auto known = vocabulary.find(token.content);
    const int64_t expected = known ? int64_t{*known} : next;
    if (!added_by_content_.try_emplace(token.content, &token).second) return bad("comes twice");
    if (!added_by_id_.try_emplace(token.id, &token).second) {
      return bad(strf("id %u is that of another added token", token.id));
    }
    if (token.id != expected) {
      return bad(strf("has id %u, where Hugging Face tokenizers would give %lld", token.id,
                      (long long)expected));
    }
    if (!known || token.id >= next) next = int64_t{token.id} + 1;
    vocab_size_ = std::max(vocab_size_, int64_t{token.id} + 1);
  }
  return Status();
}

Status Tokenizer::Engine::check_template(const std::vector<uint32_t>& before_text,
                                         const std::string& where) {
  if (before_text.empty()) return Status();
  begin_of_text_ = before_text[0];
  if (before_text.size() == 1 && before_text[0] < vocab_size_) return Status();
  return Status(
      Exit::kBadData,
      strf("%s: post_processor: puts %zu tokens before a text, the first %u; pagoda knows "
           "one at most, from the vocabulary",
           where.c_str(), before_text.size(), before_text[0]));
}

Status Tokenizer::Engine::make_finders() {
  MatchMemory memory;
  size_t content_bytes = 0;
  for (const AddedToken& token : added_tokens_) content_bytes += token.content.size();
  size_t room_bytes = most_changed_bytes(content_bytes);
  for (AddedToken& token : added_tokens_) {
    AlignedText text(token.content, 0, false);
    if (token.normalized) RETURN_IF_ERROR(normalizer_.apply(&text, &memory, &room_bytes));
    token.spelling = text.text();
  }
  raw_finder_ = AddedTokenFinder(added_tokens_, false);
  normalized_finder_ = AddedTokenFinder(added_tokens_, true);
  return Status();
}

const AddedToken* Tokenizer::Engine::added(uint32_t id) const {
  const auto found = added_by_id_.find(id);
  return found == added_by_id_.end() ? nullptr : found->second;
}

std::optional<uint32_t> Tokenizer::Engine::find(std::string_view token) const {
  const auto found = added_by_content_.find(token);
  if (found != added_by_content_.end()) return found->second->id;
  return bpe_.vocabulary().find(token);
}

std::unique_ptr<Tokenizer::Engine::Memory> Tokenizer::Engine::take_memory() const {
  const std::lock_guard lock(memory_mutex_);
  if (idle_memory_.empty()) return std::make_unique<Memory>();
  std::unique_ptr<Memory> memory = std::move(idle_memory_.back());
  idle_memory_.pop_back();
  return memory;
}

Status Tokenizer::Engine::encode(std::string_view text, Output out) const {
  CHECK(text.size() < (uint64_t{1} << 32), "%zu bytes", text.size());
  std::unique_ptr<Memory> memory = take_memory();
  memory->room_bytes = most_changed_bytes(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t good = std::min(first_invalid_utf8(text.substr(at)), text.size() - at);
    RETURN_IF_ERROR(encode_well_formed(text.substr(at, good), static_cast<uint32_t>(at),
                                       memory.get(), &out));
    at += good;
    if (at == text.size()) break;
    const size_t before = out.ids->size();
    bpe_.encode_byte(static_cast<uint8_t>(text[at]), out.ids);
    const auto place = static_cast<uint32_t>(at++);
    if (out.ranges != nullptr && out.ids->size() > before)
      out.ranges->push_back({place, place + 1});
  }
  const std::lock_guard lock(memory_mutex_);
  idle_memory_.push_back(std::move(memory));
  return Status();
}

// `begin`: where `text` begins in the text that ranges count in.
Status Tokenizer::Engine::encode_well_formed(std::string_view text, uint32_t begin, Memory* memory,
                                             Output* out) const {
  memory->parts.clear();
  raw_finder_.split(text, &memory->parts);
  for (const TextPart& part : memory->parts) {
    const auto [from, to] = part.range;
    if (part.token != nullptr) {
      out->add(part.token->id, {begin + from, begin + to});
    } else {
      RETURN_IF_ERROR(encode_text(text.substr(from, to - from), begin + from, memory, out));
    }
  }
  return Status();
}

Status Tokenizer::Engine::encode_text(std::string_view part, uint32_t begin, Memory* memory,
                                      Output* out) const {
  AlignedText text(part, begin, out->ranges != nullptr);
  RETURN_IF_ERROR(normalizer_.apply(&text, &memory->match, &memory->room_bytes));
  memory->normalized_parts.clear();
  normalized_finder_.split(text.text(), &memory->normalized_parts);
  for (const TextPart& piece : memory->normalized_parts) {
    const auto [from, to] = piece.range;
    if (piece.token != nullptr) {
      out->add(piece.token->id, out->ranges != nullptr ? text.origin(from, to) : TokenRange{});
    } else if (from == 0 && to == text.text().size() && !pre_tokenizer_.changes_text()) {
      RETURN_IF_ERROR(encode_words(text, memory, out));
    } else {
      AlignedText words = text.slice(from, to);
      pre_tokenizer_.change(&words);
      RETURN_IF_ERROR(encode_words(words, memory, out));
    }
  }
  return Status();
}

Status Tokenizer::Engine::encode_words(const AlignedText& text, Memory* memory,
                                       Output* out) const {
  RETURN_IF_ERROR(pre_tokenizer_.split(text.text(), &memory->match, &memory->words));
  for (const auto [begin, end] : memory->words) {
    memory->tokens.clear();
    bpe_.encode(text.text().substr(begin, end - begin), &memory->bpe, &memory->tokens);
    for (const WordToken& token : memory->tokens) {
      out->ids->push_back(token.id);
      if (out->ranges == nullptr) continue;
      out->ranges->push_back(text.origin(begin + token.begin, begin + token.end));
    }
  }
  return Status();
}

std::string Tokenizer::Engine::decode(std::span<const uint32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const uint32_t id : ids) {
    if (const AddedToken* token = added(id)) {
      // Hugging Face tokenizers knows a special token by its content and no longer when the
      // normalizer changes it.
      const bool is_special = token->special && token->spelling == token->content;
      if (!skip_special || !is_special) tokens.push_back(token->spelling);
    } else if (const std::string* spelling = bpe_.vocabulary().spelling(id)) {
      tokens.push_back(*spelling);
    }
  }
  return decoder_.decode(std::move(tokens));
}

std::vector<std::string> Tokenizer::Engine::special_tokens() const {
  std::vector<std::string> texts;
  for (const AddedToken& token : added_tokens_) {
    if (token.special && !token.content.empty()) texts.push_back(token.content);
  }
  return texts;
}

Result<Tokenizer> Tokenizer::open(const std::string& directory) {
  ASSIGN_OR_RETURN(std::shared_ptr<const Engine> engine, Engine::open(directory));
  return Tokenizer(std::move(engine));
}

int64_t Tokenizer::vocab_size() const { return engine_->vocab_size(); }
uint32_t Tokenizer::end_of_text() const { return engine_->end_of_text(); }
std::optional<uint32_t> Tokenizer::begin_of_text() const { return engine_->begin_of_text(); }
std::string Tokenizer::identity() const { return engine_->identity(); }

Status Tokenizer::encode(std::string_view text, std::vector<uint32_t>* ids,
                         std::vector<TokenRange>* ranges) const {
  return engine_->encode(text, {ids, ranges});
}

std::string Tokenizer::decode(std::span<const uint32_t> ids, bool skip_special) const {
  return engine_->decode(ids, skip_special);
}

std::vector<std::string> Tokenizer::special_tokens() const { return engine_->special_tokens(); }

std::optional<uint32_t> Tokenizer::find(std::string_view token) const {
  return engine_->find(token);
}

}  // namespace pagoda
