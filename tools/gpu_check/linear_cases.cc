// The products of linear layers: shapes around tiles, rows alone and together.
#include <cmath>

#include "base/random.h"
#include "tools/gpu_check/trial.h"

namespace pagoda::check {
namespace {

struct Layer {
  int64_t n, in, out;
};

std::string named(const char* op, DType dt, const Layer& l) {
  return strf("%s %s %lld rows, %lld to %lld", op, dtype_name(dt), static_cast<long long>(l.n),
              static_cast<long long>(l.in), static_cast<long long>(l.out));
}

void add_forward(DType dt, DType y_dt, const Layer& l, int64_t offset,
                 std::vector<OpCase>& cases) {
  cases.push_back({named("linear", dt, l), [=](Trial& t) {
    Tensor &x = t.random(dt, l.n * l.in, 31, 1.0, offset), &w = t.random(dt, l.out * l.in, 32);
    Tensor &bias = t.random(dt, l.out, 33), &y = t.filled(y_dt, l.n * l.out);
    Tensor& biased = t.filled(y_dt, l.n * l.out);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.linear(dt, at(x), at(w), l.n, l.in, l.out, y_dt, at(y), s);
      ops.linear_biased(dt, at(x), at(w), at(bias), l.n, l.in, l.out, y_dt, at(biased), s);
    });
    const auto size = [&](int64_t i) {
      return size_of(l.in, [&](int64_t d) { return before(x, i / l.out * l.in + d); },
                     [&](int64_t d) { return before(w, i % l.out * l.in + d); });
    };
    t.expect_close("y", y, [&](int64_t i) {
      return product_error(dt, y_dt, l.in, size(i), want(y, i));
    });
    t.expect_close("biased", biased, [&](int64_t i) {
      return product_error(dt, y_dt, l.in + 1, size(i) + 5.0, want(biased, i));
    });
  }});
}

void add_backward_input(DType dt, DType dx_dt, const Layer& l, std::vector<OpCase>& cases) {
  cases.push_back({named("linear_backward_input", dt, l), [=](Trial& t) {
    Tensor &dy = t.random(dt, l.n * l.out, 34), &w = t.random(dt, l.out * l.in, 35);
    Tensor& dx = t.filled(dx_dt, l.n * l.in);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.linear_backward_input(dt, at(dy), at(w), l.n, l.in, l.out, dx_dt, at(dx), s);
    });
    t.expect_close("dx", dx, [&](int64_t i) {
      const double size =
          size_of(l.out, [&](int64_t d) { return before(dy, i / l.in * l.out + d); },
                  [&](int64_t d) { return before(w, d * l.in + i % l.in); });
      return product_error(dt, dx_dt, l.out, size, want(dx, i));
    });
  }});
}

void add_backward_weight(DType dt, bool add, const Layer& l, std::vector<OpCase>& cases) {
  cases.push_back({named("linear_backward_weight", dt, l), [=](Trial& t) {
    Tensor &dy = t.random(dt, l.n * l.out, 36), &x = t.random(dt, l.n * l.in, 37);
    Tensor& dw = t.random(DType::kF32, l.out * l.in, 38);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.linear_backward_weight(dt, at(dy), at(x), l.n, l.in, l.out, add, at(dw), s);
    });
    t.expect_close("dw", dw, [&](int64_t i) {
      const double size = size_of(l.n, [&](int64_t d) { return before(dy, d * l.out + i / l.in); },
                                  [&](int64_t d) { return before(x, d * l.in + i % l.in); });
      return product_error(dt, DType::kF32, l.n + 2, size + 5.0, want(dw, i));
    });
  }});
}

// The promise of ops.h: a row has the bits it would have in a call of any other size.
void add_rows_alone(DType dt, const Layer& l, int64_t alone, std::vector<OpCase>& cases) {
  cases.push_back({named("linear, rows alone,", dt, l), [=](Trial& t) {
    Tensor &x = t.random(dt, l.n * l.in, 39), &w = t.random(dt, l.out * l.in, 40);
    Tensor& y = t.filled(dt, l.n * l.out);
    Tensor& dx = t.filled(dt, l.n * l.in);
    const int64_t bytes = dtype_bytes(dt);
    std::string together;
    const auto call = [&](const At& at, Stream& s, int64_t rows, Ops& ops) {
      for (int64_t row = 0; row < l.n; row += rows) {
        const int64_t n = std::min(rows, l.n - row);
        ops.linear(dt, at(x) + row * l.in * bytes, at(w), n, l.in, l.out, dt,
                   at(y) + row * l.out * bytes, s);
        ops.linear_backward_input(dt, at(y) + row * l.out * bytes, at(w), n, l.in, l.out, dt,
                                  at(dx) + row * l.in * bytes, s);
      }
    };
    t.run([&](Ops& ops, const At& at, Stream& s) { call(at, s, l.n, ops); });
    const auto y_together = y.got, dx_together = dx.got;
    t.run([&](Ops& ops, const At& at, Stream& s) { call(at, s, alone, ops); });
    if (y.got != y_together) t.fail("y: other bits for rows alone");
    if (dx.got != dx_together) t.fail("dx: other bits for rows alone");
  }});
}

