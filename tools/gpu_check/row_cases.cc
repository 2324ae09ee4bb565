// Rows, embeddings, rotary embedding, short convolutions, SwiGLU, gates, finished gradients: mostly
// to the bit.
#include "tools/gpu_check/trial.h"

namespace pagoda::check {
namespace {

std::vector<int32_t> scattered(int64_t n, int64_t of) {
  std::vector<int32_t> rows;
  for (int64_t i = 0; i < n; ++i) rows.push_back(static_cast<int32_t>((i * 7 + 3) % of));
  return rows;
}

std::string named(const char* op, DType dt, int64_t n, int64_t dim) {
  return strf("%s %s %lld x %lld", op, dtype_name(dt), static_cast<long long>(n),
              static_cast<long long>(dim));
}

void add_rows(DType dt, int64_t n, int64_t dim, std::vector<OpCase>& cases) {
  constexpr int64_t kRows = 50;
  cases.push_back({named("gather_rows", dt, n, dim), [=](Trial& t) {
    Tensor &x = t.random(dt, kRows * dim, 1), &rows = t.ints(scattered(n, kRows));
    Tensor& out = t.filled(dt, n * dim);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.gather_rows(dt, at(x), at(rows), n, dim, at(out), s);
    });
    t.expect_same("out", out);
  }});
  for (bool scaled : {false, true}) {
    cases.push_back({named("scatter_add_rows", dt, n, dim), [=](Trial& t) {
      Tensor &x = t.random(dt, n * dim, 2), &rows = t.ints(scattered(n, kRows));
      Tensor &scale = t.random(DType::kF32, n, 3), &y = t.random(DType::kF32, kRows * dim, 4);
      t.run([&](Ops& ops, const At& at, Stream& s) {
        const float* factors = scaled ? static_cast<float*>(at(scale)) : nullptr;
        ops.scatter_add_rows(dt, at(x), at(rows), factors, n, dim, at(y), s);
      });
      t.expect_same("y", y);
    }});
  }
  cases.push_back({named("embedding", dt, n, dim), [=](Trial& t) {
    constexpr int64_t kVocab = 9;
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i < 20 * n; ++i) tokens.push_back(static_cast<int32_t>(i * i % kVocab));
    const auto count = static_cast<int64_t>(tokens.size());
    Tensor &ids = t.ints(tokens), &table = t.random(dt, kVocab * dim, 5);
    Tensor &out = t.filled(dt, count * dim), &dout = t.random(dt, count * dim, 6);
    Tensor& dtable = t.random(DType::kF32, kVocab * dim, 7);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.embedding(dt, at(ids), at(table), count, dim, at(out), s);
      ops.embedding_backward(dt, at(ids), at(dout), count, dim, -1, at(dtable), s);
      ops.embedding_backward(dt, at(ids), at(dout), count, dim, tokens[1], at(dtable), s);
    });
    t.expect_same("out", out);
    t.expect_same("dtable", dtable);
  }});
}

void add_swiglu(DType dt, const SwigluShape& shape, int64_t n, int64_t f, bool scaled,
                bool in_place, std::vector<OpCase>& cases) {
  cases.push_back({named("swiglu", dt, n, f), [=](Trial& t) {
    Tensor &gate_up = t.random(dt, n * 2 * f, 8, 3.0), &dact = t.random(dt, n * f, 9);
    Tensor &scale = t.random(DType::kF32, n, 10), &act = t.filled(dt, n * f);
    Tensor &apart = t.filled(dt, n * 2 * f), &scaled_act = t.filled(dt, n * f);
    Tensor& dscale = t.filled(DType::kF32, n);
    Tensor& dgate_up = in_place ? gate_up : apart;
    t.run([&](Ops& ops, const At& at, Stream& s) {
      const float* factors = scaled ? static_cast<float*>(at(scale)) : nullptr;
      ops.swiglu(dt, shape, at(gate_up), n, f, at(act), s);
      ops.swiglu_backward(dt, shape, at(gate_up), at(dact), factors, n, f, at(dgate_up),
                          at(scaled_act), at(dscale), s);
    });
    t.expect_same("act", act);
    t.expect_same("dgate_up", dgate_up);
    t.expect_same("scaled act", scaled_act);
    // Two sums of f terms of up to 1 ulp each, in orders of their own.
    t.expect_close("dscale", dscale, [&](int64_t i) {
      double size = 0.0;
      for (int64_t j = 0; j < f; ++j) {
        size += std::abs(before(dact, i * f + j) * want(act, i * f + j));
      }
      return 2 * static_cast<double>(f) * kEps32 * size + 1e-30;
    });
  }});
}

