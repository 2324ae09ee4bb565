// What gpu_check prints and measures beside the comparison of ops: its lines, and the layer whose
// memory it measures, here on the emulated machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/random.h"
#include "kernels/cuda/cuda_ops.h"
#include "tests/testing/op_testing.h"
#include "tools/gpu_check/layer_pass.h"
#include "tools/gpu_check/scores.h"

namespace pagoda::check {
namespace {

TEST(Scores, CountWhatReachesItsGoal) {
  Scores scores;
  EXPECT_EQ(scores.at_least("a", 0.85, 0.85).substr(0, 4), "PASS");
  EXPECT_EQ(scores.at_least("b", 0.849, 0.85).substr(0, 4), "FAIL");
  EXPECT_EQ(scores.at_most("c", 1.1, 1.1).substr(0, 4), "PASS");
  EXPECT_EQ(scores.at_most("d", 1.101, 1.1).substr(0, 4), "FAIL");
  EXPECT_EQ(scores.at_least("e", NAN, 0.0).substr(0, 4), "FAIL");
  EXPECT_EQ(scores.at_most("f", NAN, 9.0).substr(0, 4), "FAIL");
  EXPECT_NE(scores.at_most("what", 1.05, 1.1, "more").find("what"), std::string::npos);
  EXPECT_EQ(scores.summary(), "3 of 7 ratios reach their goals");
}

TEST(ZipfChoices, AreDistinctForATokenAndFavourTheFirst) {
  const LayerShape shape{400, 3, 8, 8, 8};
  const std::vector<int32_t> choices = zipf_choices(shape, 1);
  std::vector<int> counts(8, 0);
  for (size_t t = 0; t < 400; ++t) {
    const auto first = choices.begin() + static_cast<int64_t>(3 * t);
    std::vector<int32_t> own(first, first + 3);
    std::sort(own.begin(), own.end());
    EXPECT_EQ(std::adjacent_find(own.begin(), own.end()), own.end()) << t;
    EXPECT_GE(own.front(), 0);
    EXPECT_LT(own.back(), 8);
    for (int32_t e : own) ++counts[size_t(e)];
  }
  EXPECT_GT(counts[0], 2 * counts[7]);
  EXPECT_EQ(zipf_choices({5, 2, 2, 8, 8}, 1).size(), 10u);
}

// With as many rows for every expert nothing is padded, but for what is copied in and out.
TEST(PaddedBytes, GrowWithTheBusiestExpert) {
  const LayerShape shape{6, 1, 3, 10, 4};
  const int64_t results = 2 * 6 * 10 * 4, row = (4 * 4 + 4 * 10) * 2;
  EXPECT_EQ(padded_bytes(shape, {0, 1, 2, 0, 1, 2}), 6 * row + results);
  EXPECT_EQ(padded_bytes(shape, {0, 1, 2, 0, 1, 0}), 9 * row + results);
  EXPECT_EQ(padded_bytes(shape, {1, 1, 1, 1, 1, 1}), 18 * row + results);
}

// ---- the layer ----

struct Layer {
  static constexpr int64_t kArenaBytes = int64_t{16} << 20, kScratchBytes = int64_t{1} << 20;
  explicit Layer(const LayerShape& of)
      : shape(of), choices(zipf_choices(of, 5)),
        device(open_host_device({kArenaBytes, 1, nullptr}).take()),
        stream(with_scratch(device->make_stream("layer", WorkKind::kOther))),
        arena(*device, *stream) {
    in.choices = fill<int32_t>(shape.rows(), [&](int64_t i) { return choices[size_t(i)]; });
    in.weights = fill<float>(shape.rows(), [](int64_t i) { return 0.25f + float(i % 5) * 0.1f; });
    in.x = normal(shape.tokens * shape.model, 1, 1.0f);
    in.dy = normal(shape.tokens * shape.model, 2, 1.0f);
    in.up = normal(shape.experts * 2 * shape.inner * shape.model, 3, 0.2f);
    in.down = normal(shape.experts * shape.model * shape.inner, 4, 0.2f);
    in.dup = arena.take_as<float>(shape.experts * 2 * shape.inner * shape.model);
    in.ddown = arena.take_as<float>(shape.experts * shape.model * shape.inner);
  }
  // The last of the arena.
  std::unique_ptr<Stream> with_scratch(std::unique_ptr<Stream> s) const {
    s->use_scratch({device->arena() + kArenaBytes - kScratchBytes, size_t{kScratchBytes}});
    return s;
  }
  template <typename T, typename Value>
  T* fill(int64_t n, const Value& value) {
    T* memory = arena.take_as<T>(n);
    for (int64_t i = 0; i < n; ++i) memory[i] = value(i);
    return memory;
  }
  bf16* normal(int64_t n, uint64_t seed, float scale) {
    return fill<bf16>(n, [&](int64_t i) {
      return bf16_round(scale * random_normal(seed, RandomPurpose::kTest, 0, uint64_t(i)));
    });
  }

