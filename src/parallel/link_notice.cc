#include "parallel/link_notice.h"

#include "base/check.h"
#include "base/number_text.h"
#include "parallel/carrier.h"

namespace pagoda {
namespace {

constexpr size_t kMostWhy = 4096;

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
  notice.why = Status(static_cast<Exit>(code), std::string(in.rest()));
  return notice;
}

}  // namespace pagoda
