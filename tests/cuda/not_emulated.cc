// What fake_gpu_ops.cc has of the emulated kernels in builds with a sanitizer, where no test asks
// for them: it does not know their fibers. So the kernels need not be compiled there.
#include "base/check.h"
#include "kernels/cuda/adam.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/machine/machine_emulated.h"

namespace pagoda {

std::unique_ptr<Ops> make_emulated_ops(bool, int, Libraries) {
  CHECK(false, "kernels are not emulated under a sanitizer");
  return nullptr;
}

void emulated::take_heap(bool) {}

void emulated::adam_update_on_device(const AdamStep&, const AdamRecord&, const void*, float,
                                     int32_t*, Stream&) {
  CHECK(false, "kernels are not emulated under a sanitizer");
}

}  // namespace pagoda
