#include "data/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/utf8.h"
#include "data/regex_syntax.h"

namespace pagoda {

namespace {

constexpr size_t kMaxPatternBytes = size_t{1} << 14;
constexpr uint32_t kMaxGroupDepth = 32;
constexpr size_t kMaxJitStackBytes = size_t{1} << 24;
// Steps of one search. What a tokenizer needs on a megabyte of one letter is a few; what an
// exponential pattern needs on forty letters is more than this.
constexpr uint32_t kMaxSteps = 5000000;

struct FreePcre2 {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <typename T>
using Pcre2 = std::unique_ptr<T, FreePcre2>;

}  // namespace

struct MatchMemory::State {
  State() {
    CHECK(stack != nullptr && context != nullptr && data != nullptr);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    pcre2_set_match_limit(context.get(), kMaxSteps);
  }
  Pcre2<pcre2_jit_stack> stack{pcre2_jit_stack_create(1 << 15, kMaxJitStackBytes, nullptr)};
  Pcre2<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Pcre2<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};  // the whole match only
};

MatchMemory::MatchMemory() = default;
MatchMemory::~MatchMemory() = default;
MatchMemory::MatchMemory(MatchMemory&&) noexcept = default;
MatchMemory& MatchMemory::operator=(MatchMemory&&) noexcept = default;

struct Pattern::Code {
  // "" or why not.
  std::string compile(const std::string& pattern, uint32_t extra_options) {
    const Pcre2<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
    CHECK(context != nullptr);
    pcre2_set_parens_nest_limit(context.get(), kMaxGroupDepth);
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    const uint32_t options =
        PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE | extra_options;
    int error = 0;
    size_t offset = 0;
    compiled.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 options, &error, &offset, context.get()));
    if (compiled == nullptr) {
      PCRE2_UCHAR why[256] = {};
      pcre2_get_error_message(error, why, sizeof(why));
      return reinterpret_cast<const char*>(why);
    }
    // Where memory may not be made executable PCRE2 interprets: slower, the same matches.
    (void)pcre2_jit_compile(compiled.get(), PCRE2_JIT_COMPLETE);
    return "";
  }
  Pcre2<pcre2_code> compiled;
};

Pattern Pattern::literal(std::string text) {
  CHECK(!text.empty());
  Pattern pattern;
  pattern.literal_ = std::move(text);
  return pattern;
}

Result<Pattern> Pattern::regex(const std::string& pattern, const std::string& where) {
  const auto refused = [&](const std::string& why) {
    return Status(Exit::kBadData, strf("%s: the pattern \"%s\" %s", where.c_str(),
                                       printable(pattern).c_str(), why.c_str()));
  };
  if (pattern.empty()) return refused("is empty");
  if (pattern.size() > kMaxPatternBytes) return refused("is longer than 16384 bytes");
  ASSIGN_OR_RETURN(const std::string translated, pcre2_pattern(pattern, where));
  // The probes run without PCRE2's shortcuts, which hide what a pattern does where they fail.
  for (const uint32_t extra : {PCRE2_NO_START_OPTIMIZE, 0u}) {
    const auto code = std::make_shared<Code>();
    const std::string error = code->compile(translated, extra);
    if (!error.empty()) return refused("cannot be used: " + error);
    Pattern result;
    result.code_ = code;
    if (extra == 0) return result;
    if (!result.survives_probes()) return refused("takes exponential time on some texts");
  }
  check_failed("unreachable", __FILE__, __LINE__);
}

// Long runs of one kind of character, ended by another: what makes bad patterns backtrack.
bool Pattern::survives_probes() const {
  const char* const units[] = {"a", "A", " ", "1", "!", "\n", "'s", "aB ", "\xE4\xB8\xAD"};
  MatchMemory memory;
  std::vector<TokenRange> ignored;
  for (const char* unit : units) {
    std::string run;
    while (run.size() < 200) run += unit;
    for (const char* end : units) {
      if (!find_all(run + end, &memory, &ignored)) return false;
    }
  }
  return true;
}

bool Pattern::find_literal(std::string_view text, std::vector<TokenRange>* matches) const {
  for (size_t at = text.find(literal_); at != std::string_view::npos;
       at = text.find(literal_, at + literal_.size())) {
    matches->push_back(
        {static_cast<uint32_t>(at), static_cast<uint32_t>(at + literal_.size())});
  }
  return true;
}

bool Pattern::find_all(std::string_view text, MatchMemory* memory,
                       std::vector<TokenRange>* matches) const {
  matches->clear();
  if (code_ == nullptr) return find_literal(text, matches);
  if (memory->state_ == nullptr) memory->state_ = std::make_unique<MatchMemory::State>();
  const MatchMemory::State& state = *memory->state_;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const size_t* found = pcre2_get_ovector_pointer(state.data.get());
  size_t from = 0, last_end = std::string_view::npos;
  while (from <= text.size()) {
    const int rc = pcre2_match(code_->compiled.get(), subject, text.size(), from,
                               PCRE2_NO_UTF_CHECK, state.data.get(),
                               state.context.get());
    if (rc == PCRE2_ERROR_NOMATCH) return true;
    if (rc < 0) return false;
    const size_t begin = found[0], end = found[1];
    if (begin == end && end == last_end) {
      // No empty match right behind a match: go on one character further.
      from += from < text.size() ? code_point_at(text, from).bytes : 1;
      continue;
    }
    from = last_end = end;
    matches->push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
  }
  return true;
}

}  // namespace pagoda