void add_gates(int64_t n, std::vector<OpCase>& cases) {
  for (DType dt : kDTypes) {
    cases.push_back({named("sigmoid", dt, n, 1), [=](Trial& t) {
      Tensor &logits = t.random(DType::kF32, n, 11, 5.0), &out = t.filled(DType::kF32, n);
      Tensor &dout = t.random(DType::kF32, n, 12), &dlogits = t.filled(dt, n);
      t.run([&](Ops& ops, const At& at, Stream& s) {
        ops.sigmoid(at(logits), n, at(out), s);
        ops.sigmoid_backward(dt, at(out), at(dout), n, at(dlogits), s);
      });
      t.expect_same("out", out);
      t.expect_same("dlogits", dlogits);
    }});
    for (DType b_dt : kDTypes) {
      cases.push_back({named("add", dt, n, 1), [=](Trial& t) {
        Tensor &a = t.random(dt, n, 13), &b = t.random(b_dt, n, 14), &out = t.filled(dt, n);
        t.run([&](Ops& ops, const At& at, Stream& s) {
          ops.add(dt, at(a), b_dt, at(b), n, at(out), s);
          ops.add(dt, at(a), b_dt, at(b), n, at(a), s);
        });
        t.expect_same("out", out);
        t.expect_same("in place", a);
      }});
    }
    cases.push_back({named("finish_gradient", dt, n, 1), [=](Trial& t) {
      Tensor &g = t.random(DType::kF32, n, 15), &out = t.filled(dt, n);
      Tensor& square_sum = t.doubles({7.0});
      t.run([&](Ops& ops, const At& at, Stream& s) {
        ops.finish_gradient(dt, at(g), n, at(out), at(square_sum), s);
      });
      t.expect_same("out", out);
      // Doubles of n positive terms, in two orders.
      t.expect_close("sum", square_sum, [&](int64_t) {
        return 2 * static_cast<double>(n) * 0x1p-53 * want(square_sum, 0);
      });
    }});
  }
}

void add_scales(int64_t n, int64_t dim, std::vector<OpCase>& cases) {
  cases.push_back({named("scale_rows", DType::kF32, n, dim), [=](Trial& t) {
    Tensor &x = t.random(DType::kF32, n * dim, 16), &scale = t.random(DType::kF32, n, 17);
    Tensor& zeros = t.filled(DType::kF32, n * dim);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.scale_rows(at(scale), n, dim, at(x), s);
      ops.fill_zero(at(zeros), n * dim * 4, s);
    });
    t.expect_same("x", x);
    t.expect_same("zeros", zeros);
  }});
}

void add_scale(int64_t n, std::vector<OpCase>& cases) {
  for (DType dt : kDTypes) {
    cases.push_back({named("scale", dt, n, 1), [=](Trial& t) {
                       Tensor& x = t.random(dt, n, 18);
                       t.run([&](Ops& ops, const At& at, Stream& s) {
                         ops.scale(dt, 54.545456f, n, at(x), s);
                       });
                       t.expect_same("x", x);
                     }});
  }
}

void add_rope(DType dt, int64_t rotated, bool inverse, std::vector<OpCase>& cases) {
  cases.push_back({named("rope", dt, 37, rotated), [=](Trial& t) {
    constexpr int64_t kTokens = 37, kHeads = 3, kDim = 10, kStride = 41;
    std::vector<int32_t> places;
    for (int32_t i = 0; i < kTokens; ++i) places.push_back(i < 20 ? i * 400 : i - 20);
    Tensor &positions = t.ints(places), &x = t.random(dt, kTokens * kStride, 18);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      const Rotation rotation{1e6, 32.0, 4096.0, 32.0, 1.0, false, false, 1.25};
      ops.rope(dt, at(positions), rotation, kTokens, kHeads, kDim, rotated, kStride, inverse, at(x),
               s);
    });
    // Sines and cosines of two libraries may round apart: one fp32 rounding of each, then dt's.
    t.expect_close("x", x, [&](int64_t i) {
      const int64_t column = i % kStride, head = column / kDim * kDim;
      if (column >= kHeads * kDim || column - head >= rotated) return 0.0;
      const int64_t pair = i - column + head + (column - head + rotated / 2) % rotated;
      const double size = std::abs(before(x, i)) + std::abs(before(x, pair));
      return 4 * kEps32 * size + 2.02 * rounding_of(dt) * std::abs(want(x, i));
    });
  }});
}

