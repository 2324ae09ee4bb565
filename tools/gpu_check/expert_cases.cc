// The expert-specific operators against the CPU's ops expert by expert, and against the tried
// side's own ops to the bit.
#include "tools/gpu_check/trial.h"

namespace pagoda::check {
namespace {

enum class Skew { kSpread, kOne, kPadded };  // all experts; all tokens on one; some choices are -1

struct Layer {
  int64_t tokens, k, experts, in, out;
  Skew skew;

  std::vector<int32_t> choices() const {
    std::vector<int32_t> all;
    for (int64_t i = 0; i < tokens * k; ++i) {
      const int64_t t = i / k, j = i % k;
      // Cubes leave experts empty; j keeps those of a token apart.
      auto e = static_cast<int32_t>((t * t * t + j) % experts);
      if (skew == Skew::kOne) e = static_cast<int32_t>((experts / 2 + j) % experts);
      if (skew == Skew::kPadded && t % 3 == 1) e = -1;
      all.push_back(e);
    }
    return all;
  }
  std::vector<int32_t> offsets() const {
    std::vector<int32_t> at(static_cast<size_t>(experts) + 1, 0);
    for (int32_t e : choices()) {
      if (e >= 0) ++at[static_cast<size_t>(e) + 1];
    }
    for (size_t e = 1; e < at.size(); ++e) at[e] += at[e - 1];
    return at;
  }
  // The token of each row; -1 behind the last.
  std::vector<int32_t> rows() const {
    std::vector<int32_t> next = offsets(), tokens_of(static_cast<size_t>(tokens * k), -1);
    const std::vector<int32_t> all = choices();
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] < 0) continue;
      const auto place = static_cast<size_t>(next[static_cast<size_t>(all[i])]++);
      tokens_of[place] = static_cast<int32_t>(static_cast<int64_t>(i) / k);
    }
    return tokens_of;
  }
};

// Tensors of a layer of all experts: tokens x, rows y, dy, dx.
struct Space {
  Space(Trial& t, DType dt, const Layer& l)
      : choices(t.ints(l.choices())),
        offsets(t.ints(std::vector<int32_t>(static_cast<size_t>(l.experts) + 1, -7))),
        rows(t.ints(std::vector<int32_t>(static_cast<size_t>(l.tokens * l.k), -1))),
        places(t.ints(std::vector<int32_t>(static_cast<size_t>(l.tokens * l.k), -1))),
        x(t.random(dt, l.tokens * l.in, 81)), w(t.random(dt, l.experts * l.out * l.in, 82)),
        bias(t.random(dt, l.experts * l.out, 83)), y(t.filled(dt, l.tokens * l.k * l.out)),
        dy(t.random(dt, l.tokens * l.k * l.out, 84)),
        dx(t.filled(DType::kF32, l.tokens * l.k * l.in)),
        dw(t.random(DType::kF32, l.experts * l.out * l.in, 85)),
        dbias(t.random(DType::kF32, l.experts * l.out, 86)),
        gathered(t.filled(dt, l.tokens * l.k * l.in)) {}
  Tensor &choices, &offsets, &rows, &places, &x, &w, &bias, &y, &dy, &dx, &dw, &dbias, &gathered;
};

// Expert by expert with the ops of kernels/ops.h.
void by_expert(Ops& ops, DType dt, const Layer& l, const Space& p, const At& at, Stream& s) {
  const std::vector<int32_t> offsets = l.offsets();
  const std::vector<int64_t> first(offsets.begin(), offsets.end() - 1);
  const int64_t bytes = dtype_bytes(dt);
  ops.index_rows(at(p.choices), l.tokens, l.k, l.experts, first.data(), at(p.rows), at(p.places),
                 s);
  for (int64_t e = 0; e < l.experts; ++e) {
    const int64_t row = offsets[static_cast<size_t>(e)];
    const int64_t n = offsets[static_cast<size_t>(e) + 1] - row;
    const Pointer w = at(p.w) + e * l.out * l.in * bytes, x = at(p.gathered) + row * l.in * bytes;
    const Pointer dy = at(p.dy) + row * l.out * bytes;
    ops.gather_rows(dt, at(p.x), at(p.rows) + row * 4, n, l.in, x, s);
    ops.linear_biased(dt, x, w, at(p.bias) + e * l.out * bytes, n, l.in, l.out, dt,
                      at(p.y) + row * l.out * bytes, s);
    ops.linear_backward_input(dt, dy, w, n, l.in, l.out, DType::kF32, at(p.dx) + row * l.in * 4,
                              s);
    ops.linear_backward_weight(dt, dy, x, n, l.in, l.out, true, at(p.dw) + e * l.out * l.in * 4, s);
    ops.bias_backward(dt, dy, n, l.out, at(p.dbias) + e * l.out * 4, s);
  }
}

