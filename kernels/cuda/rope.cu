// Rotary position embedding (Su et al. 2021), half-split pairs. Frequencies come from the host, as
// the CPU's do; sines and cosines are computed in double.
#include "kernels/cuda/machine/numbers.cuh"
#include "kernels/cuda/ops_class.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

// A thread rotates a token's pair i in all its heads.
template <typename T>
struct Rope {
  const int32_t* positions;
  const double* frequency;
  double scale;
  int64_t heads, head_dim, half, stride;
  bool inverse;
  T* x;
  PAGODA_GPU void operator()(int64_t t, int64_t i) const {
    const double angle = positions[t] * frequency[i];
    const float cosine = static_cast<float>(scale * cos(angle));
    const float forward = static_cast<float>(scale * sin(angle));
    const float sine = inverse ? -forward : forward;
    for (int64_t head = 0; head < heads; ++head) {
      T* low = x + t * stride + head * head_dim + i;
      const float a = widen(low[0]), b = widen(low[half]);
      low[0] = rounded<T>(a * cosine - b * sine);
      low[half] = rounded<T>(b * cosine + a * sine);
    }
  }
};

}  // namespace

void CudaOps::rope(DType dt, const int32_t* positions, const Rotation& rotation, int64_t tokens,
                   int64_t heads, int64_t head_dim, int64_t rotated, int64_t stride, bool inverse,
                   void* x, Stream& s) {
  CHECK(tokens >= 0 && heads > 0 && rotated > 0 && rotated % 2 == 0);
  CHECK(rotated <= head_dim && stride >= heads * head_dim);
  const int64_t half = rotated / 2;
  const std::vector<double> frequency = rope_frequencies(rotation, rotated);
  Queue queue(s, "rope");
  Temporary<double> table(queue, half);
  upload(queue, table.get(), frequency.data(), half);
  with_type(dt, [&]<typename T>(T) {
    for_each_element(queue, tokens, half,
                     Rope<T>{positions, table.get(), rotation.size, heads, head_dim, half, stride,
                             inverse, typed<T>(x)});
  });
}

}  // namespace pagoda::PAGODA_MACHINE
