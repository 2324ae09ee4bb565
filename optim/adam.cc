#include "optim/adam.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>

#include "base/bytes.h"
#include "base/target_clones.h"
#include "optim/masters.h"
#include "optim/moments.h"

namespace pagoda {
namespace {

constexpr int64_t kPiece = 1024;   // elements that are unpacked at once: stays in L1
constexpr int64_t kBlock = 65536;  // elements of one parallel task
static_assert(kPiece % kMomentBlock == 0 && kBlock % kPiece == 0);

struct Scalars {
  float keep;         // 1 - lr * weight_decay
  float lerp;         // 1 - beta1
  bool lerp_from_end; // torch.lerp computes from the nearer end
  float lerp_rest;    // beta1
  float beta2;
  float square;       // 1 - beta2
  float root;         // sqrt(1 - beta2^t)
  float eps;
  float rate;         // -lr / (1 - beta1^t)
};

Scalars scalars_of(const AdamStep& s) {
  const auto t = static_cast<double>(s.t);
  const double lerp = 1.0 - s.beta1;
  Scalars c;
  c.keep = static_cast<float>(1.0 - s.lr * s.weight_decay);
  c.lerp = static_cast<float>(lerp);
  c.lerp_from_end = lerp >= 0.5;
  c.lerp_rest = 1.0f - c.lerp;
  c.beta2 = static_cast<float>(s.beta2);
  c.square = static_cast<float>(1.0 - s.beta2);
  c.root = static_cast<float>(std::sqrt(1.0 - std::pow(s.beta2, t)));
  c.eps = static_cast<float>(s.eps);
  c.rate = static_cast<float>(-(s.lr / (1.0 - std::pow(s.beta1, t))));
  return c;
}

PAGODA_TARGET_CLONES void widen_scaled(const bf16* grad, float scale, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_float(grad[i]) * scale;
}

PAGODA_TARGET_CLONES void copy_scaled(const float* grad, float scale, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = grad[i] * scale;
}

PAGODA_TARGET_CLONES void update_values(const Scalars& c, bool decay, const float* __restrict grad,
                                        int64_t n, float* __restrict master, float* __restrict m,
                                        float* __restrict v) {
  const float keep = decay ? c.keep : 1.0f;
  for (int64_t i = 0; i < n; ++i) {
    const float g = grad[i];
    const float difference = g - m[i];
    const float mean = c.lerp_from_end ? g - difference * c.lerp_rest : m[i] + c.lerp * difference;
    const float square = v[i] * c.beta2 + (c.square * g) * g;
    const float denominator = std::sqrt(square) / c.root + c.eps;
    master[i] = master[i] * keep + (c.rate * mean) / denominator;
    m[i] = mean;
    v[i] = square;
  }
}

// The largest magnitude as bits, which order as the values do; infinity and NaN are above all.
PAGODA_TARGET_CLONES uint32_t largest_bits(const float* values, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(values[i]) & 0x7fffffffu);
  }
  return largest;
}

// The scaled gradient of n elements from `first`, in `out`.
void read_gradient(DType dtype, const void* grad, float scale, int64_t first, int64_t n,
                   float* out) {
  if (grad == nullptr) {
    std::fill_n(out, n, 0.0f);
  } else if (dtype == DType::kBF16) {
    widen_scaled(static_cast<const bf16*>(grad) + first, scale, n, out);
  } else {
    copy_scaled(static_cast<const float*>(grad) + first, scale, n, out);
  }
}

// Elements [first, first + n) of a record as fp32: where they are stored as such in place, else
// unpacked here. n <= kPiece, first a multiple of kPiece.
class Piece {
 public:
  Piece(const AdamRecord& record, int64_t first, int64_t n)
      : layout_(record.layout), record_(record), first_(first), n_(n) {
    unpack_masters();
    unpack_moments();
  }

  void update(const Scalars& scalars, const float* gradient) {
    for (const AdamSpan& span : record_.spans) {
      const int64_t begin = std::max(span.begin, first_) - first_;
      const int64_t end = std::min(span.end, first_ + n_) - first_;
      if (begin >= end) continue;
      update_values(scalars, span.decay, gradient + begin, end - begin, master_ + begin,
                    m_ + begin, v_ + begin);
    }
  }

