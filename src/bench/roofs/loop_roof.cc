// pread and pwrite on threads as the roof: each takes the next block until none is left.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "base/bytes.h"
#include "base/descriptor.h"
#include "bench/race/noise.h"
#include "bench/roofs/disk_roof.h"
#include "device/device.h"
#include "offload/chunk.h"

namespace pagoda {
namespace {

class ReadWriteLoop final : public DiskRoof {
 public:
  ReadWriteLoop(bool direct, std::string why) : direct_(direct), why_(std::move(why)) {}

  std::string describe() const override {
    std::string text = "loop of pread and pwrite on threads";
    text += direct_ ? ", O_DIRECT" : ", buffered";
    return why_.empty() ? text : text + " (" + why_ + ")";
  }

  std::vector<RoofSetting> settings(int64_t region_bytes) const override {
    return setting_grid({kMiB, 4 * kMiB, 16 * kMiB}, {1, 4}, region_bytes);
  }

  Result<Timing> run(IoRequest::Op op, const RoofSetting& setting,
                     const FileRegion& region) override {
    const int flags = O_RDWR | O_CLOEXEC | (direct_ ? O_DIRECT : 0);
    const Descriptor file(::open(region.path.c_str(), flags));
    if (!file.ok()) return failed(region.path, errno);
    RETURN_IF_ERROR(make_ready(op, setting));
    const int64_t blocks = region.bytes / setting.block_bytes;
    std::atomic<int64_t> next{0};
    std::atomic<int> error{0};
    const auto move_blocks = [&](int64_t worker) {
      std::byte* buffer = buffers_.data() + worker * setting.block_bytes;
      for (int64_t b = next++; b < blocks && error == 0; b = next++) {
        const int64_t offset = region.offset + b * setting.block_bytes;
        if (const int failure = move(op, file.get(), buffer, setting.block_bytes, offset)) {
          error = failure;
        }
      }
    };
    const TimingClock timer;
    pool_->parallel_for(setting.depth, move_blocks);
    const Timing timing = timer.finish(blocks * setting.block_bytes);
    if (error != 0) return failed(region.path, error);
    return timing;
  }

 private:
  static Status failed(const std::string& path, int error) {
    return Status(Exit::kIoError, strf("%s: %s; nothing but this measurement is lost, check the "
                                       "disk", path.c_str(), error_text(error).c_str()));
  }

  // Threads for this setting, and buffers, of noise if they are to be written.
  Status make_ready(IoRequest::Op op, const RoofSetting& setting) {
    if (!pool_ || pool_->threads() != setting.depth) {
      pool_ = std::make_unique<ThreadPool>(setting.depth);
    }
    const int64_t bytes = setting.depth * setting.block_bytes;
    if (buffers_.bytes() < bytes) {
      ASSIGN_OR_RETURN(buffers_, HostMemory::allocate(bytes));
      noisy_ = false;
    }
    if (op == IoRequest::Op::kWrite && !noisy_) fill_noise(buffers_.data(), buffers_.bytes());
    noisy_ = op == IoRequest::Op::kWrite;
    return Status();
  }

  // 0 or an error number.
  static int move(IoRequest::Op op, int fd, std::byte* data, int64_t bytes, int64_t offset) {
    while (bytes > 0) {
      const auto count = static_cast<size_t>(bytes);
      const ssize_t moved = op == IoRequest::Op::kRead ? ::pread(fd, data, count, offset)
                                                       : ::pwrite(fd, data, count, offset);
      if (moved < 0 && errno == EINTR) continue;
      if (moved <= 0) return moved < 0 ? errno : EIO;
      data += moved;
      bytes -= moved;
      offset += moved;
    }
    return 0;
  }

  const bool direct_;
  const std::string why_;
  std::unique_ptr<ThreadPool> pool_;
  HostMemory buffers_;
  bool noisy_ = false;  // nothing was read into them since they were filled
};

}  // namespace

std::unique_ptr<DiskRoof> make_loop_roof(bool direct, const std::string& why) {
  return std::make_unique<ReadWriteLoop>(direct, why);
}

}  // namespace pagoda
