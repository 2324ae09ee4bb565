// The products of linear layers: shapes around tiles, rows alone and together.
#include <cmath>

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
    Tensor& biased = t.filled(dt, l.n * l.out);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.linear(dt, at(x), at(w), l.n, l.in, l.out, y_dt, at(y), s);
      ops.linear_biased(dt, at(x), at(w), at(bias), l.n, l.in, l.out, at(biased), s);
    });
    const auto size = [&](int64_t i) {
      return size_of(l.in, [&](int64_t d) { return before(x, i / l.out * l.in + d); },
                     [&](int64_t d) { return before(w, i % l.out * l.in + d); });
    };
    t.expect_close("y", y, [&](int64_t i) {
      return product_error(dt, y_dt, l.in, size(i), want(y, i));
    });
    t.expect_close("biased", biased, [&](int64_t i) {
      return product_error(dt, dt, l.in + 1, size(i) + 5.0, want(biased, i));
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

}  // namespace

std::vector<OpCase> linear_cases() {
  std::vector<OpCase> cases;
  for (DType dt : kDTypes) {
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