// One call of all rows, and calls of kRowBlock rows one after the other.
void add_blocks_alone(DType dt, const Layer& l, std::vector<OpCase>& cases) {
  cases.push_back({named("linear_backward_weight by blocks", dt, l), [=](Trial& t) {
    Tensor &dy = t.random(dt, l.n * l.out, 41), &x = t.random(dt, l.n * l.in, 42);
    Tensor& dw = t.filled(DType::kF32, l.out * l.in);
    const int64_t bytes = dtype_bytes(dt);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.linear_backward_weight(dt, at(dy), at(x), l.n, l.in, l.out, false, at(dw), s);
    });
    const auto together = dw.got;
    t.run([&](Ops& ops, const At& at, Stream& s) {
      for (int64_t row = 0; row < l.n; row += kRowBlock) {
        ops.linear_backward_weight(dt, at(dy) + row * l.out * bytes, at(x) + row * l.in * bytes,
                                   std::min(kRowBlock, l.n - row), l.in, l.out, row > 0, at(dw), s);
      }
    });
    if (dw.got != together) t.fail("dw: other bits by blocks");
  }});
}

// Numbers of either sign and of any size from 2^lowest to 2^highest; row 1 is zeros.
std::vector<double> of_all_sizes(int64_t rows, int64_t columns, uint64_t seed, double lowest,
                                 double highest) {
  std::vector<double> values;
  for (int64_t i = 0; i < rows * columns; ++i) {
    const auto draw = [&](uint64_t lane) {
      return random_unit(seed, RandomPurpose::kTest, lane, static_cast<uint64_t>(i));
    };
    const double size = std::exp2(lowest + (highest - lowest) * draw(0));
    values.push_back(i / columns == 1 ? 0.0 : draw(1) < 0.5 ? -size : size);
  }
  return values;
}

// Numbers over the whole range of bf16 side by side, where results are still finite.
void add_whole_range(const Layer& l, std::vector<OpCase>& cases) {
  cases.push_back({named("linear, all sizes,", DType::kBF16, l), [=](Trial& t) {
    Tensor& x = t.numbers(DType::kBF16, of_all_sizes(l.n, l.in, 42, -120.0, 110.0));
    Tensor& w = t.numbers(DType::kBF16, of_all_sizes(l.out, l.in, 43, -120.0, 0.0));
    Tensor& dy = t.numbers(DType::kBF16, of_all_sizes(l.n, l.out, 44, -120.0, 0.0));
    Tensor &y = t.filled(DType::kF32, l.n * l.out), &dw = t.filled(DType::kF32, l.out * l.in);
    const auto call = [&](Ops& ops, const At& at, Stream& s, int64_t rows) {
      for (int64_t row = 0; row < l.n; row += rows) {
        ops.linear(DType::kBF16, at(x) + row * l.in * 2, at(w), std::min(rows, l.n - row), l.in,
                   l.out, DType::kF32, at(y) + row * l.out * 4, s);
      }
      ops.linear_backward_weight(DType::kBF16, at(dy), at(x), l.n, l.in, l.out, false, at(dw), s);
    };
    t.run([&](Ops& ops, const At& at, Stream& s) { call(ops, at, s, l.n); });
    const auto expect = [&](const char* what, const Tensor& c, int64_t depth, const auto& a,
                            const auto& b) {
      t.expect_close(what, c, [&](int64_t i) {
        const auto left = [&](int64_t d) { return a(i, d); };
        const auto right = [&](int64_t d) { return b(i, d); };
        return product_error(DType::kBF16, DType::kF32, depth, size_of(depth, left, right),
                             want(c, i)) + fp16_error(depth, left, right);
      });
    };
    expect("y", y, l.in,
           [&](int64_t i, int64_t d) { return before(x, i / l.out * l.in + d); },
           [&](int64_t i, int64_t d) { return before(w, i % l.out * l.in + d); });
    expect("dw", dw, l.n,
           [&](int64_t i, int64_t d) { return before(dy, d * l.out + i / l.in); },
           [&](int64_t i, int64_t d) { return before(x, d * l.in + i % l.in); });
    const auto together = y.got;
    t.run([&](Ops& ops, const At& at, Stream& s) { call(ops, at, s, 23); });
    if (y.got != together) t.fail("y: other bits for rows alone");
  }});
}

