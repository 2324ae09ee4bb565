#include "tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <utility>

#include "base/log.h"
#include "base/utf8.h"
#include "tokenizer/regex_syntax.h"

namespace pagoda {

namespace {

constexpr size_t kMaxPatternBytes = size_t{1} << 14;
constexpr uint32_t kMaxGroupDepth = 32;
constexpr size_t kMaxJitStackBytes = size_t{1} << 24;
// Steps at one place of a text: what a tokenizer needs is the length of a run of blanks; what an
// exponential pattern needs on forty letters is more than this.
constexpr size_t kMaxSteps = 5000000, kMaxStepsPerByte = 2;
// But a step may run over the whole text. What needs more than a few on a long one is searched for
// again by code that looks at the clock as it goes.
constexpr size_t kMaxHurriedBytes = size_t{1} << 25, kMinSteps = 64;
// Many places may each be slow by themselves. So the clock is also read after each block of places
// without a match, and after every kSearchesPerReading matches.
constexpr size_t kBlockBytes = 64;
constexpr uint32_t kSearchesPerReading = 64;
constexpr double kMaxSeconds = 2, kMaxSecondsPerByte = 1e-6;

// Processor time of this thread: a machine that sleeps or is busy makes no text too slow.
double thread_seconds() {
  timespec now = {};
  CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

Status gives_up(std::string_view text, size_t at) {
  size_t bytes = std::min<size_t>(text.size() - at, 40);
  while (at + bytes < text.size() && is_utf8_continuation(text[at + bytes])) --bytes;
  return Status(Exit::kBadData,
                strf("the tokenizer's pattern takes too long on a text of %zu bytes, from byte %zu "
                     "on (\"%s\")",
                     text.size(), at + 1, printable(std::string(text.substr(at, bytes))).c_str()));
}

}  // namespace

struct FreePcre2 {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
  void operator()(pcre2_compile_context* p) const { pcre2_compile_context_free(p); }
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
  void operator()(pcre2_jit_stack* p) const { pcre2_jit_stack_free(p); }
};
template <typename T>
using Pcre2 = std::unique_ptr<T, FreePcre2>;

struct MatchMemory::State {
  State() {
    CHECK(stack != nullptr && context != nullptr && data != nullptr);
    pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
    pcre2_set_callout(context.get(), stop_when_late, this);
  }
  // Sets the limits for a text of `bytes` bytes.
  void begin(size_t bytes) {
    const size_t most = kMaxSteps + kMaxStepsPerByte * bytes;
    const size_t hurried = kMaxHurriedBytes / std::max<size_t>(bytes, 1);
    most_steps = static_cast<uint32_t>(most);
    hurried_steps = static_cast<uint32_t>(std::clamp(hurried, kMinSteps, most));
    pcre2_set_match_limit(context.get(), hurried_steps);
    // Reading the clock would be most of the work for the words that a text was cut into before,
    // and their steps are few.
    end_s = HUGE_VAL;
    if (bytes <= kBlockBytes) return;
    end_s = thread_seconds() + kMaxSeconds + kMaxSecondsPerByte * static_cast<double>(bytes);
  }
  static int stop_when_late(pcre2_callout_block*, void* state) {
    auto* self = static_cast<State*>(state);
    const bool due = ++self->callouts % kSearchesPerReading == 0;
    return due && thread_seconds() > self->end_s ? PCRE2_ERROR_MATCHLIMIT : 0;
  }
  Pcre2<pcre2_jit_stack> stack{pcre2_jit_stack_create(1 << 15, kMaxJitStackBytes, nullptr)};
  Pcre2<pcre2_match_context> context{pcre2_match_context_create(nullptr)};
  Pcre2<pcre2_match_data> data{pcre2_match_data_create(1, nullptr)};  // the whole match only
  uint32_t most_steps = 0, hurried_steps = 0;
  double end_s = 0;  // of the clock
  uint32_t callouts = 0;
};

MatchMemory::MatchMemory() = default;
MatchMemory::~MatchMemory() = default;
MatchMemory::MatchMemory(MatchMemory&&) noexcept = default;
MatchMemory& MatchMemory::operator=(MatchMemory&&) noexcept = default;

struct Pattern::Code {
  // Calls back before each item of the pattern, and has none of PCRE2's shortcuts, which hide what
  // a pattern does where they fail.
  static constexpr uint32_t kCareful = PCRE2_AUTO_CALLOUT | PCRE2_NO_START_OPTIMIZE;