  void store(uint32_t key) {
    if (layout_.weight_dtype == DType::kBF16) {
      split_masters(master_, n_, part<bf16>(record_.weights), remainders());
    }
    if (layout_.format == StateFormat::kBf16) {
      round_moments(m_, n_, key, first_, at<bf16>(layout_.m_at));
      round_moments(v_, n_, ~key, first_, at<bf16>(layout_.v_at));
    }
    if (layout_.format == StateFormat::k8Bit) encode(key);
  }

  uint32_t largest() const { return largest_bits(master_, n_); }

 private:
  template <typename T>
  T* part(void* whole) const {
    return static_cast<T*>(whole) + first_;
  }
  template <typename T>
  T* at(int64_t offset) const {
    return part<T>(record_.state + offset);
  }
  int16_t* remainders() const { return at<int16_t>(layout_.remainders_at); }
  float* scales(int64_t begin) const {
    return reinterpret_cast<float*>(record_.state + layout_.scales_at) +
           2 * ((first_ + begin) / kMomentBlock);
  }

  void unpack_masters() {
    if (layout_.weight_dtype == DType::kF32) {
      master_ = part<float>(record_.weights);
    } else {
      join_masters(part<bf16>(record_.weights), remainders(), n_, master_);
    }
  }

  void unpack_moments() {
    switch (layout_.format) {
      case StateFormat::kFp32:
        m_ = at<float>(layout_.m_at);
        v_ = at<float>(layout_.v_at);
        return;
      case StateFormat::kBf16:
        widen_moments(at<bf16>(layout_.m_at), n_, m_);
        widen_moments(at<bf16>(layout_.v_at), n_, v_);
        return;
      case StateFormat::k8Bit:
        for (int64_t i = 0; i < n_; i += kMomentBlock) {
          const int64_t count = std::min(kMomentBlock, n_ - i);
          const float* scale = scales(i);
          decode_first_moments(at<uint8_t>(layout_.m_at) + i, scale[0], count, m_ + i);
          decode_second_moments(at<uint8_t>(layout_.v_at) + i, scale[1], count, v_ + i);
        }
    }
  }

  void encode(uint32_t key) {
    for (int64_t i = 0; i < n_; i += kMomentBlock) {
      const int64_t count = std::min(kMomentBlock, n_ - i);
      float* scale = scales(i);
      scale[0] = encode_first_moments(m_ + i, count, key, first_ + i,
                                      at<uint8_t>(layout_.m_at) + i);
      scale[1] = encode_second_moments(v_ + i, count, ~key, first_ + i,
                                       at<uint8_t>(layout_.v_at) + i);
    }
  }

  const StateLayout& layout_;
  const AdamRecord& record_;
  const int64_t first_, n_;
  float buffer_[3][kPiece];
  float *master_ = buffer_[0], *m_ = buffer_[1], *v_ = buffer_[2];
};

}  // namespace

bool adam_update(const AdamStep& step, const AdamRecord& record, DType grad_dtype,
                 const void* grad, float grad_scale, ThreadPool& pool) {
  const int64_t n = record.layout.num_elements;
  CHECK(step.t >= 1 && n < int64_t{1} << 32);
  constexpr uint32_t kInfinity = 0x7f800000u, kHalfOfBf16Step = 0x8000u;
  const Scalars scalars = scalars_of(step);
  std::atomic<bool> finite{true};
  pool.parallel_for(div_ceil(n, kBlock), [&](int64_t block) {
    const int64_t end = std::min(n, (block + 1) * kBlock);
    float gradient[kPiece];
    uint32_t largest = 0;
    for (int64_t i = block * kBlock; i < end; i += kPiece) {
      const int64_t count = std::min(kPiece, end - i);
      read_gradient(grad_dtype, grad, grad_scale, i, count, gradient);
      Piece piece(record, i, count);
      piece.update(scalars, gradient);
      piece.store(step.noise_key);
      largest = std::max(largest, piece.largest());
    }
    if (largest + kHalfOfBf16Step >= kInfinity) finite = false;
  });
  return finite;
}

}  // namespace pagoda
