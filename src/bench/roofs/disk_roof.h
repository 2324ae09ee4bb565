// The rate that a drive gives to the best simple program: the roof for page reads and writes. A
// sweep over a few block sizes and depths finds the setting; the caller then races that setting
// again, because the largest of a noisy sweep is too large.
//
// With fio installed the roof is fio's io_uring engine with direct I/O, registered buffers and
// registered files; else a loop of pread and pwrite on threads (ReadWriteLoop), which drives large
// blocks as fast. Both move non-zero data.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/race/timing.h"
#include "offload/storage.h"

namespace pagoda {

// Bytes of a file that a roof may read and overwrite.
struct FileRegion {
  std::string path;
  int64_t offset = 0;  // multiple of kIoAlign
  int64_t bytes = 0;   // multiple of kIoAlign
};

struct RoofSetting {
  int64_t block_bytes = 0;
  int depth = 0;  // blocks in flight
};

class DiskRoof {
 public:
  virtual ~DiskRoof() = default;
  // "fio-3.33, io_uring, ...".
  virtual std::string describe() const = 0;
  // The settings that a sweep over a region of these bytes tries; at least one.
  virtual std::vector<RoofSetting> settings(int64_t region_bytes) const = 0;
  // Moves as many whole blocks as the region holds, from its beginning. REQUIRES: it holds one.
  virtual Result<Timing> run(IoRequest::Op op, const RoofSetting& setting,
                             const FileRegion& region) = 0;
};

enum class RoofKind : uint8_t { kAuto, kFio, kLoop };

// kAuto takes fio where it is installed and can use io_uring, else the loop. kFio without it is
// kUnavailable. `direct`: whether files there are opened with O_DIRECT.
Result<std::unique_ptr<DiskRoof>> choose_disk_roof(RoofKind kind, bool direct,
                                                   const std::string& directory);

// Each is defined in the file of its name. The first runs fio once, on a small file in `directory`.
Result<std::unique_ptr<DiskRoof>> make_fio_roof(bool direct, const std::string& directory);
std::unique_ptr<DiskRoof> make_loop_roof(bool direct, const std::string& why);

// All pairs of `blocks` and `depths` that keep at most kMostFlightBytes in flight and fit a region;
// a pair of small blocks if none does.
inline constexpr int64_t kMostFlightBytes = int64_t{64} << 20;
std::vector<RoofSetting> setting_grid(const std::vector<int64_t>& blocks,
                                      const std::vector<int>& depths, int64_t region_bytes);

// The setting with the best median of `rounds` passes over all that the roof tries.
Result<RoofSetting> sweep(DiskRoof* roof, IoRequest::Op op, const FileRegion& region, int rounds);

// "1.00 MiB x 16".
std::string setting_text(const RoofSetting& setting);

}  // namespace pagoda