// Rows times powers of two give results times powers of two, to the bit.
void add_powers_of_two(DType dt, const Layer& l, std::vector<OpCase>& cases) {
  cases.push_back({named("linear, powers of two,", dt, l), [=](Trial& t) {
    const auto power = [](int64_t i) { return std::exp2(static_cast<double>(i * 17 % 101 - 50)); };
    std::vector<double> plain_x, plain_w, scaled_x, scaled_w;
    for (int64_t i = 0; i < std::max(l.n, l.out) * l.in; ++i) {
      const double value = static_cast<double>(i * 7 % 31 - 15);  // exact in sums of any order
      plain_x.push_back(value);
      scaled_x.push_back(value * power(i / l.in));
      plain_w.push_back(-value);
      scaled_w.push_back(-value * power(i / l.in + 3));
    }
    Tensor &x = t.numbers(dt, plain_x), &w = t.numbers(dt, plain_w);
    Tensor &big_x = t.numbers(dt, scaled_x), &big_w = t.numbers(dt, scaled_w);
    Tensor &y = t.filled(DType::kF32, l.n * l.out), &big_y = t.filled(DType::kF32, l.n * l.out);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.linear(dt, at(x), at(w), l.n, l.in, l.out, DType::kF32, at(y), s);
      ops.linear(dt, at(big_x), at(big_w), l.n, l.in, l.out, DType::kF32, at(big_y), s);
    });
    t.expect_same("y", y);
    for (int64_t i = 0; i < y.n; ++i) {
      const double wanted = want(y, i) * power(i / l.out) * power(i % l.out + 3);
      if (value_at(big_y, big_y.got, i) == wanted) continue;
      t.fail(strf("element %lld of scaled rows: got %.9g, want %.9g", static_cast<long long>(i),
                  value_at(big_y, big_y.got, i), wanted));
      return;
    }
  }});
}

// Infinities and NaN come out where the CPU's do.
void add_not_finite(DType dt, const Layer& l, std::vector<OpCase>& cases) {
  cases.push_back({named("linear, not finite,", dt, l), [=](Trial& t) {
    std::vector<double> x_values, w_values;
    for (int64_t i = 0; i < l.n * l.in; ++i) x_values.push_back(1.0 + static_cast<double>(i % 5));
    for (int64_t i = 0; i < l.out * l.in; ++i) w_values.push_back(static_cast<double>(i % 7) - 3.5);
    x_values[1] = INFINITY;
    x_values[size_t(2 * l.in - 1)] = -INFINITY;
    x_values[size_t(2 * l.in + 2)] = NAN;
    w_values[size_t(l.in)] = INFINITY;  // in column 1: it meets row 1's of the other sign
    Tensor &x = t.numbers(dt, x_values), &w = t.numbers(dt, w_values);
    Tensor &y = t.filled(dt, l.n * l.out), &dw = t.filled(DType::kF32, l.out * l.in);
    Tensor& dy = t.random(dt, l.n * l.out, 45);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.linear(dt, at(x), at(w), l.n, l.in, l.out, dt, at(y), s);
      ops.linear_backward_weight(dt, at(dy), at(x), l.n, l.in, l.out, false, at(dw), s);
    });
    t.expect_close("y", y, [&](int64_t i) {
      return product_error(dt, dt, l.in, 17.5 * static_cast<double>(l.in), want(y, i));
    });
    t.expect_close("dw", dw, [&](int64_t i) {
      return product_error(dt, DType::kF32, l.n, 25.0 * static_cast<double>(l.n), want(dw, i));
    });
  }});
}

}  // namespace

std::vector<OpCase> linear_cases() {
  std::vector<OpCase> cases;
  add_whole_range({70, 136, 66}, cases);
  for (DType dt : kDTypes) {
    add_powers_of_two(dt, {66, 72, 17}, cases);
    add_not_finite(dt, {5, 70, 9}, cases);
    for (const Layer& l : {Layer{1, 1, 1}, {65, 17, 66}, {3, 200, 5}, {130, 72, 136}}) {
      add_forward(dt, DType::kF32, l, 0, cases);
      add_backward_weight(dt, true, l, cases);
    }
    add_forward(dt, dt, {65, 24, 70}, 1, cases);  // not aligned
    for (const Layer& l : {Layer{1, 1, 1}, {65, 66, 17}, {3, 5, 200}}) {
      add_backward_input(dt, dt, l, cases);
    }
    add_backward_input(dt, DType::kF32, {130, 136, 72}, cases);
    add_backward_weight(dt, true, {0, 8, 8}, cases);
    add_backward_weight(dt, false, {0, 8, 8}, cases);
    add_backward_weight(dt, false, {257, 24, 40}, cases);
    add_rows_alone(dt, {9, 72, 130}, 1, cases);
    add_rows_alone(dt, {150, 72, 136}, 64, cases);
    add_blocks_alone(dt, {520, 24, 72}, cases);
  }
  return cases;
}

}  // namespace pagoda::check
