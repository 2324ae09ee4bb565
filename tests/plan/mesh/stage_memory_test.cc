// Piper's memory equations (1) to (5) as they are printed against the sums over layers, the figures
// of Mixtral 8x7B, the readings of b against counting rows one by one, and constraint (11).
#include "plan/mesh/stage_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <vector>

#include "base/bytes.h"
#include "plan/mesh/recomputed_layers.h"
#include "tests/testing/plan/piper_model.h"

namespace pagoda {
namespace {

struct Symbols {
  int64_t L, d, H, E, k, f, s, b, M, PP, EP;

  PiperModel model() const { return {L, d, H, E, k, f}; }
  PipelineBatch batch(SequencesOf of = SequencesOf::kPaper) const { return {s, b / M, M, of}; }
  Mesh mesh() const { return {PP, EP, 1}; }
};

constexpr MemoryOptions kGpipe{.schedule = PipelineSchedule::kGpipe, .flash_attention = false};
constexpr MemoryOptions k1f1b{.flash_attention = false};

// The printed equations in rational numbers: numerator over the denominators PP, EP, M that divide
// it exactly for the symbols drawn below.
double parameters_of_layer(const Symbols& y) {
  return 64.0 * y.d * y.d + 48.0 * y.E / y.EP * y.d * y.f;
}
double activations_of_layer(const Symbols& y, double b, bool flash) {
  const double scores = flash ? 2.0 * y.H * b * y.s : 4.0 * y.H * b * y.s * y.s;
  return 12.0 * b * y.s * y.d + scores + 2.0 * b * y.s * y.k / y.EP * (3 * y.f + y.d);
}
double equation_3(const Symbols& y, bool flash = false) {
  return static_cast<double>(y.L) / y.PP *
         (parameters_of_layer(y) + activations_of_layer(y, y.b, flash));
}
double equation_4(const Symbols& y, int64_t i, bool flash = false) {
  const double b = static_cast<double>(y.b) / y.M;
  return static_cast<double>(y.L) / y.PP *
         (parameters_of_layer(y) + (y.PP - i) * activations_of_layer(y, b, flash));
}
double equation_5(const Symbols& y) {
  const double b = static_cast<double>(y.b) / y.M;
  return static_cast<double>(y.L) * (y.PP - 1) / y.PP * activations_of_layer(y, b, false);
}

int64_t peak(const Symbols& y, const MemoryOptions& options, int64_t stage,
             SequencesOf of = SequencesOf::kPaper) {
  const ModelCost model = piper_cost(y.model());
  const Result<StageMemory> memory =
      stage_memory(model, y.mesh(), y.batch(of), options, stage);
  EXPECT_TRUE(memory.ok()) << memory.status().message();
  return memory.ok() ? memory.value().peak_bytes() : 0;
}

// Small enough that every term is an integer below 2^53: doubles are exact, so equality is.
Symbols random_symbols(std::mt19937& random) {
  const auto up_to = [&](int64_t most) {
    return static_cast<int64_t>(1 + random() % static_cast<uint32_t>(most));
  };
  Symbols y{};
  y.PP = up_to(6);
  y.L = y.PP * up_to(4);
  y.EP = int64_t{1} << (random() % 4);
  y.E = y.EP * up_to(4);
  y.k = up_to(y.E);
  y.H = up_to(8);
  y.d = y.H * 8 * up_to(8);
  y.f = 8 * up_to(40);
  y.s = 8 * up_to(32);
  y.M = y.PP * up_to(3);
  y.b = y.M * up_to(3);
  return y;
}

TEST(StageMemory, IsThePrintedEquations) {
  for (uint32_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const Symbols y = random_symbols(random);
    MemoryOptions gpipe_flash = kGpipe, flash = k1f1b;
    gpipe_flash.flash_attention = flash.flash_attention = true;
    for (int64_t i = 0; i < y.PP; ++i) {
      EXPECT_EQ(static_cast<double>(peak(y, kGpipe, i)), equation_3(y));
      EXPECT_EQ(static_cast<double>(peak(y, gpipe_flash, i)), equation_3(y, true));
      EXPECT_EQ(static_cast<double>(peak(y, k1f1b, i)), equation_4(y, i));
      EXPECT_EQ(static_cast<double>(peak(y, flash, i)), equation_4(y, i, true));
    }
    EXPECT_EQ(static_cast<double>(peak(y, k1f1b, 0) - peak(y, k1f1b, y.PP - 1)), equation_5(y));
    // (2) is one stage of one microbatch, (1) that on one device.
    Symbols one = y;
    one.PP = one.M = 1;
    EXPECT_EQ(static_cast<double>(peak(one, kGpipe, 0)), equation_3(one));
    EXPECT_EQ(peak(one, kGpipe, 0), peak(one, k1f1b, 0));
    one.EP = 1;
    EXPECT_EQ(static_cast<double>(peak(one, kGpipe, 0)),
              y.L * (64.0 * y.d * y.d + 48.0 * y.E * y.d * y.f + 12.0 * y.b * y.s * y.d +
                     4.0 * y.H * y.b * y.s * y.s + 2.0 * y.b * y.s * y.k * (3 * y.f + y.d)));
  }
}

TEST(StageMemory, OfMixtralHasTheFiguresOfTheChecks) {
  const Symbols y{.L = 32, .d = 4096, .H = 32, .E = 8, .k = 2, .f = 14336,
                  .s = 4096, .b = 32, .M = 32, .PP = 8, .EP = 8};
  std::vector<double> gib;
  for (int64_t i = 0; i < y.PP; ++i) {
    gib.push_back(static_cast<double>(peak(y, k1f1b, i)) / static_cast<double>(kGiB));
    std::printf("stage %lld: %.2f GiB\n", (long long)i, gib.back());
  }
  EXPECT_TRUE(std::is_sorted(gib.rbegin(), gib.rend()));
  // The paper prints these with two digits; here they are exact, being dyadic.
  EXPECT_EQ(gib.front(), 87.375);
  EXPECT_EQ(gib.back(), 23.609375);
  EXPECT_EQ(gib.front() - gib.back(), 63.765625);
  EXPECT_NEAR(gib.front(), 87.38, 0.005 + 1e-9);
  EXPECT_NEAR(gib.back(), 23.61, 0.005);
  EXPECT_NEAR(gib.front() - gib.back(), 63.77, 0.005);
}

// Activations of one microbatch by going through every token of every device: its own device keeps
// what attention needs, the device of each of its experts a row. Tokens choose experts in turn.
std::vector<int64_t> activations_by_token(const Symbols& y, const LayerCost& layer,
                                          int64_t sequences_of_device) {
  std::vector<int64_t> bytes(static_cast<size_t>(y.EP), 0);
  int64_t next = 0;
  for (int64_t device = 0; device < y.EP; ++device) {
    for (int64_t token = 0; token < sequences_of_device * y.s; ++token) {
      bytes[static_cast<size_t>(device)] += layer.token_bytes + 4 * layer.heads * y.s;
      for (int64_t choice = 0; choice < y.k; ++choice) {
        const int64_t owner = next++ % y.E / (y.E / y.EP);
        bytes[static_cast<size_t>(owner)] += layer.row_bytes;
      }
    }
  }
  return bytes;
}

TEST(StageMemory, ReadsSequencesByRankAndByGroupAsCountingTokensDoes) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    Symbols y = random_symbols(random);
    y.s = y.E;  // so that a whole number of rounds goes to the experts
    const int64_t per_device = y.b / y.M;
    const ModelCost model = piper_cost(y.model());
    const auto kept = [&](SequencesOf of, int64_t sequences) {
      const PipelineBatch batch{y.s, sequences, y.M, of};
      return stage_memory(model, y.mesh(), batch, k1f1b, 0).take().microbatch_bytes;
    };
    const std::vector<int64_t> counted = activations_by_token(y, model.layers[0], per_device);
    for (const int64_t bytes : counted) {
      EXPECT_EQ(kept(SequencesOf::kRank, per_device), y.L / y.PP * bytes);
      EXPECT_EQ(kept(SequencesOf::kGroup, per_device * y.EP), y.L / y.PP * bytes);
    }
  }
}

