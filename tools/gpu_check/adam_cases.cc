// Adam of records that stay on the device: the bits of optim/adam.h.
#include <cstring>

#include "optim/adam.h"
#include "tools/gpu_check/trial.h"

namespace pagoda::check {
namespace {

ThreadPool& pool() {
  static ThreadPool pool(2);
  return pool;
}

// Some updates of a record whose spans do not end with blocks, one without a gradient.
void add_adam(StateFormat format, DType dt, int64_t n, double beta1, std::vector<OpCase>& cases) {
  const std::string name =
      strf("adam %s state, %s weights, %lld elements", state_format_name(format), dtype_name(dt),
           static_cast<long long>(n));
  cases.push_back({name, [=](Trial& t) {
    const StateLayout layout(format, dt, n);
    Tensor &weights = t.filled(dt, n), &grad = t.random(dt, 3 * n, 91, 0.02);
    Tensor& state = t.bytes(std::vector<uint8_t>(static_cast<size_t>(layout.bytes), 0));
    Tensor& finite = t.ints({7, 7, 7, 7});
    std::vector<float> masters;
    for (int64_t i = 0; i < n; ++i) masters.push_back(static_cast<float>(before(grad, i)) * 3.7f);
    begin_state(layout, masters.data(), weights.before.data(), state.before.data());
    std::vector<AdamSpan> spans{{0, n / 3, true}, {n / 3, n / 2, false}, {n / 2, n, true}};
    std::erase_if(spans, [](const AdamSpan& span) { return span.begin == span.end; });
    const auto update = [&](const At& at, const auto& one) {
      const AdamRecord record{layout, spans, at(weights), at(state)};
      for (int i = 0; i < 4; ++i) {
        const AdamStep step{1e-2, beta1, 0.99, 1e-8, 0.1, i + 1, 77u + static_cast<uint32_t>(i)};
        const void* g = i == 3 ? nullptr : (at(grad) + i * n * dtype_bytes(dt)).p;
        one(step, record, g, static_cast<int32_t*>(at(finite)) + i);
      }
    };
    t.run(
        [&](const At& at, Stream&) {
          update(at, [&](const AdamStep& step, const AdamRecord& record, const void* g,
                         int32_t* good) { *good = adam_update(step, record, g, 0.7f, pool()); });
        },
        [&](const At& at, Stream& s) {
          update(at, [&](const AdamStep& step, const AdamRecord& record, const void* g,
                         int32_t* good) { t.candidate().adam(step, record, g, 0.7f, good, s); });
        });
    t.expect_same("weights", weights);
    t.expect_same("state", state);
    t.expect_same("finite", finite);
  }});
}

void add_ruin(float bad, std::vector<OpCase>& cases) {
  cases.push_back({"adam with a gradient that is not finite", [=](Trial& t) {
    const StateLayout layout(StateFormat::kFp32, DType::kF32, 300);
    Tensor &weights = t.filled(DType::kF32, 300), &grad = t.random(DType::kF32, 300, 92);
    Tensor& state = t.bytes(std::vector<uint8_t>(static_cast<size_t>(layout.bytes), 0));
    Tensor& finite = t.ints({7});
    std::memcpy(grad.before.data() + 4 * 299, &bad, 4);
    const std::vector<AdamSpan> spans{{0, 300, true}};
    const AdamStep step{1e-2, 0.9, 0.99, 1e-8, 0.1, 1, 5};
    t.run(
        [&](const At& at, Stream&) {
          const AdamRecord record{layout, spans, at(weights), at(state)};
          *static_cast<int32_t*>(at(finite)) = adam_update(step, record, at(grad), 1.0f, pool());
        },
        [&](const At& at, Stream& s) {
          const AdamRecord record{layout, spans, at(weights), at(state)};
          t.candidate().adam(step, record, at(grad), 1.0f, at(finite), s);
        });
    t.expect_same("finite", finite);
    if (want(finite, 0) != 0) t.fail("the reference does not fail");
  }});
}

}  // namespace

std::vector<OpCase> adam_cases() {
  std::vector<OpCase> cases;
  for (StateFormat format : {StateFormat::kFp32, StateFormat::kBf16, StateFormat::k8Bit}) {
    for (DType dt : kDTypes) {
      add_adam(format, dt, 1, 0.9, cases);
      add_adam(format, dt, 256, 0.9, cases);
      add_adam(format, dt, 1000, 0.9, cases);
      add_adam(format, dt, 1000, 0.4, cases);
    }
  }
  add_ruin(__builtin_nanf(""), cases);
  add_ruin(__builtin_inff(), cases);
  return cases;
}

}  // namespace pagoda::check
