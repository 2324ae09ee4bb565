#include "device/delays.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace pagoda {

const char* work_kind_name(WorkKind kind) {
  switch (kind) {
    case WorkKind::kCompute: return "compute";
    case WorkKind::kUpload: return "upload";
    case WorkKind::kDownload: return "download";
    case WorkKind::kFetch: return "fetch";
    case WorkKind::kWriteBack: return "write_back";
    case WorkKind::kOptimizer: return "optimizer";
    case WorkKind::kLink:
      return "link";
    case WorkKind::kWake: return "wake";
    case WorkKind::kOther: return "other";
  }
  return "other";
}

Delays::Delays(WorkKind own) {
  auto chain = std::make_shared<Chain>();
  chain->add({own, 0});
  chain_ = std::move(chain);
}

Delays::Delays(WorkKind own, int64_t since_us, const Delays& cause) {
  auto chain = std::make_shared<Chain>();
  chain->add({own, since_us});
  const size_t links = cause.chain_ ? cause.chain_->count : 0;
  for (size_t i = 0; i < links; ++i) chain->add(cause.chain_->links[i]);
  if (links == 0) chain->add({WorkKind::kOther, 0});
  chain_ = std::move(chain);
}

void Delays::Chain::add(const Link& link) {
  if (count > 0 && links[count - 1].by == link.by) {
    links[count - 1] = link;  // it began earlier
  } else if (count < kMostLinks) {
    links[count++] = link;
  }
}

std::vector<Delays::Part> Delays::split(int64_t begin_us, int64_t end_us) const {
  std::vector<Part> parts;
  const size_t links = chain_ ? chain_->count : 0;
  for (size_t i = 0; i < links && end_us > begin_us; ++i) {
    const Link& link = chain_->links[i];
    const bool oldest = i + 1 == links;
    const int64_t since_us = oldest ? begin_us : std::clamp(link.since_us, begin_us, end_us);
    if (since_us < end_us) parts.push_back({link.by, since_us, end_us});
    end_us = since_us;
  }
  if (links == 0 && begin_us < end_us) parts.push_back({WorkKind::kOther, begin_us, end_us});
  return parts;
}

int64_t StreamTime::all_waits_us() const {
  return std::accumulate(waited_us.begin(), waited_us.end(), int64_t{0});
}

StreamTime StreamTime::operator-(const StreamTime& before) const {
  StreamTime time{busy_us - before.busy_us, idle_us - before.idle_us, waited_us};
  for (size_t k = 0; k < waited_us.size(); ++k) time.waited_us[k] -= before.waited_us[k];
  return time;
}

}  // namespace pagoda