// Stages of a model whose layers differ: all parameters once when experts are not divided, and
// the same experts wherever they are divided.
TEST(StageMemory, HasEveryParameterOnce) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    ModelShape shape;
    shape.vocab_size = 100;
    shape.hidden_size = 16;
    for (uint32_t l = 3 + random() % 9; l > 0; --l) shape.is_moe.push_back(random() % 3 != 0);
    shape.is_moe.back() = 1;
    shape.attention = {.heads = 4, .kv_heads = 2, .head_dim = 4, .value_head_dim = 4};
    shape.dense_ffn = 24;
    shape.num_experts = 8;
    shape.experts_per_token = 2;
    shape.expert_ffn = 8;
    shape.tied_embeddings = random() % 2 == 0;
    const ModelCost model = model_cost(shape).take();
    const Mesh mesh{1 + static_cast<int64_t>(random() % 3), int64_t{1} << (random() % 4), 1};
    int64_t replicated = 0, experts = 0, moe_layers = 0;
    for (int64_t i = 0; i < mesh.pipeline; ++i) {
      const StageParameters stage = stage_parameters(model, mesh, i);
      replicated += stage.replicated;
      experts += stage.experts * mesh.expert;
    }
    for (const uint8_t moe : shape.is_moe) moe_layers += moe;
    EXPECT_EQ(experts, moe_layers * 8 * 3 * 16 * 8);
    // Stages that are not one keep the tied embedding twice.
    const bool twice = shape.tied_embeddings && mesh.pipeline > 1;
    EXPECT_EQ(replicated + experts, count_parameters(shape).total + (twice ? 100 * 16 : 0));
  }
}

