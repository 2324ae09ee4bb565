#include "parallel/disk_room.h"

#include <map>
#include <sstream>

#include "base/bytes.h"
#include "base/file.h"
#include "base/number_text.h"
#include "parallel/host_name.h"

namespace pagoda {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 52;  // of a rank on a disk

struct Disk {
  int64_t free = kMostBytes, needed = 0;
};

}  // namespace

Result<bool> have_disk_room(RankGroup& ranks, const std::vector<std::string>& directories,
                            int64_t bytes, const std::string& run_folder) {
  std::string own;
  for (const std::string& directory : directories) {
    const std::string there = nearest_directory(directory);
    const int64_t known = free_disk_bytes(there);
    const int64_t free = known < 0 ? kMostBytes : std::min(known, kMostBytes);
    const int64_t needed = std::min(div_ceil(bytes, std::ssize(directories)), kMostBytes);
    const bool in_common = directory.starts_with(run_folder + "/");
    own += strf("%lld %lld ", (long long)free, (long long)needed) +
           (in_common ? "the run's" : host_name() + " " + disk_of(there)) + "\n";
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> all, ranks.agree(Status(), own));
  std::map<std::string, Disk> disks;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::istringstream lines(all[rank]);
    for (std::string line; std::getline(lines, line);) {
      int64_t free = 0, needed = 0;
      NumberReader in(line);
      if (!in.read(free, int64_t{0}, kMostBytes) || !in.read(needed, int64_t{0}, kMostBytes)) {
        return Status(Exit::kIoError, strf("rank %zu sent what is no room of disks; the last "
                                           "checkpoint is intact: see that all ranks run the same "
                                           "program, and resume",
                                           rank));
      }
      Disk& disk = disks[std::string(in.rest())];
      disk.free = std::min(disk.free, free);
      disk.needed += needed;
    }
  }
  for (const auto& [name, disk] : disks) {
    if (disk.needed > disk.free) return false;
  }
  return true;
}

}  // namespace pagoda