void by_operators(ExpertOps& ops, bool fused, DType dt, const Layer& l, const Space& p,
                  const At& at, Stream& s) {
  const ExpertRows e{at(p.offsets), l.experts, l.tokens * l.k};
  ops.reindex(at(p.choices), l.tokens, l.k, l.experts, at(p.offsets), at(p.rows), at(p.places), s);
  ops.esmm(dt, e, at(p.x), at(p.rows), at(p.w), at(p.bias), l.in, l.out, dt, at(p.y), s);
  if (fused) {
    ops.esfk(dt, e, at(p.dy), nullptr, at(p.x), at(p.rows), at(p.w), l.in, l.out, DType::kF32,
             at(p.dx), true, at(p.dw), at(p.dbias), s);
    return;
  }
  ops.esmm_backward_input(dt, e, at(p.dy), nullptr, at(p.w), l.in, l.out, DType::kF32, at(p.dx),
                          s);
  ops.estmm(dt, e, at(p.dy), nullptr, at(p.x), at(p.rows), l.in, l.out, true, at(p.dw), s);
  ops.ess(dt, e, at(p.dy), nullptr, l.out, at(p.dbias), s);
}

int64_t expert_of(const std::vector<int32_t>& offsets, int64_t row) {
  int64_t e = 0;
  while (offsets[static_cast<size_t>(e) + 1] <= row) ++e;
  return e;
}

void compare_rows(Trial& t, DType dt, const Layer& l, const Space& p) {
  const std::vector<int32_t> offsets = l.offsets(), rows = l.rows();
  const auto there = [&](int64_t row) { return row < offsets.back(); };
  t.expect_close("y", p.y, [&](int64_t i) {
    const int64_t row = i / l.out, column = i % l.out;
    if (!there(row)) return 0.0;
    const int64_t w = (expert_of(offsets, row) * l.out + column) * l.in;
    const double size = size_of(
        l.in, [&](int64_t d) { return before(p.x, rows[size_t(row)] * l.in + d); },
        [&](int64_t d) { return before(p.w, w + d); });
    return product_error(dt, dt, l.in + 1, size + 5.0, want(p.y, i));
  });
  t.expect_close("dx", p.dx, [&](int64_t i) {
    const int64_t row = i / l.in, column = i % l.in;
    if (!there(row)) return 0.0;
    const int64_t w = expert_of(offsets, row) * l.out * l.in + column;
    const double size =
        size_of(l.out, [&](int64_t d) { return before(p.dy, row * l.out + d); },
                [&](int64_t d) { return before(p.w, w + d * l.in); });
    return product_error(dt, DType::kF32, l.out, size, want(p.dx, i));
  });
}

void compare_weights(Trial& t, DType dt, const Layer& l, const Space& p) {
  const std::vector<int32_t> offsets = l.offsets(), rows = l.rows();
  t.expect_close("dw", p.dw, [&](int64_t i) {
    const auto e = static_cast<size_t>(i / (l.out * l.in));
    const int64_t n = offsets[e + 1] - offsets[e], out = i / l.in % l.out, in = i % l.in;
    if (n == 0) return 0.0;
    const double size = size_of(
        n, [&](int64_t d) { return before(p.dy, (offsets[e] + d) * l.out + out); },
        [&](int64_t d) { return before(p.x, rows[size_t(offsets[e] + d)] * l.in + in); });
    return product_error(dt, DType::kF32, n + 2, size + 5.0, want(p.dw, i));
  });
  t.expect_close("dbias", p.dbias, [&](int64_t i) {
    const auto e = static_cast<size_t>(i / l.out);
    const int64_t n = offsets[e + 1] - offsets[e];
    return 2 * static_cast<double>(n * n) * kEps32 * 5.0;
  });
}

std::string named(const char* op, DType dt, const Layer& l) {
  const char* skews[] = {"spread", "on one", "padded"};
  return strf("%s %s %lld tokens to %lld of %lld experts (%s), %lld to %lld", op, dtype_name(dt),
              static_cast<long long>(l.tokens), static_cast<long long>(l.k),
              static_cast<long long>(l.experts), skews[static_cast<int>(l.skew)],
              static_cast<long long>(l.in), static_cast<long long>(l.out));
}

