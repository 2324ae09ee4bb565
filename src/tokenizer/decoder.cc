#include "tokenizer/decoder.h"

#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/normalizer.h"

namespace pagoda {

namespace {

using Tokens = std::vector<std::string>;

std::string join(const Tokens& tokens, const char* between) {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) text += between;
    text += tokens[i];
  }
  return text;
}

Tokens from_byte_alphabet(const Tokens& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) append_spelt_bytes(token, &bytes);
  return {replace_invalid_utf8(bytes)};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// The byte of "<0xNN>", or -1.
int fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const int high = hex_digit(token[3]), low = hex_digit(token[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

Tokens from_fallback_bytes(const Tokens& tokens) {
  Tokens out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    const bool whole = first_invalid_utf8(bytes) == std::string_view::npos;
    if (whole) out.push_back(bytes);
    for (size_t i = 0; !whole && i < bytes.size(); ++i) out.emplace_back(kReplacementCharacter);
    bytes.clear();
  };
  for (const std::string& token : tokens) {
    const int byte = fallback_byte(token);
    if (byte >= 0) {
      bytes.push_back(static_cast<char>(byte));
    } else {
      flush();
      out.push_back(token);
    }
  }
  flush();
  return out;
}

size_t bytes_of(const Tokens& tokens) {
  size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  return bytes;
}

// Decoded text is shown, not trained on: what a pattern gives up on stays as it is, and so does
// what would make the whole text longer than `most_bytes`.
void replace(const DecoderStep& step, size_t most_bytes, MatchMemory* memory, Tokens* tokens) {
  size_t bytes = bytes_of(*tokens);
  std::vector<TokenRange> matches;
  for (std::string& token : *tokens) {
    if (!step.pattern->find_all(token, memory, &matches).ok()) continue;
    AlignedText text(token, 0, false);
    const size_t changed = bytes - token.size() + text.replaced_bytes(matches, step.content);
    if (changed > most_bytes) continue;
    text.replace(matches, step.content);
    token = text.text();
    bytes = changed;
  }
}

std::string stripped(std::string_view token, const DecoderStep& step) {
  for (uint32_t n = 0; n < step.begin && token.starts_with(step.content); ++n) {
    token.remove_prefix(step.content.size());
  }
  for (uint32_t n = 0; n < step.end && token.ends_with(step.content); ++n) {
    token.remove_suffix(step.content.size());
  }
  return std::string(token);
}

std::string with_spaces(const std::string& token, const DecoderStep& step, bool first) {
  std::string text;
  for (size_t i = 0; i < token.size();) {
    if (token.compare(i, step.content.size(), step.content) == 0) {
      if (!first || step.begin > 0) text += ' ';
      i += step.content.size();
    } else {
      text += token[i++];
    }
  }
  return text;
}

Tokens apply(const DecoderStep& step, Tokens tokens, size_t most_bytes, MatchMemory* memory) {
  switch (step.kind) {
    case DecoderStep::Kind::kByteLevel:
      return from_byte_alphabet(tokens);
    case DecoderStep::Kind::kByteFallback:
      return from_fallback_bytes(tokens);
    case DecoderStep::Kind::kFuse:
      return {join(tokens, "")};
    case DecoderStep::Kind::kReplace:
      replace(step, most_bytes, memory, &tokens);
      return tokens;
    case DecoderStep::Kind::kStrip:
      for (std::string& token : tokens) token = stripped(token, step);
      return tokens;
    case DecoderStep::Kind::kMetaspace:
      for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = with_spaces(tokens[i], step, i == 0);
      return tokens;
  }
  return tokens;
}

}  // namespace

std::string Decoder::decode(std::vector<std::string> tokens) const {
  if (steps_.empty()) return join(tokens, " ");
  MatchMemory memory;
  const size_t most_bytes = most_changed_bytes(bytes_of(tokens));
  for (const DecoderStep& step : steps_) {
    tokens = apply(step, std::move(tokens), most_bytes, &memory);
  }
  return join(tokens, "");
}

}  // namespace pagoda