// A forward and a backward, then the same tokens in two calls of three sequences.
void add_short_conv(DType dt, int64_t dim, int64_t width, std::vector<OpCase>& cases) {
  cases.push_back({named("short_conv", dt, dim, width), [=](Trial& t) {
    constexpr int64_t kTokens = 300, kSplit = 270;
    std::vector<int32_t> places, numbers;
    for (int32_t i = 0; i < kTokens; ++i) {
      places.push_back(i < 2 ? i : i < 250 ? i - 2 : i - 250);
      numbers.push_back(i < 2 ? 0 : i < 250 ? 1 : 2);
    }
    Tensor &positions = t.ints(places), &sequences = t.ints(numbers);
    Tensor &bcx = t.random(dt, kTokens * 3 * dim, 20), &taps = t.random(dt, dim * width, 21);
    Tensor &out = t.filled(dt, kTokens * dim), &cached = t.filled(dt, kTokens * dim);
    Tensor &dout = t.random(dt, kTokens * dim, 22), &dbcx = t.filled(dt, kTokens * 3 * dim);
    Tensor &dtaps = t.random(DType::kF32, dim * width, 23);
    Tensor& state = t.filled(dt, 3 * (width - 1) * dim);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.short_conv(dt, at(positions), at(bcx), at(taps), kTokens, dim, width, at(out), s);
      ops.short_conv_backward(dt, at(positions), at(bcx), at(taps), at(dout), kTokens, dim, width,
                              at(dbcx), at(dtaps), s);
      ops.cached_short_conv(dt, at(sequences), at(positions), at(bcx), at(taps), kSplit, dim,
                            width, at(state), at(cached), s);
      const int64_t bytes = dtype_bytes(dt);
      ops.cached_short_conv(dt, at(sequences) + kSplit * 4, at(positions) + kSplit * 4,
                            at(bcx) + kSplit * 3 * dim * bytes, at(taps), kTokens - kSplit, dim,
                            width, at(state), at(cached) + kSplit * dim * bytes, s);
    });
    t.expect_same("out", out);
    t.expect_same("cached", cached);
    t.expect_same("state", state);
    t.expect_same("dbcx", dbcx);
    t.expect_close("dtaps", dtaps, [&](int64_t i) {
      return 2 * kTokens * kEps32 * 27 + 2 * kEps32 * std::abs(want(dtaps, i));
    });
  }});
}

// A forward and a backward of latent attention's heads, queries and shared parts in wider rows.
void add_latent_heads(DType dt, int64_t heads, int64_t plain, int64_t rotated, int64_t value,
                      bool neighbours, std::vector<OpCase>& cases) {
  cases.push_back({named("latent_heads", dt, heads, plain + rotated), [=](Trial& t) {
    constexpr int64_t kTokens = 70;
    const int64_t key = plain + rotated;
    const LatentShape shape{kTokens, heads, plain, rotated, value, neighbours, 0.75f,
                            heads * key + 3, rotated + 5};
    std::vector<int32_t> places;
    for (int32_t i = 0; i < kTokens; ++i) places.push_back(i < 60 ? 37 * i : i - 60);
    Tensor& positions = t.ints(places);
    Tensor& q = t.random(dt, kTokens * shape.q_stride, 20);
    Tensor& shared = t.random(dt, kTokens * shape.shared_stride, 21);
    Tensor& kv = t.random(dt, kTokens * heads * (plain + value), 22);
    Tensor& qkv = t.filled(dt, kTokens * 3 * heads * shape.head_dim());
    Tensor& dqkv = t.random(dt, kTokens * 3 * heads * shape.head_dim(), 23);
    Tensor& dq = t.filled(dt, kTokens * shape.q_stride);
    Tensor& dshared = t.filled(dt, kTokens * shape.shared_stride);
    Tensor& dkv = t.filled(dt, kTokens * heads * (plain + value));
    Tensor& copied = t.filled(dt, kTokens * (key + 9));
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.latent_heads(dt, shape, at(positions), {}, at(q), at(shared), at(kv), at(qkv), s);
      ops.latent_heads_backward(dt, shape, at(positions), {}, at(dqkv), at(dq), at(dshared),
                                at(dkv), s);
      ops.copy_columns(dt, at(q), kTokens, key, shape.q_stride, 4, key + 9, at(copied), s);
    });
    // Sines and cosines of two libraries may round apart, as in rope.
    const double turned = 4 * kEps32 * 10 * static_cast<double>(heads);
    for (Tensor* out : {&qkv, &dq, &dshared}) {
      t.expect_close("what is rotated", *out, [&, out](int64_t i) {
        return turned + 2.02 * rounding_of(dt) * std::abs(want(*out, i));
      });
    }
    t.expect_same("dkv", dkv);
    t.expect_same("copied", copied);
  }});
}

}  // namespace

std::vector<OpCase> row_cases() {
  std::vector<OpCase> cases;
  for (DType dt : kDTypes) {
    add_rows(dt, 1, 1, cases);
    add_rows(dt, 20, 33, cases);
    add_rows(dt, 20, 300, cases);
    for (bool scaled : {false, true}) {
      for (const SwigluShape& shape : {SwigluShape(), SwigluShape{1.702f, 2.5f, 1.0f}}) {
        add_swiglu(dt, shape, 1, 1, scaled, false, cases);
        add_swiglu(dt, shape, 5, 19, scaled, true, cases);
        add_swiglu(dt, shape, 3, 600, scaled, false, cases);
      }
    }
    add_latent_heads(dt, 3, 12, 4, 9, true, cases);
    add_latent_heads(dt, 2, 5, 6, 16, false, cases);
    add_latent_heads(dt, 16, 128, 64, 128, true, cases);
    add_short_conv(dt, 1, 2, cases);
    add_short_conv(dt, 37, 3, cases);
    add_short_conv(dt, 300, 4, cases);
    for (int64_t rotated : {10, 4}) {
      add_rope(dt, rotated, false, cases);
      add_rope(dt, rotated, true, cases);
    }
  }
  for (int64_t n : {0, 1, 300, 9001}) add_gates(n, cases);
  for (int64_t n : {0, 1, 300, 9001}) add_scale(n, cases);
  add_scales(70, 33, cases);
  return cases;
}

}  // namespace pagoda::check
