#include "tools/gpu_check/layer_pass.h"

#include <algorithm>

#include "base/random.h"

namespace pagoda::check {
namespace {

std::vector<int64_t> counts_of(const LayerShape& shape, const std::vector<int32_t>& choices) {
  std::vector<int64_t> counts(static_cast<size_t>(shape.experts), 0);
  for (int32_t e : choices) ++counts[static_cast<size_t>(e)];
  return counts;
}

}  // namespace

// Each choice draws among the experts that its token does not have yet.
std::vector<int32_t> zipf_choices(const LayerShape& shape, uint64_t seed) {
  CHECK(shape.k <= shape.experts);
  std::vector<int32_t> choices;
  for (int64_t t = 0; t < shape.tokens; ++t) {
    std::vector<double> share;
    for (int64_t e = 0; e < shape.experts; ++e) share.push_back(1.0 / static_cast<double>(e + 1));
    for (int64_t j = 0; j < shape.k; ++j) {
      double sum = 0.0;
      for (double part : share) sum += part;
      double left = sum * random_unit(seed, RandomPurpose::kTest, static_cast<uint64_t>(j),
                                      static_cast<uint64_t>(t));
      size_t e = 0, last = 0;
      for (; e < share.size(); ++e) {
        if (share[e] == 0.0) continue;
        last = e;
        left -= share[e];
        if (left < 0.0) break;
      }
      choices.push_back(static_cast<int32_t>(last));
      share[last] = 0.0;
    }
  }
  return choices;
}

LayerPass::LayerPass(const LayerShape& shape, const std::vector<int32_t>& choices, Arena& arena)
    : shape_(shape) {
  int64_t row = 0;
  for (int64_t count : counts_of(shape, choices)) {
    first_.push_back(row);
    row += count;
  }
  first_.push_back(row);
  const int64_t rows = shape.rows();
  offsets_ = arena.take_as<int32_t>(shape.experts + 1);
  index_ = arena.take_as<int32_t>(rows);
  places_ = arena.take_as<int32_t>(rows);
  row_weights_ = arena.take_as<float>(rows);
  drow_weights_ = arena.take_as<float>(rows);
  gate_up_ = arena.take_as<bf16>(rows * 2 * shape.inner);
  act_ = arena.take_as<bf16>(rows * shape.inner);
  dact_ = arena.take_as<bf16>(rows * shape.inner);
  dx_rows_ = arena.take_as<bf16>(rows * shape.model);
  y_ = arena.take_as<float>(shape.tokens * shape.model);
  dx_ = arena.take_as<float>(shape.tokens * shape.model);
}

void LayerPass::forward(const LayerInputs& in, Ops& ops, ExpertOps& experts, Stream& s) {
  const auto [tokens, k, count, model, inner] = shape_;
  experts.reindex(in.choices, tokens, k, count, offsets_, index_, places_, s);
  ops.gather_rows(DType::kF32, in.weights, places_, shape_.rows(), 1, row_weights_, s);
  experts.esmm(DType::kBF16, expert_rows(), in.x, index_, in.up, nullptr, model, 2 * inner,
               DType::kBF16, gate_up_, s);
  ops.swiglu(DType::kBF16, {}, gate_up_, shape_.rows(), inner, act_, s);
  ops.fill_zero(y_, tokens * model * 4, s);
  experts.esmm_combine(DType::kBF16, expert_rows(), act_, in.down, inner, model, index_,
                       row_weights_, tokens, y_, s);
}

void LayerPass::backward(const LayerInputs& in, Ops& ops, ExpertOps& experts, Stream& s) {
  const auto [tokens, k, count, model, inner] = shape_;
  experts.esmm_backward_input(DType::kBF16, expert_rows(), in.dy, index_, in.down, inner, model,
                              DType::kBF16, dact_, s);
  // The gradient takes the place of gate_up, what the weights are multiplied with that of act.
  ops.swiglu_backward(DType::kBF16, {}, gate_up_, dact_, row_weights_, shape_.rows(), inner,
                      gate_up_, act_, drow_weights_, s);
  experts.estmm(DType::kBF16, expert_rows(), in.dy, index_, act_, nullptr, inner, model, false,
                in.ddown, s);
  experts.esfk(DType::kBF16, expert_rows(), gate_up_, nullptr, in.x, index_, in.up, model,
               2 * inner, DType::kBF16, dx_rows_, false, in.dup, nullptr, s);
  ops.fill_zero(dx_, tokens * model * 4, s);
  for (size_t e = 0; e + 1 < first_.size(); ++e) {
    if (first_[e] == first_[e + 1]) continue;
    ops.scatter_add_rows(DType::kBF16, dx_rows_ + first_[e] * model, index_ + first_[e], nullptr,
                         first_[e + 1] - first_[e], model, dx_, s);
  }
}

int64_t padded_bytes(const LayerShape& shape, const std::vector<int32_t>& choices) {
  const std::vector<int64_t> counts = counts_of(shape, choices);
  const int64_t rows = shape.experts * *std::max_element(counts.begin(), counts.end());
  const int64_t numbers = 4 * shape.inner +  // gate and up, act, and the gradient of act
                          4 * shape.model;   // tokens in and out, and the gradients of both
  return rows * numbers * 2 + 2 * shape.tokens * shape.model * 4;
}

}  // namespace pagoda::check
