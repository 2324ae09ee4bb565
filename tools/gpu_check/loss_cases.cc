// Cross-entropy in chunks.
#include <cmath>

#include "tools/gpu_check/trial.h"

namespace pagoda::check {
namespace {

void add_loss(DType dt, int64_t n, int64_t vocab, int gradient, std::vector<OpCase>& cases) {
  const std::string name = strf("cross_entropy %s %lld x %lld", dtype_name(dt),
                                static_cast<long long>(n), static_cast<long long>(vocab));
  cases.push_back({name, [=](Trial& t) {
    constexpr float kScale = 0.125f;
    Tensor &logits = t.random(DType::kF32, n * vocab, 61, 3.0), &weight =
        t.random(DType::kF32, n, 62);
    std::vector<int32_t> targets;
    for (int64_t i = 0; i < n; ++i) {
      targets.push_back(i % 4 == 1 ? -100 : static_cast<int32_t>(i * 37 % vocab));
    }
    Tensor &target = t.ints(targets), &apart = t.filled(dt, n * vocab), &loss = t.doubles({0.5});
    Tensor& dlogits = gradient == 2 ? logits : apart;  // in the logits' place
    t.run([&](Ops& ops, const At& at, Stream& s) {
      void* out = gradient == 0 ? nullptr : static_cast<void*>(at(dlogits));
      ops.cross_entropy(dt, at(logits), at(target), at(weight), n, vocab, kScale, out, at(loss), s);
    });
    // Exponentials within 3e-7 of their own size, fp32 sums of 4096 of them, each side.
    const double relative = 2 * (3e-7 + 4096 * kEps32);
    t.expect_close("loss", loss, [&](int64_t) {
      double size = 1.0;
      for (int64_t i = 0; i < n; ++i) size += std::abs(before(weight, i));
      return relative * size;
    });
    // A probability's error is relative to itself; the target's 1 is exact, and lse rounded to fp32
    // shifts all of them alike.
    t.expect_close("dlogits", dlogits, [&](int64_t i) {
      const double factor = std::abs(before(weight, i / vocab)) * static_cast<double>(kScale);
      const double p = std::abs(want(dlogits, i)) / factor + 1.0;
      return (relative + 32 * kEps32) * factor * std::min(p, 2.0) +
             2.02 * (dt == DType::kBF16 ? kEpsBf16 : 0.0) * std::abs(want(dlogits, i)) + 1e-30;
    });
  }});
}

}  // namespace

std::vector<OpCase> loss_cases() {
  std::vector<OpCase> cases;
  for (DType dt : kDTypes) {
    add_loss(dt, 1, 1, 1, cases);
    add_loss(dt, 7, 33, 1, cases);
    add_loss(dt, 3, 9000, 1, cases);
    add_loss(dt, 300, 5, 0, cases);
  }
  add_loss(DType::kF32, 6, 500, 2, cases);
  return cases;
}

}  // namespace pagoda::check
