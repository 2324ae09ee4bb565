#include "kernels/cpu/scratch.h"

#include <array>
#include <cstdlib>
#include <memory>

#include "base/bytes.h"

namespace pagoda {
namespace {

struct Free {
  void operator()(std::byte* p) const { std::free(p); }
};
struct Buffer {
  std::unique_ptr<std::byte, Free> data;
  int64_t bytes = 0;
};

}  // namespace

std::byte* scratch_bytes(Scratch use, int64_t bytes) {
  thread_local std::array<Buffer, static_cast<size_t>(Scratch::kCount)> buffers;
  Buffer& buffer = buffers[static_cast<size_t>(use)];
  if (bytes > buffer.bytes) {
    buffer.data.reset();
    buffer.bytes = align_up(bytes, kIoAlign);
    buffer.data.reset(
        static_cast<std::byte*>(std::aligned_alloc(64, static_cast<size_t>(buffer.bytes))));
    CHECK(buffer.data != nullptr, "out of memory: %lld bytes of kernel scratch",
          static_cast<long long>(bytes));
  }
  return buffer.data.get();
}

}  // namespace pagoda
