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
  index_ = arena.take_as<int32_t>(rows);
  places_ = arena.take_as<int32_t>(rows);
  x_rows_ = arena.take_as<const void*>(rows);
  dy_rows_ = arena.take_as<const void*>(rows);
  row_weights_ = arena.take_as<float>(rows);
  drow_weights_ = arena.take_as<float>(rows);
  gate_up_ = arena.take_as<bf16>(rows * 2 * shape.inner);
  act_ = arena.take_as<bf16>(rows * shape.inner);
  dact_ = arena.take_as<bf16>(rows * shape.inner);
  rows_out_ = arena.take_as<bf16>(rows * shape.model);
  y_ = arena.take_as<float>(shape.tokens * shape.model);
  dx_ = arena.take_as<float>(shape.tokens * shape.model);
}

template <typename Body>
void LayerPass::for_groups(const Body& body) const {
  for (int64_t first = 0; first < shape_.experts; first += kMostTogether) {
    body(first, std::min(shape_.experts, first + kMostTogether));
  }
}

std::vector<RowsOfWeight> LayerPass::weights(const bf16* w, int64_t elements, int64_t first,
                                             int64_t end) const {
  std::vector<RowsOfWeight> weights;
  for (int64_t e = first; e < end; ++e) {
    const auto at = static_cast<size_t>(e);
    weights.push_back({first_[at], first_[at + 1] - first_[at], w + e * elements});
  }
  return weights;
}

std::vector<RowsOfGradient> LayerPass::gradients(float* dw, int64_t elements, int64_t first,
                                                 int64_t end) const {
  std::vector<RowsOfGradient> gradients;
  for (int64_t e = first; e < end; ++e) {
    const auto at = static_cast<size_t>(e);
    gradients.push_back({first_[at], first_[at + 1] - first_[at], dw + e * elements});
  }
  return gradients;
}

// Expert by expert, whose tokens are distinct.
void LayerPass::sum_rows(Ops& ops, const float* scale, float* sums, Stream& s) const {
  ops.fill_zero(sums, shape_.tokens * shape_.model * 4, s);
  for (size_t e = 0; e + 1 < first_.size(); ++e) {
    if (first_[e] == first_[e + 1]) continue;
    ops.scatter_add_rows(DType::kBF16, rows_out_ + first_[e] * shape_.model, index_ + first_[e],
                         scale != nullptr ? scale + first_[e] : nullptr, first_[e + 1] - first_[e],
                         shape_.model, sums, s);
  }
}

void LayerPass::forward(const LayerInputs& in, Ops& ops, Stream& s) {
  const auto [tokens, k, count, model, inner] = shape_;
  const RowRun all{0, 0, shape_.rows()};
  ops.index_rows(in.choices, tokens, k, count, first_.data(), index_, places_, s);
  ops.gather_rows(DType::kF32, in.weights, places_, shape_.rows(), 1, row_weights_, s);
  ops.locate_rows(DType::kBF16, in.x, index_, {&all, 1}, model, x_rows_, s);
  for_groups([&](int64_t first, int64_t end) {
    ops.grouped_linear(DType::kBF16, InputRows::at(x_rows_),
                       weights(in.up, 2 * shape_.inner * shape_.model, first, end), shape_.model,
                       2 * shape_.inner, DType::kBF16, gate_up_, s);
  });
  ops.swiglu(DType::kBF16, {}, gate_up_, shape_.rows(), inner, act_, s);
  for_groups([&](int64_t first, int64_t end) {
    ops.grouped_linear(DType::kBF16, act_,
                       weights(in.down, shape_.inner * shape_.model, first, end), shape_.inner,
                       shape_.model, DType::kBF16, rows_out_, s);
  });
  sum_rows(ops, row_weights_, y_, s);
}

void LayerPass::backward(const LayerInputs& in, Ops& ops, Stream& s) {
  const int64_t model = shape_.model, inner = shape_.inner, matrix = model * inner;
  const RowRun all{0, 0, shape_.rows()};
  ops.locate_rows(DType::kBF16, in.dy, index_, {&all, 1}, model, dy_rows_, s);
  const InputRows x = InputRows::at(x_rows_), dy = InputRows::at(dy_rows_);
  for_groups([&](int64_t first, int64_t end) {
    ops.grouped_linear_backward_input(DType::kBF16, dy, weights(in.down, matrix, first, end), inner,
                                      model, DType::kBF16, dact_, s);
  });
  // The gradient takes the place of gate_up, what the weights are multiplied with that of act.
  ops.swiglu_backward(DType::kBF16, {}, gate_up_, dact_, row_weights_, shape_.rows(), inner,
                      gate_up_, act_, drow_weights_, s);
  for_groups([&](int64_t first, int64_t end) {
    ops.grouped_linear_backward_weight(DType::kBF16, dy, act_,
                                       gradients(in.ddown, matrix, first, end), inner, model, s);
    ops.grouped_linear_backward_weight(
        DType::kBF16, gate_up_, x, gradients(in.dup, 2 * matrix, first, end), model, 2 * inner, s);
    ops.grouped_linear_backward_input(DType::kBF16, gate_up_,
                                      weights(in.up, 2 * matrix, first, end), model, 2 * inner,
                                      DType::kBF16, rows_out_, s);
  });
  sum_rows(ops, nullptr, dx_, s);
}

int64_t padded_bytes(const LayerShape& shape, const std::vector<int32_t>& choices) {
  const std::vector<int64_t> counts = counts_of(shape, choices);
  const int64_t rows = shape.experts * *std::max_element(counts.begin(), counts.end());
  const int64_t numbers = 4 * shape.inner +  // gate and up, act, and the gradient of act
                          4 * shape.model;   // tokens in and out, and the gradients of both
  return rows * numbers * 2 + 2 * shape.tokens * shape.model * 4;
}

}  // namespace pagoda::check
