#include "bench/roofs/disk_roof.h"

#include "base/bytes.h"
#include "base/stop_signal.h"

namespace pagoda {

Result<std::unique_ptr<DiskRoof>> choose_disk_roof(RoofKind kind, bool direct,
                                                   const std::string& directory) {
  if (kind == RoofKind::kLoop) return make_loop_roof(direct, "");
  auto fio = make_fio_roof(direct, directory);
  if (fio.ok() || kind == RoofKind::kFio) return fio;
  return make_loop_roof(direct, fio.status().message());
}

std::vector<RoofSetting> setting_grid(const std::vector<int64_t>& blocks,
                                      const std::vector<int>& depths, int64_t region_bytes) {
  std::vector<RoofSetting> settings;
  for (const int64_t block : blocks) {
    for (const int depth : depths) {
      if (block <= region_bytes && block * depth <= kMostFlightBytes) {
        settings.push_back({block, depth});
      }
    }
  }
  if (settings.empty()) settings.push_back({kIoAlign, depths.front()});
  return settings;
}

Result<RoofSetting> sweep(DiskRoof* roof, IoRequest::Op op, const FileRegion& region, int rounds) {
  const std::vector<RoofSetting> settings = roof->settings(region.bytes);
  std::vector<std::vector<double>> rates(settings.size());
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < settings.size(); ++i) {
      RETURN_IF_ERROR(stop_status("measuring"));
      ASSIGN_OR_RETURN(const Timing timing, roof->run(op, settings[i], region));
      rates[i].push_back(timing.gb_per_s());
    }
  }
  size_t best = 0;
  for (size_t i = 1; i < settings.size(); ++i) {
    if (quantile(rates[i], 0.5) > quantile(rates[best], 0.5)) best = i;
  }
  return settings[best];
}

std::string setting_text(const RoofSetting& setting) {
  return format_bytes(setting.block_bytes) + strf(" x %d", setting.depth);
}

}  // namespace pagoda
