// Which unit and tiles a product is computed with: the one table of choices. None of them changes a
// bit but that of the unit, which the type and the processor decide.
#pragma once

#include "kernels/cuda/tiles/products.cuh"

namespace pagoda::PAGODA_MACHINE {

// body(Shape()) for operands of dt; `large_tiles`: how many large tiles the result has. Where they
// are too few to occupy the processor, small ones occupy more of it.
template <typename Body>
void with_shape(Processor processor, DType dt, int64_t large_tiles, Body&& body) {
  if (dt == DType::kF32) return body(SmallShape<PlainUnit<float>>());
  if (!processor.bf16_cores) return body(SmallShape<Fp16Unit>());
  if (large_tiles < processor.multiprocessors) return body(SmallShape<TensorUnit>());
  body(LargeShape());
}

}  // namespace pagoda::PAGODA_MACHINE
