#include "kernels/cuda/adam.h"

#include "kernels/cuda/machine/reduce.cuh"

namespace pagoda::PAGODA_MACHINE {
namespace {

// Elements before `end`, from the end of the span before.
struct Span {
  int64_t end;
  int64_t decay;
};

struct LargestBits {
  PAGODA_GPU int32_t operator()(int32_t a, int32_t b) const { return a > b ? a : b; }
};

PAGODA_GPU uint32_t rotated_left(uint32_t v, int by) {
  return by == 0 ? v : v << by | v >> (32 - by);
}
PAGODA_GPU bool not_finite(uint32_t bits) { return (bits & 0x7f800000u) == 0x7f800000u; }

// The hash of optim/moments.h.
PAGODA_GPU uint32_t noise_of(uint32_t number, uint32_t key) {
  uint32_t x = number ^ key;
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// Where an element stands among those that share a hash, and how it takes its noise from it.
struct Noise {
  uint32_t low, high;  // halves of `bits` each
  bool odd;
  PAGODA_GPU uint32_t of_m() const { return odd ? high : low; }
  PAGODA_GPU uint32_t of_v() const { return odd ? low : high; }
};

struct Fp32State {
  static constexpr bool kScaled = false;
  PAGODA_GPU static float load_m(const void* m, int64_t i, float) {
    return static_cast<const float*>(m)[i];
  }
  PAGODA_GPU static float load_v(const void* v, int64_t i, float) {
    return static_cast<const float*>(v)[i];
  }
  PAGODA_GPU static void store(void* m, void* v, int64_t i, float new_m, float new_v, uint32_t,
                               float, float) {
    static_cast<float*>(m)[i] = new_m;
    static_cast<float*>(v)[i] = new_v;
  }
};

struct Bf16State {
  static constexpr bool kScaled = false;
  PAGODA_GPU static float load_m(const void* m, int64_t i, float) {
    return widen(static_cast<const bf16*>(m)[i]);
  }
  PAGODA_GPU static float load_v(const void* v, int64_t i, float) {
    return widen(static_cast<const bf16*>(v)[i]);
  }
  PAGODA_GPU static void store(void* m, void* v, int64_t i, float new_m, float new_v, uint32_t key,
                               float, float) {
    const auto number = static_cast<uint32_t>(i / 64 * 16 + i % 32 / 2);
    const uint32_t hash = rotated_left(noise_of(number, key), i % 64 < 32 ? 0 : 6);
    const Noise noise{hash & 0xffffu, hash >> 16, i % 2 != 0};
    static_cast<uint16_t*>(m)[i] = static_cast<uint16_t>((bits_of(new_m) + noise.of_m()) >> 16);
    static_cast<uint16_t*>(v)[i] = static_cast<uint16_t>((bits_of(new_v) + noise.of_v()) >> 16);
  }
};

// Codes as optim/moments.h describes them; words of 16 bits as there, so that they wrap alike.
struct ByteState {
  static constexpr bool kScaled = true;
  static constexpr float kLeastM = 0x1p-15f, kLeastV = 0x1p-31f, kSmallestScale = 0x1p-95f;
  static constexpr uint32_t kSign = 0x80000000u, kDropped = (1u << 20) - 1;

  PAGODA_GPU static int64_t code_at(int64_t i) {
    return i / 64 * 64 + i % 32 / 2 * 4 + i % 2 * 2 + i % 64 / 32;
  }
  PAGODA_GPU static uint16_t high_half(float v) { return static_cast<uint16_t>(bits_of(v) >> 16); }
  PAGODA_GPU static float load_m(const void* m, int64_t i, float scale) {
    const uint32_t code = static_cast<const uint8_t*>(m)[code_at(i)];
    const auto shifted = static_cast<uint32_t>(static_cast<int16_t>(code << 8) >> 4);
    const float value = float_of(((shifted & 0x87f0u) | 0x3800u) << 16);
    const float least = float_of((bits_of(value) & kSign) | bits_of(scale * kLeastM));
    return value * scale - least;
  }
  PAGODA_GPU static float load_v(const void* v, int64_t i, float scale) {
    const uint32_t code = static_cast<const uint8_t*>(v)[code_at(i)];
    return float_of(((code << 4) + high_half(scale * kLeastV)) << 16);
  }
  PAGODA_GPU static void store(void* m, void* v, int64_t i, float new_m, float new_v, uint32_t key,
                               float m_scale, float v_scale) {
    const auto number = static_cast<uint32_t>(i / 128 * 16 + i % 32 / 2);
    uint32_t hash = rotated_left(noise_of(number, key), i % 128 < 64 ? 0 : 3);
    hash = rotated_left(hash, i % 64 < 32 ? 0 : 6);
    const Noise noise{hash & kDropped, hash >> 12, i % 2 != 0};
    const uint32_t least = bits_of(m_scale * kLeastM);
    const float raised = new_m + float_of((bits_of(new_m) & kSign) | least);
    const auto m_code = static_cast<uint16_t>(((bits_of(raised) + noise.of_m()) >> 16) -
                                              (least >> 16));
    const auto m_word = static_cast<uint16_t>((m_code & 0x8000u) | uint32_t{m_code} << 4);
    const uint32_t v_half = (bits_of(new_v) + noise.of_v()) >> 16;
    const uint32_t v_least = high_half(v_scale * kLeastV);
    const uint32_t v_code = v_half > v_least ? v_half - v_least : 0;
    static_cast<uint8_t*>(m)[code_at(i)] = static_cast<uint8_t>(m_word >> 8);
    static_cast<uint8_t*>(v)[code_at(i)] = static_cast<uint8_t>(v_code << 4 >> 8);
  }
  PAGODA_GPU static float scale_of(int32_t largest) {
    constexpr uint32_t kRoom = (1u << 20) + (1u << 10);
    if (largest == 0) return 0.0f;
    const float scale = float_of((static_cast<uint32_t>(largest) + kRoom) & 0x7f800000u);
    return scale < kSmallestScale ? kSmallestScale : scale;
  }
};

// A block has a block of moments, a thread an element; behind the record's end they are zeros.
template <typename W, typename State>
struct AdamUpdate {
  static constexpr int kThreads = kMomentBlock, kSharedBytes = kThreads / kWarp * 4;
  AdamScalars scalars;
  const Span* spans;
  int64_t elements;
  const W* gradient;  // none: zeros
  W* weights;
  int16_t* remainders;
  void *m, *v;
  float* scales;
  int32_t* finite;

  PAGODA_GPU float load_weight(int64_t i) const {
    if constexpr (std::is_same_v<W, float>) {
      return weights[i];
    } else {
      return float_of((uint32_t{weights[i].bits} << 16) + static_cast<uint32_t>(remainders[i]));
    }
  }
  PAGODA_GPU void store_weight(int64_t i, float master) const {
    const uint32_t bits = bits_of(master), half_up = bits + 0x8000u;
    if (not_finite(bits) || not_finite(half_up)) *finite = 0;
    if constexpr (std::is_same_v<W, float>) {
      weights[i] = master;
    } else {
      weights[i] = {static_cast<uint16_t>(half_up >> 16)};
      remainders[i] = static_cast<int16_t>(bits & 0xffffu);
    }
  }
  PAGODA_GPU float keep(int64_t i) const {
    const Span* span = spans;
    while (span->end <= i) ++span;
    return span->decay != 0 ? scalars.keep : 1.0f;
  }

  PAGODA_GPU void operator()() const {
    const int64_t i = block_number() * kThreads + thread_number();
    const bool there = i < elements;
    float* scale = State::kScaled ? scales + 2 * block_number() : nullptr;
    const float old_m = State::kScaled ? scale[0] : 0.0f, old_v = State::kScaled ? scale[1] : 0.0f;
    const float zero = 0.0f;
    const float g = (there && gradient != nullptr ? widen(gradient[i]) : zero) * scalars.grad_scale;
    float new_m, new_v;
    if (there) {
      new_m = State::load_m(m, i, old_m);
      new_v = State::load_v(v, i, old_v);
    } else {
      const uint8_t nothing[kMomentBlock] = {};
      new_m = State::kScaled ? State::load_m(nothing, 0, old_m) : zero;
      new_v = State::kScaled ? State::load_v(nothing, 0, old_v) : zero;
    }
    new_m = scalars.lerp_from_end ? g - (g - new_m) * scalars.lerp_rest
                                  : new_m + scalars.lerp * (g - new_m);
    new_v = new_v * scalars.beta2 + (scalars.square * g) * g;
    float m_scale = 0.0f, v_scale = 0.0f;
    if constexpr (State::kScaled) {
      int32_t* memory = reinterpret_cast<int32_t*>(shared_memory());
      const auto m_bits = static_cast<int32_t>(bits_of(new_m) & 0x7fffffffu);
      const auto v_bits = larger(int64_t{0}, static_cast<int32_t>(bits_of(new_v)));
      m_scale = State::scale_of(join_block<kThreads>(m_bits, LargestBits(), memory));
      v_scale = State::scale_of(
          join_block<kThreads>(static_cast<int32_t>(v_bits), LargestBits(), memory));
      if (thread_number() == 0) {
        scale[0] = m_scale;
        scale[1] = v_scale;
      }
    }
    if (!there) return;
    const float numerator = scalars.rate * new_m, root = sqrtf(new_v);
    const float divisor = (root / scalars.root + (root - root)) + scalars.eps;
    store_weight(i, load_weight(i) * keep(i) + numerator / divisor);
    State::store(m, v, i, new_m, new_v, scalars.noise_key, m_scale, v_scale);
  }
};

template <typename Body>
void with_state(StateFormat format, Body&& body) {
  if (format == StateFormat::kFp32) return body(Fp32State());
  if (format == StateFormat::kBf16) return body(Bf16State());
  body(ByteState());
}

}  // namespace

void adam_update_on_device(const AdamStep& step, const AdamRecord& record, const void* grad,
                           float grad_scale, int32_t* finite, Stream& s) {
  const StateLayout& layout = record.layout;
  CHECK(step.t >= 1 && layout.num_elements < int64_t{1} << 32);
  Queue queue(s, "adam");
  std::vector<Span> spans;
  for (const AdamSpan& span : record.spans) spans.push_back({span.end, span.decay ? 1 : 0});
  Temporary<Span> on_device(queue, static_cast<int64_t>(spans.size()));
  upload(queue, on_device.get(), spans.data(), static_cast<int64_t>(spans.size()));
  const int32_t yes = 1;
  upload(queue, finite, &yes, 1);
  with_type(layout.weight_dtype, [&]<typename W>(W) {
    with_state(layout.format, [&]<typename State>(State) {
      queue.launch(
          div_ceil(layout.num_elements, kMomentBlock),
          AdamUpdate<W, State>{adam_scalars(step, grad_scale), on_device.get(), layout.num_elements,
                               typed<W>(grad), typed<W>(record.weights),
                               reinterpret_cast<int16_t*>(record.state + layout.remainders_at),
                               record.state + layout.m_at, record.state + layout.v_at,
                               reinterpret_cast<float*>(record.state + layout.scales_at), finite});
    });
  });
}

}  // namespace pagoda::PAGODA_MACHINE
