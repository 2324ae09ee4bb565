#include "parallel/link_notice.h"

#include <charconv>

#include "base/check.h"
#include "parallel/carrier.h"

namespace pagoda {
namespace {

constexpr size_t kMostWhy = 4096;

// Numbers that each end in a space.
class NumberReader {
 public:
  explicit NumberReader(const std::string& text)
      : next_(text.data()), end_(text.data() + text.size()) {}

  template <typename T>
  bool read(T& value, T least, T most) {
    const auto [after, error] = std::from_chars(next_, end_, value);
    if (error != std::errc() || after == end_ || *after != ' ') return false;
    next_ = after + 1;
    return value >= least && value <= most;
  }
  std::string rest() const { return std::string(next_, end_); }

 private:
  const char* next_;
  const char* end_;
};

}  // namespace

std::string LinkNotice::to_text() const {
  std::string text = strf("%d %d %zu ", static_cast<int>(why.code()), by, flows.size());
  for (const Flow& flow : flows) {
    text += strf("%d %d %lld ", flow.channel, flow.sends ? 1 : 0, (long long)flow.parts);
  }
  return text + why.message().substr(0, kMostWhy);
}

std::optional<LinkNotice> LinkNotice::parse(const std::string& text, int ranks) {
  constexpr int64_t kMostParts = int64_t{1} << 60;
  LinkNotice notice;
  NumberReader in(text);
  int code = 0;
  size_t flows = 0;
  if (!in.read(code, 1, 255) || !in.read(notice.by, 0, ranks - 1)) return std::nullopt;
  if (!in.read(flows, size_t{0}, size_t{2} * Carrier::kMostChannel)) return std::nullopt;
  for (size_t i = 0; i < flows; ++i) {
    Flow flow;
    int sends = 0;
    if (!in.read(flow.channel, 0, Carrier::kMostChannel) || !in.read(sends, 0, 1) ||
        !in.read(flow.parts, int64_t{0}, kMostParts)) {
      return std::nullopt;
    }
    flow.sends = sends == 1;
    notice.flows.push_back(flow);
  }
  notice.why = Status(static_cast<Exit>(code), in.rest());
  return notice;
}

}  // namespace pagoda