void add_layer(DType dt, const Layer& l, std::vector<OpCase>& cases) {
  for (bool fused : {false, true}) {
    cases.push_back({named(fused ? "esfk" : "esmm, estmm, ess", dt, l), [=](Trial& t) {
      const Space p(t, dt, l);
      t.run([&](const At& at, Stream& s) { by_expert(cpu_ops(), dt, l, p, at, s); },
            [&](const At& at, Stream& s) {
              by_operators(*t.candidate().experts, fused, dt, l, p, at, s);
            });
      compare_rows(t, dt, l, p);
      compare_weights(t, dt, l, p);
      if (!t.faults().empty()) return;
      const std::vector<std::byte> together[] = {p.y.got, p.dx.got, p.dw.got, p.dbias.got};
      t.run([&](Ops& ops, const At& at, Stream& s) { by_expert(ops, dt, l, p, at, s); });
      const Tensor* alone[] = {&p.y, &p.dx, &p.dw, &p.dbias};
      const char* names[] = {"y", "dx", "dw", "dbias"};
      for (int i = 0; i < 4; ++i) {
        if (alone[i]->got != together[i]) t.fail(strf("%s: other bits by expert", names[i]));
      }
    }});
  }
}

// Where choices meet: experts in order, the rows of one distinct.
void add_combine(DType dt, const Layer& l, std::vector<OpCase>& cases) {
  cases.push_back({named("esmm_combine", dt, l), [=](Trial& t) {
    const Space p(t, dt, l);
    Tensor &scale = t.random(DType::kF32, l.tokens * l.k, 87), &inner =
        t.random(dt, l.tokens * l.k * l.in, 88);
    Tensor& sum = t.random(DType::kF32, l.tokens * l.out, 89);
    const auto call = [&](const At& at, Stream& s, Ops& ops) {
      const std::vector<int32_t> offsets = l.offsets();
      const std::vector<int64_t> first(offsets.begin(), offsets.end() - 1);
      ops.index_rows(at(p.choices), l.tokens, l.k, l.experts, first.data(), at(p.rows),
                     at(p.places), s);
      for (int64_t e = 0; e < l.experts; ++e) {
        const int64_t row = offsets[size_t(e)], n = offsets[size_t(e) + 1] - row;
        const int64_t bytes = dtype_bytes(dt);
        if (n == 0) continue;
        ops.linear(dt, at(inner) + row * l.in * bytes, at(p.w) + e * l.out * l.in * bytes, n, l.in,
                   l.out, DType::kF32, at(p.dx), s);
        ops.scatter_add_rows(DType::kF32, at(p.dx), at(p.rows) + row * 4, at(scale) + row * 4, n,
                             l.out, at(sum), s);
      }
    };
    t.run([&](Ops& ops, const At& at, Stream& s) { call(at, s, ops); });
    const auto by_ops = sum.got;
    t.run([&](const At& at, Stream& s) { call(at, s, cpu_ops()); },
          [&](const At& at, Stream& s) {
            ExpertOps& ops = *t.candidate().experts;
            const ExpertRows e{at(p.offsets), l.experts, l.tokens * l.k};
            ops.reindex(at(p.choices), l.tokens, l.k, l.experts, at(p.offsets), at(p.rows),
                        at(p.places), s);
            ops.esmm_combine(dt, e, at(inner), at(p.w), l.in, l.out, at(p.rows), at(scale),
                             l.tokens, at(sum), s);
          });
    if (sum.got != by_ops) t.fail("sum: other bits than of linear and scatter_add_rows");
  }});
}

}  // namespace

std::vector<OpCase> expert_cases() {
  std::vector<OpCase> cases;
  for (DType dt : kDTypes) {
    add_layer(dt, {1, 1, 3, 8, 16, Skew::kSpread}, cases);
    add_layer(dt, {70, 2, 5, 40, 24, Skew::kSpread}, cases);
    add_layer(dt, {150, 1, 4, 33, 65, Skew::kOne}, cases);
    add_layer(dt, {100, 3, 6, 72, 17, Skew::kPadded}, cases);
    add_layer(dt, {300, 1, 2, 16, 8, Skew::kOne}, cases);
    add_combine(dt, {70, 2, 5, 40, 24, Skew::kSpread}, cases);
    add_combine(dt, {100, 3, 6, 30, 17, Skew::kPadded}, cases);
  }
  return cases;
}

}  // namespace pagoda::check