  // "" or why not.
  std::string compile(const std::string& pattern, uint32_t extra_options) {
    const Pcre2<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
    CHECK(context != nullptr);
    pcre2_set_parens_nest_limit(context.get(), kMaxGroupDepth);
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE |
                             PCRE2_USE_OFFSET_LIMIT | extra_options;
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
  // The result of pcre2_match.
  int match(std::string_view text, size_t from, const MatchMemory::State& state) const {
    return pcre2_match(compiled.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                       PCRE2_NO_UTF_CHECK, state.data.get(), state.context.get());
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
  const auto code = std::make_shared<Code>(), careful = std::make_shared<Code>();
  for (const auto& [one, extra] : {std::pair(code, 0u), std::pair(careful, Code::kCareful)}) {
    const std::string error = one->compile(translated, extra);
    if (!error.empty()) return refused("cannot be used: " + error);
  }
  Pattern result;
  result.code_ = result.careful_ = careful;
  if (!result.survives_probes()) return refused("takes exponential time on some texts");
  result.code_ = code;
  return result;
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
      if (!find_all(run + end, &memory, &ignored).ok()) return false;
    }
  }
  return true;
}

void find_literal(std::string_view text, std::string_view literal,
                  std::vector<TokenRange>* matches) {
  for (size_t at = text.find(literal); at != std::string_view::npos;
       at = text.find(literal, at + literal.size())) {
    matches->push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(at + literal.size())});
  }
}

// Searches [from, last] of places for a match's begin; the result of pcre2_match. What takes too
// many steps in a hurry is searched for carefully.
int Pattern::find_next(std::string_view text, size_t from, size_t last,
                       const MatchMemory& memory) const {
  const MatchMemory::State& state = *memory.state_;
  pcre2_set_offset_limit(state.context.get(), last);
  const int rc = code_->match(text, from, state);
  if (rc != PCRE2_ERROR_MATCHLIMIT) return rc;
  pcre2_set_match_limit(state.context.get(), state.most_steps);
  const int careful_rc = careful_->match(text, from, state);
  pcre2_set_match_limit(state.context.get(), state.hurried_steps);
  return careful_rc;
}

Status Pattern::find_all(std::string_view text, MatchMemory* memory,
                         std::vector<TokenRange>* matches) const {
  matches->clear();
  if (code_ == nullptr) {
    find_literal(text, literal_, matches);
    return Status();
  }
  if (memory->state_ == nullptr) memory->state_ = std::make_unique<MatchMemory::State>();
  MatchMemory::State& state = *memory->state_;
  state.begin(text.size());
  const size_t* match = pcre2_get_ovector_pointer(state.data.get());
  uint32_t searches = 0;
  size_t from = 0, last_end = std::string_view::npos;
  while (from <= text.size()) {
    size_t last = std::min(from + kBlockBytes, text.size());
    while (last < text.size() && is_utf8_continuation(text[last])) --last;
    const int rc = find_next(text, from, last, *memory);
    const bool found = rc >= 0;
    if (!found && rc != PCRE2_ERROR_NOMATCH) return gives_up(text, from);
    const bool due = !found || ++searches % kSearchesPerReading == 0;
    if (due && last < text.size() && thread_seconds() > state.end_s) return gives_up(text, from);
    if (!found) {
      if (last == text.size()) break;
      from = last + code_point_at(text, last).bytes;
    } else if (match[0] == match[1] && match[1] == last_end) {
      // No empty match right behind a match: go on one character further.
      from += from < text.size() ? code_point_at(text, from).bytes : 1;
    } else {
      from = last_end = match[1];
      matches->push_back({static_cast<uint32_t>(match[0]), static_cast<uint32_t>(match[1])});
    }
  }
  return Status();
}

}  // namespace pagoda
