// The one table that chooses the unit and the tiles of a product. Only the choice of the unit,
// which the type and the processor decide, changes bits.
#pragma once

#include "kernels/cuda/tiles/products.cuh"

namespace pagoda::PAGODA_MACHINE {

// Calls body(Shape()) for operands of dt. `large_tiles`: how many tiles of Large the result has. If
// they are too few to occupy the processor, small tiles occupy more of it.
template <typename Large, typename Body>
void with_shape(Processor processor, DType dt, int64_t large_tiles, Body&& body) {
  if (dt == DType::kF32) return body(SmallShape<PlainUnit<float>>());
  if (!processor.bf16_cores) return body(SmallShape<Fp16Unit>());
  if (large_tiles < processor.multiprocessors) return body(SmallShape<TensorUnit>());
  body(Large());
}

}  // namespace pagoda::PAGODA_MACHINE
