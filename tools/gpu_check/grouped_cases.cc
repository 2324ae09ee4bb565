// Calls that take the rows of several experts at once, whose weights lie anywhere: against the
// CPU's, and to the bit against calls for one expert after the other.
#include "tools/gpu_check/trial.h"

namespace pagoda::check {
namespace {

struct Group {
  std::vector<int64_t> counts;  // rows of each expert
  int64_t in, out;
  int64_t gap;  // elements between one expert's weights and the next one's, and before the first

  int64_t experts() const { return std::ssize(counts); }
  int64_t first(int64_t e) const {
    int64_t row = 0;
    for (int64_t i = 0; i < e; ++i) row += counts[size_t(i)];
    return row;
  }
  int64_t rows() const { return first(experts()); }
  // Later experts' weights lie before earlier ones'.
  int64_t weight(int64_t e) const { return gap + (experts() - 1 - e) * (out * in + gap); }
  int64_t weights() const { return gap + experts() * (out * in + gap); }
  int64_t expert_of(int64_t row) const {
    int64_t e = 0;
    while (first(e + 1) <= row) ++e;
    return e;
  }
};

struct Space {
  Space(Trial& t, DType dt, const Group& g)
      : x(t.random(dt, g.rows() * g.in, 101)),
        w(t.random(dt, g.weights(), 102)),
        y(t.filled(DType::kF32, g.rows() * g.out)),
        dy(t.random(dt, g.rows() * g.out, 103)),
        dx(t.filled(dt, g.rows() * g.in)),
        dw(t.random(DType::kF32, g.weights(), 104)),
        bias(t.random(dt, g.experts() * g.out, 111)),
        scale(t.random(DType::kF32, g.rows(), 112)),
        dbias(t.random(DType::kF32, g.experts() * g.out, 113)) {}
  Tensor &x, &w, &y, &dy, &dx, &dw, &bias, &scale, &dbias;
};

bool adds(int64_t e) { return e % 2 == 0; }
bool has_bias(int64_t e) { return e % 3 != 1; }

void together(Ops& ops, DType dt, const Group& g, const Space& p, const At& at, Stream& s) {
  const int64_t bytes = dtype_bytes(dt);
  std::vector<RowsOfWeight> weights;
  std::vector<RowsOfGradient> gradients, biases;
  for (int64_t e = 0; e < g.experts(); ++e) {
    const int64_t count = g.counts[size_t(e)];
    const void* bias = at(p.bias) + e * g.out * bytes;
    weights.push_back(
        {g.first(e), count, at(p.w) + g.weight(e) * bytes, has_bias(e) ? bias : nullptr});
    biases.push_back({g.first(e), count, at(p.dbias) + e * g.out * 4, adds(e)});
    gradients.push_back({g.first(e), count, at(p.dw) + g.weight(e) * 4, adds(e)});
  }
  ops.grouped_linear(dt, at(p.x), weights, g.in, g.out, DType::kF32, at(p.y), s);
  ops.grouped_linear_backward_input(dt, at(p.dy), weights, g.in, g.out, dt, at(p.dx), s);
  ops.grouped_linear_backward_weight(dt, at(p.dy), at(p.x), gradients, g.in, g.out, s);
  ops.grouped_bias_backward(dt, at(p.dy), at(p.scale), biases, g.out, s);
}

// Later experts first.
void alone(Ops& ops, DType dt, const Group& g, const Space& p, const At& at, Stream& s) {
  const int64_t bytes = dtype_bytes(dt);
  for (int64_t e = g.experts() - 1; e >= 0; --e) {
    const int64_t row = g.first(e), n = g.counts[size_t(e)];
    const Pointer x = at(p.x) + row * g.in * bytes, dy = at(p.dy) + row * g.out * bytes;
    const Pointer w = at(p.w) + g.weight(e) * bytes;
    const Pointer y = at(p.y) + row * g.out * 4;
    if (has_bias(e)) {
      ops.linear_biased(dt, x, w, at(p.bias) + e * g.out * bytes, n, g.in, g.out, DType::kF32, y,
                        s);
    } else {
      ops.linear(dt, x, w, n, g.in, g.out, DType::kF32, y, s);
    }
    ops.linear_backward_input(dt, dy, w, n, g.in, g.out, dt, at(p.dx) + row * g.in * bytes, s);
    ops.linear_backward_weight(dt, dy, x, n, g.in, g.out, adds(e), at(p.dw) + g.weight(e) * 4, s);
  }
}

// A product with experts' weights: their element (column, d) lies `by_column` times the column and
// `by_depth` times d behind their first.
struct ProductShape {
  DType dt, y_dt;
  int64_t depth, columns, by_depth, by_column;
};

// `more`: the size of what is added to the products.
void compare_product(Trial& t, const std::string& what, const ProductShape& shape, const Group& g,
                     const Tensor& x, const Tensor& w, const Tensor& y, double more) {
  t.expect_close(what, y, [&](int64_t i) {
    const int64_t row = i / shape.columns;
    const int64_t at = g.weight(g.expert_of(row)) + i % shape.columns * shape.by_column;
    const double size = size_of(
        shape.depth, [&](int64_t d) { return before(x, row * shape.depth + d); },
        [&](int64_t d) { return before(w, at + d * shape.by_depth); });
    return product_error(shape.dt, shape.y_dt, shape.depth + (more > 0.0), size + more, want(y, i));
  });
}

void compare_rows(Trial& t, DType dt, const Group& g, const Space& p) {
  compare_product(t, "y", {dt, DType::kF32, g.in, g.out, 1, g.in}, g, p.x, p.w, p.y, 5.0);
  compare_product(t, "dx", {dt, dt, g.out, g.in, g.in, 1}, g, p.dy, p.w, p.dx, 0.0);
}

void compare_weights(Trial& t, DType dt, const Group& g, const Space& p) {
  t.expect_close("dw", p.dw, [&](int64_t i) {
    for (int64_t e = 0; e < g.experts(); ++e) {
      const int64_t at = i - g.weight(e), row = g.first(e), n = g.counts[size_t(e)];
      if (at < 0 || at >= g.out * g.in) continue;
      const double size =
          size_of(n, [&](int64_t d) { return before(p.dy, (row + d) * g.out + at / g.in); },
                  [&](int64_t d) { return before(p.x, (row + d) * g.in + at % g.in); });
      return product_error(dt, DType::kF32, n + 2, size + 5.0, want(p.dw, i));
    }
    return 0.0;  // between the experts
  });
  t.expect_close("dbias", p.dbias, [&](int64_t i) {
    const int64_t e = i / g.out, n = g.counts[size_t(e)];
    const double size = size_of(
        n, [&](int64_t d) { return before(p.dy, (g.first(e) + d) * g.out + i % g.out); },
        [&](int64_t d) { return before(p.scale, g.first(e) + d); });
    return 2 * static_cast<double>(n + 2) * kEps32 * (size + 5.0);
  });
}

void add_group(DType dt, const Group& g, std::vector<OpCase>& cases) {
  const std::string name =
      strf("grouped products %s %lld rows of %lld experts, %lld to %lld, gaps of %lld",
           dtype_name(dt), (long long)g.rows(), (long long)g.experts(), (long long)g.in,
           (long long)g.out, (long long)g.gap);
  cases.push_back({name, [=](Trial& t) {
    const Space p(t, dt, g);
    t.run([&](Ops& ops, const At& at, Stream& s) { together(ops, dt, g, p, at, s); });
    compare_rows(t, dt, g, p);
    compare_weights(t, dt, g, p);
    const std::vector<std::byte> grouped[] = {p.y.got, p.dx.got, p.dw.got};
    t.run([&](Ops& ops, const At& at, Stream& s) { alone(ops, dt, g, p, at, s); });
    const Tensor* by_expert[] = {&p.y, &p.dx, &p.dw};
    const char* names[] = {"y", "dx", "dw"};
    for (int i = 0; i < 3; ++i) {
      if (by_expert[i]->got != grouped[i]) t.fail(strf("%s: other bits alone", names[i]));
    }
  }});
}

// Rows of two matrices, read where they are: the bits of copies, in every operand that may be.
void add_in_place(DType dt, const Group& g, std::vector<OpCase>& cases) {
  const std::string name =
      strf("rows in place %s, %lld of %lld experts, %lld to %lld", dtype_name(dt),
           (long long)g.rows(), (long long)g.experts(), (long long)g.in, (long long)g.out);
  cases.push_back(
      {name, [=](Trial& t) {
         const int64_t n = g.rows(), half = n / 2, tokens = n + 3;
         std::vector<int32_t> list;
         for (int64_t i = 0; i < n; ++i) list.push_back(static_cast<int32_t>(i * 7 % tokens));
         const RowRun parts[] = {{0, 0, half}, {half, half, n - half}};
         Tensor& rows = t.ints(list);
         const Tensor* x[] = {&t.random(dt, tokens * g.in, 131), &t.random(dt, tokens * g.in, 132)};
         const Tensor* dy[] = {&t.random(dt, tokens * g.out, 133),
                               &t.random(dt, tokens * g.out, 134)};
         const Tensor &w = t.random(dt, g.weights(), 135), &scale = t.random(DType::kF32, n, 136);
         Tensor &copied_x = t.filled(dt, n * g.in), &copied_dy = t.filled(dt, n * g.out);
         // Addresses, which are a machine's own.
         Tensor &at_x = t.filled(DType::kF32, 2 * n), &at_dy = t.filled(DType::kF32, 2 * n);
         struct Results {
           Tensor &y, &dx, &dw, &dbias;
         };
         const auto make_results = [&] {
           return Results{t.filled(dt, n * g.out), t.filled(DType::kF32, n * g.in),
                          t.filled(DType::kF32, g.weights()),
                          t.filled(DType::kF32, g.experts() * g.out)};
         };
         const Results copied = make_results(), in_place = make_results();
         t.run([&](Ops& ops, const At& at, Stream& s) {
           for (int i = 0; i < 2; ++i) {
             const std::span<const RowRun> run(&parts[i], 1);
             ops.gather_row_runs(dt, at(*x[i]), at(rows), run, g.in, at(copied_x), s);
             ops.gather_row_runs(dt, at(*dy[i]), at(rows), run, g.out, at(copied_dy), s);
             ops.locate_rows(dt, at(*x[i]), at(rows), run, g.in, at(at_x), s);
             ops.locate_rows(dt, at(*dy[i]), at(rows), run, g.out, at(at_dy), s);
           }
           const auto multiply = [&](const InputRows& from, const InputRows& gradient,
                                     const Results& to) {
             std::vector<RowsOfWeight> weights;
             std::vector<RowsOfGradient> gradients, biases;
             for (int64_t e = 0; e < g.experts(); ++e) {
               const int64_t count = g.counts[size_t(e)];
               weights.push_back({g.first(e), count, at(w) + g.weight(e) * dtype_bytes(dt)});
               gradients.push_back({g.first(e), count, at(to.dw) + g.weight(e) * 4});
               biases.push_back({g.first(e), count, at(to.dbias) + e * g.out * 4});
             }
             ops.grouped_linear(dt, from, weights, g.in, g.out, dt, at(to.y), s);
             ops.grouped_linear_backward_input(dt, gradient, weights, g.in, g.out, DType::kF32,
                                               at(to.dx), s);
             ops.grouped_linear_backward_weight(dt, gradient, from, gradients, g.in, g.out, s);
             ops.grouped_bias_backward(dt, gradient, at(scale), biases, g.out, s);
           };
           multiply(at(copied_x), at(copied_dy), copied);
           const void* const* from = at(at_x);
           const void* const* gradient = at(at_dy);
           multiply(InputRows::at(from), InputRows::at(gradient), in_place);
         });
         const auto same = [&](const char* what, const Tensor& a, const Tensor& b) {
           if (a.got != b.got) t.fail(strf("%s: other bits in place", what));
         };
         same("y", copied.y, in_place.y);
         same("dx", copied.dx, in_place.dx);
         same("dw", copied.dw, in_place.dw);
         same("dbias", copied.dbias, in_place.dbias);
       }});
}

// The calls that a library may compute.
void add_products(const Group& g, std::vector<OpCase>& cases) {
  const std::string name =
      strf("products of %lld rows of %lld experts, %lld to %lld", (long long)g.rows(),
           (long long)g.experts(), (long long)g.in, (long long)g.out);
  cases.push_back({name, [=](Trial& t) {
                     constexpr DType dt = DType::kBF16;
                     const auto experts = [&](const Pointer& w) {
                       std::vector<RowsOfWeight> weights;
                       for (int64_t e = 0; e < g.experts(); ++e) {
                         weights.push_back(
                             {g.first(e), g.counts[size_t(e)], w + g.weight(e) * dtype_bytes(dt)});
                       }
                       return weights;
                     };
                     const Tensor &x = t.random(dt, g.rows() * g.in, 121),
                                  &w = t.random(dt, g.weights(), 122),
                                  &dy = t.random(dt, g.rows() * g.out, 123);
                     Tensor &y = t.filled(dt, g.rows() * g.out),
                            &dx = t.filled(dt, g.rows() * g.in);
                     t.run([&](Ops& ops, const At& at, Stream& s) {
                       ops.grouped_linear(dt, at(x), experts(at(w)), g.in, g.out, dt, at(y), s);
                       ops.grouped_linear_backward_input(dt, at(dy), experts(at(w)), g.in, g.out,
                                                         dt, at(dx), s);
                     });
                     compare_product(t, "y", {dt, dt, g.in, g.out, 1, g.in}, g, x, w, y, 0.0);
                     compare_product(t, "dx", {dt, dt, g.out, g.in, g.in, 1}, g, dy, w, dx, 0.0);
                   }});
}

// Rows of several experts that meet in tokens, some of which only one of them has.
void add_runs(DType dt, int64_t most, int64_t tokens, int64_t dim, std::vector<OpCase>& cases) {
  cases.push_back(
      {strf("%lld row runs %s of %lld x %lld", (long long)most, dtype_name(dt), (long long)tokens,
            (long long)dim),
       [=](Trial& t) {
         std::vector<int32_t> list;
         std::vector<RowRun> runs;
         int64_t block = 2;
         for (int64_t step = 1; step <= most; ++step) {  // run `step` has every step-th token
           list.insert(list.end(), 3, 0);                // between runs: of nobody
           const auto from = std::ssize(list);
           for (int64_t i = step - 1; i < tokens; i += step)
             list.push_back(static_cast<int32_t>(i));
           runs.push_back({from, block, std::ssize(list) - from});
           block += runs.back().count + step % 3;
         }
         runs.insert(runs.begin() + 1, {0, 0, 0});
         Tensor &rows = t.ints(list), &from = t.random(dt, tokens * dim, 105);
         Tensor &out = t.filled(dt, block * dim), &x = t.random(dt, block * dim, 106);
         Tensor &long_list = t.random(dt, std::ssize(list) * dim, 110),
                &copied = t.filled(dt, block * dim);
         Tensor &scale = t.random(DType::kF32, block, 107),
                &y = t.random(DType::kF32, tokens * dim, 108);
         Tensor& plain = t.random(DType::kF32, tokens * dim, 109);
         t.run([&](Ops& ops, const At& at, Stream& s) {
           ops.gather_row_runs(dt, at(from), at(rows), runs, dim, at(out), s);
           ops.copy_row_runs(dt, at(long_list), runs, dim, at(copied), s);
           ops.scatter_add_row_runs(dt, at(x), at(rows), at(scale), runs, dim, at(y), s);
           ops.scatter_add_row_runs(dt, at(x), at(rows), nullptr, runs, dim, at(plain), s);
         });
         t.expect_same("out", out);
         t.expect_same("copied", copied);
         t.expect_same("y", y);
         t.expect_same("y without scale", plain);
       }});
}

// More experts than a launch has room for.
Group several_launches() {
  Group group{{}, 16, 24, 8};
  for (int64_t e = 0; e < 2 * kMostTogether + 3; ++e) group.counts.push_back(e * 5 % 7);
  return group;
}

}  // namespace

std::vector<OpCase> library_product_cases() {
  std::vector<OpCase> cases;
  add_products({{64}, 16, 32, 0}, cases);
  add_products({{65, 0, 1, 300, 7}, 40, 24, 8}, cases);
  add_products({{0, 5, 0, 1, 2, 3, 4, 1, 1, 1, 70, 1, 1, 9, 1, 0}, 128, 64, 16}, cases);
  add_products(several_launches(), cases);
  return cases;
}

std::vector<OpCase> grouped_cases() {
  std::vector<OpCase> cases;
  for (DType dt : kDTypes) {
    add_group(dt, {{1}, 8, 16, 0}, cases);
    add_group(dt, {{65, 0, 1, 300, 7}, 40, 24, 8}, cases);
    add_group(dt, {{3, 130, 64}, 72, 136, 3}, cases);  // weights not aligned
    add_group(dt, {{0, 5, 0, 1, 2, 3, 4, 1, 1, 1, 70, 1, 1, 9, 1, 0}, 17, 9, 16}, cases);
    add_group(dt, several_launches(), cases);
    add_in_place(dt, {{65, 0, 1, 300, 7}, 40, 24, 8}, cases);
    add_in_place(dt, {{3, 130, 64}, 17, 9, 0}, cases);  // rows not aligned
    add_runs(dt, 5, 70, 33, cases);
    add_runs(dt, 2 * kMostTogether + 1, 70, 33, cases);
    add_runs(dt, 5, 300, 1, cases);
  }
  return cases;
}

}  // namespace pagoda::check
