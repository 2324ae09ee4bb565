// A device's arena before its stream's scratch, given out from its start on; a copy made before
// gives back what came after it.
#pragma once

#include <vector>

#include "base/bytes.h"
#include "device/device.h"

namespace pagoda::check {

class Arena {
 public:
  Arena(Device& device, Stream& s)
      : base_(device.arena()), bytes_(s.scratch().data() - device.arena()) {}
  std::byte* take(int64_t bytes) {
    std::byte* taken = base_ + taken_;
    taken_ += align_up(bytes, 256);
    CHECK(taken_ <= bytes_, "the benchmark needs more memory");
    return taken;
  }
  template <typename T>
  T* take_as(int64_t n) {
    return reinterpret_cast<T*>(take(n * static_cast<int64_t>(sizeof(T))));
  }
  int64_t taken() const { return taken_; }

 private:
  std::byte* base_;
  int64_t bytes_, taken_ = 0;
};

// How much of the stream's scratch the ops in `work` write at most: what is not as it was before.
template <typename Work>
int64_t scratch_used(Stream& s, const Work& work) {
  const auto size = static_cast<int64_t>(s.scratch().size());
  constexpr std::byte kUnused{0x5b};
  std::vector<std::byte> image(s.scratch().size(), kUnused);
  s.copy(s.scratch().data(), image.data(), size);
  work();
  s.copy(image.data(), s.scratch().data(), size);
  s.synchronize();
  int64_t used = size;
  while (used > 0 && image[static_cast<size_t>(used - 1)] == kUnused) --used;
  return used;
}

}  // namespace pagoda::check