TEST(StageMemory, FindsTheFullestStage) {
  const ModelCost model = piper_cost({32, 4096, 32, 8, 2, 14336});
  const Mesh mesh{8, 8, 1};
  const PipelineBatch batch{4096, 1, 32, SequencesOf::kPaper};
  const FullestStage fullest = fullest_stage(model, mesh, batch, k1f1b).take();
  EXPECT_EQ(fullest.stage, 0);
  EXPECT_EQ(fullest.peak_bytes, int64_t{87375} * kGiB / 1000);
  // Less state on the device: 2 bytes of weights alone.
  MemoryOptions offloaded = k1f1b;
  offloaded.expert_bytes = 2;
  const int64_t experts = 4 * int64_t{3} * 4096 * 14336;
  EXPECT_EQ(fullest_stage(model, mesh, batch, offloaded).take().peak_bytes,
            fullest.peak_bytes - 14 * experts);
}

// Every subset of a stage's layers, of random sizes.
TEST(RecomputedLayers, AreTheFewestThatFit) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    StageMemory memory;
    memory.parameter_bytes = static_cast<int64_t>(random() % 1000);
    memory.in_flight = static_cast<int64_t>(1 + random() % 4);
    memory.input_bytes = static_cast<int64_t>(1 + random() % 20);
    const size_t count = 1 + random() % 8;
    for (size_t l = 0; l < count; ++l) {
      memory.layer_bytes.push_back(memory.input_bytes + static_cast<int64_t>(random() % 100));
      memory.microbatch_bytes += memory.layer_bytes.back();
    }
    const int64_t device_bytes =
        memory.parameter_bytes +
        static_cast<int64_t>(random() % static_cast<uint32_t>(
                                            memory.in_flight * memory.microbatch_bytes + 20));
    size_t fewest = count + 1;
    for (uint32_t subset = 0; subset < (1u << count); ++subset) {
      int64_t kept = 0, again = 0;
      size_t chosen = 0;
      for (size_t l = 0; l < count; ++l) {
        const bool recomputed = ((subset >> l) & 1) != 0;
        kept += recomputed ? memory.input_bytes : memory.layer_bytes[l];
        chosen += recomputed;
        if (recomputed) again = std::max(again, memory.layer_bytes[l] - memory.input_bytes);
      }
      const int64_t bytes = memory.parameter_bytes + memory.in_flight * kept + again;
      if (bytes <= device_bytes) fewest = std::min(fewest, chosen);
    }
    const Result<RecomputedLayers> layers = fewest_recomputed(memory, device_bytes);
    ASSERT_EQ(layers.ok(), fewest <= count) << layers.status().message();
    if (!layers.ok()) {
      EXPECT_EQ(layers.status().code(), Exit::kDoesNotFit);
      continue;
    }
    EXPECT_EQ(layers.value().layers.size(), fewest);
    EXPECT_LE(layers.value().peak_bytes, device_bytes);
    EXPECT_TRUE(std::is_sorted(layers.value().layers.begin(), layers.value().layers.end()));
  }
}

