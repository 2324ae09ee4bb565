#include "tokenizer/aligned_text.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/utf8.h"

namespace pagoda {

TokenRange AlignedText::origin(size_t begin, size_t end) const {
  CHECK(tracked_ && begin < end && end <= text_.size());
  if (!origin_.empty()) return {origin_[begin].begin, origin_[end - 1].end};
  while (is_utf8_continuation(text_[begin])) --begin;
  while (end < text_.size() && is_utf8_continuation(text_[end])) ++end;
  return {begin_ + static_cast<uint32_t>(begin), begin_ + static_cast<uint32_t>(end)};
}

AlignedText AlignedText::slice(size_t begin, size_t end) const {
  // Untracked, only whether it is the original's begin counts, and only a first slice can be.
  const uint32_t from = tracked_ ? origin(begin, end).begin : begin_ + (begin > 0 ? 1u : 0u);
  AlignedText part(std::string_view(text_).substr(begin, end - begin), from, tracked_);
  if (!origin_.empty()) part.origin_.assign(origin_.begin() + begin, origin_.begin() + end);
  return part;
}

void AlignedText::begin_tracking() {
  if (!tracked_ || !origin_.empty()) return;
  origin_.reserve(text_.size());
  for (size_t i = 0; i < text_.size();) {
    const uint32_t bytes = code_point_at(text_, i).bytes, at = begin_ + static_cast<uint32_t>(i);
    origin_.insert(origin_.end(), bytes, TokenRange{at, at + bytes});
    i += bytes;
  }
}

void AlignedText::prepend(std::string_view content) {
  CHECK(!text_.empty());
  begin_tracking();
  text_.insert(0, content);
  if (tracked_) origin_.insert(origin_.begin(), content.size(), TokenRange(origin_.front()));
}

size_t AlignedText::replaced_bytes(const std::vector<TokenRange>& matches,
                                   std::string_view content) const {
  size_t bytes = text_.size() + matches.size() * content.size();
  for (const TokenRange& match : matches) bytes -= match.end - match.begin;
  return bytes;
}

void AlignedText::replace(const std::vector<TokenRange>& matches, std::string_view content) {
  if (matches.empty()) return;
  begin_tracking();
  std::string text;
  std::vector<TokenRange> origin;
  const auto keep = [&](uint32_t begin, uint32_t end) {
    text.append(text_, begin, end - begin);
    if (tracked_) origin.insert(origin.end(), origin_.begin() + begin, origin_.begin() + end);
  };
  uint32_t done = 0;
  for (const TokenRange& match : matches) {
    keep(done, match.begin);
    text += content;
    if (tracked_) {
      const TokenRange from = match.end > 0 ? origin_[match.end - 1] : TokenRange{begin_, begin_};
      origin.insert(origin.end(), content.size(), from);
    }
    done = match.end;
  }
  keep(done, static_cast<uint32_t>(text_.size()));
  text_ = std::move(text);
  origin_ = std::move(origin);
}

void AlignedText::transform(const std::vector<ChangedCodePoint>& changed) {
  begin_tracking();
  std::string text;
  std::vector<TokenRange> origin;
  size_t at = 0;  // in the text before
  const auto skip = [&] { at += at < text_.size() ? code_point_at(text_, at).bytes : 0; };
  for (const ChangedCodePoint& point : changed) {
    const size_t before = text.size();
    append_utf8(point.value, &text);
    if (tracked_) {
      const size_t from = point.change > 0 && at > 0 ? at - 1 : at;
      origin.insert(origin.end(), text.size() - before,
                    origin_[std::min(from, origin_.size() - 1)]);
    }
    if (point.change > 0) continue;
    for (int32_t n = point.change; n <= 0; ++n) skip();
  }
  text_ = std::move(text);
  origin_ = std::move(origin);
}

}  // namespace pagoda
