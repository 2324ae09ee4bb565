#include "tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <utility>

namespace pagoda {

namespace {

struct Part {
  TokenRange range;
  bool is_match;
};

// Matches and what lies between them, in order.
std::vector<Part> parts_of(const std::vector<TokenRange>& matches, uint32_t bytes, bool invert) {
  std::vector<Part> parts;
  parts.reserve(2 * matches.size() + 1);
  uint32_t done = 0;
  for (const TokenRange& match : matches) {
    if (done < match.begin) parts.push_back({{done, match.begin}, invert});
    parts.push_back({match, !invert});
    done = match.end;
  }
  if (done < bytes) parts.push_back({{done, bytes}, invert});
  return parts;
}

// Joins each part for which `joins(part, previous_is_match)` to the one before it.
template <typename Joins>
std::vector<TokenRange> joined(const std::vector<Part>& parts, Joins joins) {
  std::vector<TokenRange> words;
  bool previous_is_match = false;
  for (const Part& part : parts) {
    if (!words.empty() && joins(part.is_match, previous_is_match)) {
      words.back().begin = std::min(words.back().begin, part.range.begin);
      words.back().end = std::max(words.back().end, part.range.end);
    } else {
      words.push_back(part.range);
    }
    previous_is_match = part.is_match;
  }
  return words;
}

std::vector<TokenRange> words_of(std::vector<Part> parts, SplitBehavior behavior) {
  const auto match_to_other = [](bool match, bool previous) { return match && !previous; };
  switch (behavior) {
    case SplitBehavior::kIsolated:
      return joined(parts, [](bool, bool) { return false; });
    case SplitBehavior::kRemoved:
      std::erase_if(parts, [](const Part& part) { return part.is_match; });
      return joined(parts, [](bool, bool) { return false; });
    case SplitBehavior::kContiguous:
      return joined(parts, [](bool match, bool previous) { return match == previous; });
    case SplitBehavior::kMergedWithPrevious:
      return joined(parts, match_to_other);
    case SplitBehavior::kMergedWithNext: {
      std::reverse(parts.begin(), parts.end());
      std::vector<TokenRange> words = joined(parts, match_to_other);
      std::reverse(words.begin(), words.end());
      return words;
    }
  }
  return {};
}

// Cuts [word.begin, word.end) of `text`.
Status cut(const SplitStep& step, std::string_view text, const TokenRange& word,
           MatchMemory* memory, std::vector<TokenRange>* matches, std::vector<TokenRange>* out) {
  const std::string_view part = text.substr(word.begin, word.end - word.begin);
  RETURN_IF_ERROR(step.pattern.find_all(part, memory, matches));
  const auto bytes = static_cast<uint32_t>(part.size());
  const auto add = [&](uint32_t begin, uint32_t end) {
    if (begin < end) out->push_back({word.begin + begin, word.begin + end});
  };
  if (step.behavior == SplitBehavior::kIsolated) {
    uint32_t done = 0;
    for (const TokenRange& match : *matches) {
      add(done, match.begin);
      add(match.begin, match.end);
      done = match.end;
    }
    add(done, bytes);
    return Status();
  }
  for (const TokenRange& range : words_of(parts_of(*matches, bytes, step.invert), step.behavior)) {
    add(range.begin, range.end);
  }
  return Status();
}

}  // namespace

PreTokenizer::PreTokenizer(PrefixStep prefix, std::vector<SplitStep> splits, bool byte_level)
    : prefix_(std::move(prefix)), splits_(std::move(splits)), byte_level_(byte_level) {}

void PreTokenizer::change(AlignedText* text) const {
  if (prefix_.for_spaces) {
    std::vector<TokenRange> spaces;
    find_literal(text->text(), " ", &spaces);
    text->replace(spaces, prefix_.content);
  }
  const bool wanted = prefix_.when == PrefixStep::When::kAlways ||
                      (prefix_.when == PrefixStep::When::kAtStart && text->at_start());
  if (wanted && !text->text().starts_with(prefix_.content)) text->prepend(prefix_.content);
}

Status PreTokenizer::split(std::string_view text, MatchMemory* memory,
                           std::vector<TokenRange>* words) const {
  words->clear();
  if (text.empty()) return Status();
  words->push_back({0, static_cast<uint32_t>(text.size())});
  std::vector<TokenRange> matches, next;
  for (const SplitStep& step : splits_) {
    next.clear();
    for (const TokenRange& word : *words) {
      RETURN_IF_ERROR(cut(step, text, word, memory, &matches, &next));
    }
    words->swap(next);
  }
  return Status();
}

}  // namespace pagoda
