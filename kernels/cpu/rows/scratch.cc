#include "kernels/cpu/rows/scratch.h"

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

using Buffers = std::array<Buffer, static_cast<size_t>(Scratch::kCount)>;

Buffers& own_buffers() {
  thread_local Buffers buffers;
  return buffers;
}

}  // namespace

int64_t held_scratch_bytes() {
  int64_t bytes = 0;
  for (const Buffer& buffer : own_buffers()) bytes += buffer.bytes;
  return bytes;
}

std::byte* scratch_bytes(Scratch use, int64_t bytes) {
  Buffer& buffer = own_buffers()[static_cast<size_t>(use)];
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