  LayerShape shape;
  std::vector<int32_t> choices;
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
  Arena arena;
  LayerInputs in;
};

// y and dx in double, and the sizes of what they are summed from.
struct Reference {
  explicit Reference(const Layer& of) : l(of) {
    const auto n = static_cast<size_t>(l.shape.tokens * l.shape.model);
    for (auto* all : {&y, &y_size, &dx, &dx_size}) all->assign(n, 0.0);
    for (int64_t i = 0; i < l.shape.rows(); ++i) {
      for (int64_t f = 0; f < l.shape.inner; ++f) add(i, f);
    }
  }
  static double at(const bf16* p, int64_t i) { return static_cast<double>(to_float(p[i])); }

  // Choice i's inner number f.
  void add(int64_t i, int64_t f) {
    const int64_t e = l.choices[size_t(i)], t = i / l.shape.k, model = l.shape.model;
    const bf16* gate_row = l.in.up + (e * 2 * l.shape.inner + f) * model;
    const bf16* up_row = gate_row + l.shape.inner * model;
    const bf16* down = l.in.down + e * model * l.shape.inner + f;
    double gate = 0.0, up = 0.0, dact = 0.0;
    for (int64_t d = 0; d < model; ++d) {
      gate += at(l.in.x, t * model + d) * at(gate_row, d);
      up += at(l.in.x, t * model + d) * at(up_row, d);
      dact += at(l.in.dy, t * model + d) * at(down, d * l.shape.inner);
    }
    const double weight = double(l.in.weights[i]), s = 1.0 / (1.0 + std::exp(-gate));
    const double silu = gate * s, slope = s * (1.0 + gate * (1.0 - s));
    dact *= weight;
    for (int64_t d = 0; d < model; ++d) {
      const auto place = static_cast<size_t>(t * model + d);
      const double out = weight * silu * up * at(down, d * l.shape.inner);
      y[place] += out;
      y_size[place] += std::abs(out);
      const double by_gate = dact * up * at(gate_row, d), by_up = dact * at(up_row, d);
      dx[place] += by_gate * slope + by_up * silu;
      // A rounded gate moves silu by at most 1.1, its slope by at most 0.5 times its error.
      dx_size[place] += std::abs(by_gate) * (std::abs(slope) + std::abs(gate)) +
                        std::abs(by_up) * (std::abs(silu) + std::abs(gate));
    }
  }

  const Layer& l;
  std::vector<double> y, y_size, dx, dx_size;
};

// What lies between the products is rounded to bf16: gate, up, act, the rows of y, the gradient of
// act, those of gate and up, and the rows of dx. Each counts once, gate at its size.
void expect_results(const Layer& l, const LayerPass& pass) {
  const Reference want(l);
  for (size_t i = 0; i < want.y.size(); ++i) {
    const double gate_size = 6 * want.y_size[i];  // the change of silu(gate) upwards for |gate| < 5
    ASSERT_NEAR(double(pass.y()[i]), want.y[i], 0x1p-8 * (3 * want.y_size[i] + gate_size)) << i;
    ASSERT_NEAR(double(pass.dx()[i]), want.dx[i], 7 * 0x1p-8 * want.dx_size[i]) << i;
  }
}

TEST(LayerPass, ComputesTheLayerInTheMemoryItTakes) {
  Layer layer({40, 2, 4, 24, 16});
  const int64_t before = layer.arena.taken();
  LayerPass pass(layer.shape, layer.choices, layer.arena);
  const auto ops = make_emulated_ops(true, 1);
  const int64_t scratch = scratch_used(*layer.stream, [&] {
    pass.forward(layer.in, *ops, *layer.stream);
    pass.backward(layer.in, *ops, *layer.stream);
  });
  expect_results(layer, pass);

  // The memory holds 4 inner + model numbers of each row and all of both results; beside them four
  // numbers and two addresses a row, and 12 tensors that begin on 256 bytes. The scratch, too,
  // holds a few numbers a row.
  const int64_t rows = layer.shape.rows(), model = 24, inner = 16;
  const int64_t least = rows * (4 * inner + model) * 2 + 2 * 40 * model * 4;
  EXPECT_GE(layer.arena.taken() - before, least);
  EXPECT_LE(layer.arena.taken() - before, least + rows * 32 + 12 * 256);
  EXPECT_GT(scratch, 0);
  EXPECT_LE(scratch, 64 * rows);
}

// From top-1 to top-8 what is padded grows faster: the more so the more uneven the choices.
TEST(LayerPass, TakesLessThanThePaddedSchemeForAnyK) {
  for (int64_t k = 1; k <= 8; ++k) {
    Layer layer({64, k, 8, 32, 16});
    const int64_t before = layer.arena.taken();
    const LayerPass pass(layer.shape, layer.choices, layer.arena);
    EXPECT_GT(layer.arena.taken(), before);
    EXPECT_LT(layer.arena.taken() - before, padded_bytes(layer.shape, layer.choices)) << k;
  }
}

}  // namespace
}  // namespace pagoda::check