// The skew of equation (5) goes: on 40 GiB Mixtral's first stages compute layers again, its last
// does not.
TEST(RecomputedLayers, EvenOutTheStages) {
  const ModelCost model = piper_cost({32, 4096, 32, 8, 2, 14336});
  const PipelineBatch batch{4096, 1, 32, SequencesOf::kPaper};
  size_t before = 4;
  for (int64_t i = 0; i < 8; ++i) {
    const StageMemory memory = stage_memory(model, {8, 8, 1}, batch, k1f1b, i).take();
    const RecomputedLayers layers = fewest_recomputed(memory, 40 * kGiB).take();
    std::printf("stage %lld: %.2f -> %.2f GiB with %zu of 4 layers computed again\n", (long long)i,
                static_cast<double>(memory.peak_bytes()) / static_cast<double>(kGiB),
                static_cast<double>(layers.peak_bytes) / static_cast<double>(kGiB),
                layers.layers.size());
    EXPECT_LE(layers.layers.size(), before);
    before = layers.layers.size();
    EXPECT_LE(layers.peak_bytes, 40 * kGiB);
  }
  EXPECT_EQ(before, 0u);
  const StageMemory first = stage_memory(model, {8, 8, 1}, batch, k1f1b, 0).take();
  EXPECT_EQ(fewest_recomputed(first, kGiB).status().code(), Exit::kDoesNotFit);
  EXPECT_EQ(fewest_recomputed(first, -1).status().code(), Exit::kUsage);
}

TEST(StageMemory, RefusesNonsense) {
  const ModelCost model = piper_cost({6, 64, 4, 12, 2, 32});
  const auto code = [&](Mesh mesh, PipelineBatch batch, MemoryOptions options, int64_t stage) {
    const Status status = stage_memory(model, mesh, batch, options, stage).status();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    return status.code();
  };
  const Mesh mesh{3, 4, 1};
  const PipelineBatch batch{16, 4, 2, SequencesOf::kGroup};
  EXPECT_EQ(code(mesh, batch, k1f1b, 2), Exit::kOk);
  EXPECT_EQ(code(mesh, batch, k1f1b, 3), Exit::kUsage);
  EXPECT_EQ(code(mesh, batch, k1f1b, -1), Exit::kUsage);
  EXPECT_EQ(code({0, 4, 1}, batch, k1f1b, 0), Exit::kUsage);
  EXPECT_EQ(code({7, 4, 1}, batch, k1f1b, 0), Exit::kUsage);   // more stages than layers
  EXPECT_EQ(code({3, 5, 1}, batch, k1f1b, 0), Exit::kUsage);   // 12 experts
  EXPECT_EQ(code({3, 4, -1}, batch, k1f1b, 0), Exit::kUsage);
  EXPECT_EQ(code(mesh, {0, 4, 2, batch.of}, k1f1b, 0), Exit::kUsage);
  EXPECT_EQ(code(mesh, {16, 6, 2, batch.of}, k1f1b, 0), Exit::kUsage);  // 6 over 4 devices
  EXPECT_EQ(code(mesh, {16, 6, 2, SequencesOf::kRank}, k1f1b, 0), Exit::kOk);
  EXPECT_EQ(code(mesh, {16, 4, 0, batch.of}, k1f1b, 0), Exit::kUsage);
  EXPECT_EQ(code(mesh, {1 << 24, 1 << 24, 1 << 24, batch.of}, kGpipe, 0), Exit::kUsage);
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    MemoryOptions options = k1f1b;
    options.expert_bytes = bad;
    EXPECT_EQ(code(mesh, batch, options, 0), Exit::kUsage);
    options.expert_bytes = 16;
    options.replicated_bytes = bad;
    EXPECT_EQ(code(mesh, batch, options, 0), Exit::kUsage);
  }
}

}  // namespace
}  // namespace pagoda
