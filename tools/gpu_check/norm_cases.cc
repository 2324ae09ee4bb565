// RMSNorm and the gradient of a bias.
#include <cmath>

#include "tools/gpu_check/trial.h"

namespace pagoda::check {
namespace {

struct Norm {
  int64_t rows, groups, dim, stride;
  int64_t size() const { return rows == 0 ? 0 : (rows - 1) * stride + groups * dim; }
};

// A sum of `terms` products in two orders is off by terms * eps of their sizes in each; rstd by
// half that and a root and a division, relative to itself.
double rstd_error(const Norm& c) { return (static_cast<double>(c.dim) + 4) * kEps32; }

void add_norm(DType dt, const Norm& c, bool in_place, std::vector<OpCase>& cases) {
  const std::string name = strf("rmsnorm %s %lld x %lld x %lld", dtype_name(dt),
                                static_cast<long long>(c.rows), static_cast<long long>(c.groups),
                                static_cast<long long>(c.dim));
  cases.push_back({name, [=](Trial& t) {
    Tensor &x = t.random(dt, c.size(), 21), &weight = t.random(dt, c.dim, 22);
    Tensor &out = t.filled(dt, c.size()), &rstd = t.filled(DType::kF32, c.rows * c.groups);
    Tensor &dout = t.random(dt, c.size(), 23), &apart = t.filled(dt, c.size());
    Tensor& dweight = t.filled(DType::kF32, c.dim, 0.25);
    Tensor& dx = in_place ? dout : apart;
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.rmsnorm(dt, at(x), at(weight), 1e-3f, c.rows, c.groups, c.dim, c.stride, at(out),
                  at(rstd), s);
      ops.rmsnorm_backward(dt, at(x), at(weight), at(rstd), at(dout), c.rows, c.groups, c.dim,
                           c.stride, at(dx), at(dweight), s);
    });
    const double relative = rstd_error(c), u = dt == DType::kBF16 ? kEpsBf16 : 0.0;
    t.expect_close("rstd", rstd, [&](int64_t i) { return relative * want(rstd, i); });
    // x rstd may round apart, its product with the weight again.
    t.expect_close("out", out, [&](int64_t i) {
      return (4.04 * u + relative + 4 * kEps32) * std::abs(want(out, i)) + 1e-30;
    });
    double largest = 0.0;
    for (int64_t i = 0; i < weight.n; ++i) largest = std::max(largest, std::abs(before(weight, i)));
    // dx = rstd (dout w - h mean): both parts of a size of at most rstd w 5 (1 + |h|).
    t.expect_close("dx", dx, [&](int64_t i) {
      double scale = 0.0;
      for (int64_t g = 0; g < rstd.n; ++g) scale = std::max(scale, want(rstd, g));
      return 2.02 * u * std::abs(want(dx, i)) + 8 * relative * scale * largest * 30 + 1e-30;
    });
    t.expect_close("dweight", dweight, [&](int64_t) {
      const auto terms = static_cast<double>(c.rows * c.groups);
      return (2.02 * u + relative + 2 * terms * kEps32) * 5 * 5 * std::sqrt(terms) + 4 * kEps32;
    });
  }});
}

void add_bias(DType dt, int64_t n, int64_t dim, std::vector<OpCase>& cases) {
  const std::string name = strf("bias_backward %s %lld x %lld", dtype_name(dt),
                                static_cast<long long>(n), static_cast<long long>(dim));
  cases.push_back({name, [=](Trial& t) {
    Tensor &dy = t.random(dt, n * dim, 24), &dbias = t.random(DType::kF32, dim, 25);
    t.run([&](Ops& ops, const At& at, Stream& s) {
      ops.bias_backward(dt, at(dy), n, dim, at(dbias), s);
    });
    t.expect_close("dbias", dbias, [&](int64_t j) {
      double size = std::abs(before(dbias, j));
      for (int64_t i = 0; i < n; ++i) size += std::abs(before(dy, i * dim + j));
      return 2 * static_cast<double>(n) * kEps32 * size;
    });
  }});
}

}  // namespace

std::vector<OpCase> norm_cases() {
  std::vector<OpCase> cases;
  for (DType dt : kDTypes) {
    add_norm(dt, {1, 1, 1, 1}, false, cases);
    add_norm(dt, {5, 1, 17, 17}, true, cases);
    add_norm(dt, {3, 4, 8, 50}, false, cases);
    add_norm(dt, {130, 2, 40, 90}, true, cases);
    add_norm(dt, {300, 1, 260, 260}, false, cases);
    add_bias(dt, 1, 1, cases);
    add_bias(dt, 300, 33, cases);
    add_bias(dt, 0, 5, cases);
  }
  return cases;
}

}  // namespace pagoda::check
