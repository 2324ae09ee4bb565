#include "device/delays.h"

#include <algorithm>
#include <numeric>

namespace pagoda {

const char* work_kind_name(WorkKind kind) {
  switch (kind) {
    case WorkKind::kCompute: return "compute";
    case WorkKind::kUpload: return "upload";
    case WorkKind::kDownload: return "download";
    case WorkKind::kFetch: return "fetch";
    case WorkKind::kWriteBack: return "write_back";
    case WorkKind::kOptimizer: return "optimizer";
    case WorkKind::kWake: return "wake";
    case WorkKind::kOther: return "other";
  }
  return "other";
}

Delays::Delays(WorkKind own) { add(Link(own, 0)); }

Delays::Delays(WorkKind own, int64_t since_us, const Delays& cause) {
  add(Link(own, since_us));
  for (size_t i = 0; i < cause.count_; ++i) add(cause.links_[i]);
}

void Delays::add(const Link& link) {
  if (count_ > 0 && links_[count_ - 1].by() == link.by()) {
    links_[count_ - 1] = link;  // it began earlier
  } else if (count_ < kMostLinks) {
    links_[count_++] = link;
  }
}

std::vector<Delays::Part> Delays::split(int64_t begin_us, int64_t end_us) const {
  std::vector<Part> parts;
  for (size_t i = 0; i < count_ && end_us > begin_us; ++i) {
    const bool oldest = i + 1 == count_;
    const int64_t since_us =
        oldest ? begin_us : std::clamp(links_[i].since_us(), begin_us, end_us);
    if (since_us < end_us) parts.push_back({links_[i].by(), since_us, end_us});
    end_us = since_us;
  }
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
