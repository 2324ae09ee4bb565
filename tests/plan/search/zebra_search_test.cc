// Zebra groups in the search of clusters of two kinds: on small ones the best strategy is that of
// all layouts (stages x copies x chunks x microbatches, inputs kept or sent again), states, lags
// and assignments of experts, each simulated here, with memory counted here; the bound by which the
// search leaves layouts out is below every time; gradients are summed between copies.
#include "plan/search/zebra_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "plan/search/cluster_search.h"

namespace pagoda {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

ModelShape small_model(int64_t layers, int64_t experts) {
  ModelShape model;
  model.vocab_size = 512;
  model.hidden_size = 256;
  model.attention.heads = model.attention.kv_heads = 4;
  model.attention.head_dim = model.attention.value_head_dim = 64;
  model.num_experts = experts;
  model.experts_per_token = std::min<int64_t>(2, experts);
  model.expert_ffn = 256;
  model.is_moe.assign(static_cast<size_t>(layers), 1);
  return model;
}

struct Node {
  int64_t devices;
  double gemm_tflops, attention_tflops;
  int64_t memory;
};

MachineSheet sheet_of(const char* name, const Node& node) {
  MachineSheet sheet;
  sheet.machine.name = name;
  sheet.device.kind = Processor::kGpu;
  sheet.device.count = node.devices;
  sheet.device.memory = MemorySize::of_bytes(node.memory);
  sheet.device.peak_tflops = 2 * node.gemm_tflops;
  sheet.device.gemm_tflops = node.gemm_tflops;
  sheet.device.weight_gb_s = sheet.device.memory_gb_s = 1e9;  // operations are what takes time
  sheet.device.attention_tflops = node.attention_tflops;
  sheet.host.cores = 8;
  sheet.host.memory = MemorySize::of_bytes(int64_t{1} << 40);
  sheet.host.copy_gb_s = sheet.host.adam_gb_s = 1e9;  // updates take next to nothing
  sheet.host.checksum_gb_s = 10;
  sheet.disk.read_gb_s = sheet.disk.write_gb_s = 1;
  sheet.link.gb_s = 10;
  return sheet;
}

ClusterSheet cluster_of(const Node& faster, const Node& slower, double gb_s) {
  ClusterSheet cluster;
  cluster.nodes = {sheet_of("faster", faster), sheet_of("slower", slower)};
  cluster.network.gb_s = gb_s;
  cluster.network.latency_us = 1;
  return cluster;
}

// A stage's layers, as many as of any other, the first ones more. What is divided among stages here
// divides evenly, or the search's own rule counts; so both are compared.
int64_t layers_of(int64_t layers, int32_t stages, int32_t stage) {
  return layers / stages + (stage < layers % stages ? 1 : 0);
}

// Whether both kinds of devices of every stage have room, from the model's sizes alone.
bool fits(const ModelShape& model, const ClusterSheet& cluster, const ClusterDemand& demand,
          const ZebraLayout& l, int32_t m, int32_t n, const StateChoice& state,
          const std::vector<int32_t>& offloaded) {
  const LayerParameters p = layer_parameters(model, 0);
  const double of_parameter = 4 + (state.on_host ? 0 : state.state_bytes);
  const auto d = static_cast<double>(model.hidden_size);
  const auto f = static_cast<double>(model.expert_ffn);
  const double table = static_cast<double>(model.vocab_size) * d;
  const double tokens = static_cast<double>(demand.sequence_len * demand.sequences) / l.copies /
                        l.chunks;
  const double rows = tokens * static_cast<double>(model.experts_per_token);
  const double row_bytes = 2 * (3 * f + d);  // Table III of Piper
  const double token_bytes =
      2 * (2 * d + 4 * static_cast<double>(model.attention.heads * model.attention.head_dim)) +
      4 * static_cast<double>(model.num_experts) +
      2 * static_cast<double>(model.attention.heads);
  size_t layer = 0;
  for (int32_t s = 0; s < l.stages; ++s) {
    const auto layers = static_cast<double>(layers_of(model.num_layers(), l.stages, s));
    double given = 0;
    for (int32_t i = 0; i < static_cast<int32_t>(layers); ++i) given += offloaded[layer++];
    double dense = layers * static_cast<double>(p.replicated());
    if (s == 0) dense += table;
    if (s + 1 == l.stages) dense += table + d;
    const double in_flight = std::min(l.stages - s, l.chunks);
    // Four bytes of a sum for each weight of the experts of a layer, or of all in stages.
    const double of_expert = of_parameter + (l.stages > 1 ? 4 : 4 / layers);
    const double inputs = 2 * d * tokens * layers / m * (l.send_again ? 2 : 1);
    const double attention =
        dense * of_parameter + given * n / m * static_cast<double>(p.expert) * of_expert +
        (token_bytes * tokens + row_bytes * rows) / l.microbatches / m + in_flight * inputs;
    const double held = layers * static_cast<double>(model.num_experts) / n - given;
    const double kept = 2 * d * rows / n * (l.send_again ? 1 : in_flight * layers);
    const double expert = held * static_cast<double>(p.expert) * of_expert +
                          row_bytes * rows / l.microbatches / n + kept;
    if (attention > static_cast<double>(cluster.nodes[0].auto_device_bytes())) return false;
    if (expert > static_cast<double>(cluster.nodes[1].auto_device_bytes())) return false;
  }
  return true;
}

struct Exhaustive {
  double best_s = kNever;
  ZebraLayout layout;
  int64_t fitting = 0;
};

// All numbers of experts that can leave each layer.
std::vector<std::vector<int32_t>> assignments(int64_t layers, int32_t m, int32_t n, int32_t most) {
  const int32_t step = n * std::max(1, m / n) % m == 0 ? std::max(1, m / n) : most + 1;
  std::vector<std::vector<int32_t>> all = {{}};
  for (int64_t l = 0; l < layers; ++l) {
    std::vector<std::vector<int32_t>> longer;
    for (const std::vector<int32_t>& start : all) {
      for (int32_t o = 0; o <= most; o += step) {
        longer.push_back(start);
        longer.back().push_back(o);
      }
    }
    all = std::move(longer);
  }
  return all;
}

class BruteForce {
 public:
  BruteForce(const ModelShape& model, const ClusterSheet& cluster, const ClusterDemand& demand)
      : model_(model), cluster_(cluster), demand_(demand), kinds_(node_pair(cluster).take()) {}

  Exhaustive run() {
    for (int32_t stages = 1; stages <= kinds_.faster_devices; ++stages) {
      for (int32_t copies = 1; copies <= kinds_.faster_devices; ++copies) {
        for (int32_t chunks = 1; chunks <= 32; chunks *= 2) {
          for (int32_t m = 1; chunks * m <= 32; m *= 2) {
            try_layout({stages, copies, chunks, m, false});
            try_layout({stages, copies, chunks, m, true});
          }
        }
      }
    }
    return found_;
  }

 private:
  void try_layout(const ZebraLayout& l) {
    auto pipeline = zebra_pipeline(model_, cluster_, kinds_, demand_, l);
    if (!pipeline.ok()) return;  // something does not divide
    const int32_t m = kinds_.faster_devices / l.groups(), n = kinds_.slower_devices / l.groups();
    const auto most = static_cast<int32_t>(model_.num_experts) / n;
    for (const auto& offloaded : assignments(model_.num_layers(), m, n, most)) {
      const bool any = std::any_of(
          state_choices().begin(), state_choices().end(), [&](const StateChoice& state) {
            return fits(model_, cluster_, demand_, l, m, n, state, offloaded);
          });
      if (!any) continue;
      ++found_.fitting;
      pipeline->set_offloaded(offloaded);
      const double step_s = best_zebra_pipeline(pipeline.value())->times.makespan_s;
      const std::vector<AsymBounds> free(static_cast<size_t>(l.stages));
      EXPECT_LE(zebra_least_s(pipeline.value(), free), step_s * (1 + 1e-9));
      if (step_s < found_.best_s) {
        found_.best_s = step_s;
        found_.layout = l;
      }
    }
  }

  const ModelShape& model_;
  const ClusterSheet& cluster_;
  const ClusterDemand& demand_;
  const NodePair kinds_;
  Exhaustive found_;
};

std::string text_of(const ZebraLayout& l) {
  return strf("PP %d x DP %d, %d x %d microbatches%s", l.stages, l.copies, l.chunks,
              l.microbatches, l.send_again ? ", sent again" : "");
}

double best_zebra_s(const std::vector<Strategy>& strategies) {
  for (const Strategy& strategy : strategies) {
    if (strategy.kind == StrategyKind::kZebra) return strategy.step_s;
  }
  return kNever;
}

// Three clusters for each of which another layout is best: room for everything, little memory, and
// links that copies can hardly afford to sum gradients over.
TEST(ZebraSearch, FindsTheBestLayout) {
  struct Case {
    const char* name;
    Node faster, slower;
    double gb_s;
    ModelShape model;
    ClusterDemand demand;
  };
  const int64_t much = int64_t{1} << 36;
  const Case cases[] = {
      {"fast links", {2, 20, 10, much}, {2, 12, 0.4, much}, 40, small_model(3, 4), {256, 8}},
      {"slow links", {2, 20, 10, much}, {2, 12, 0.4, much}, 2, small_model(3, 4), {256, 8}},
      {"little memory", {2, 20, 10, 24 << 20}, {4, 9, 0.2, 20 << 20}, 20, small_model(2, 4),
       {256, 16}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const ClusterSheet cluster = cluster_of(c.faster, c.slower, c.gb_s);
    const Exhaustive all = BruteForce(c.model, cluster, c.demand).run();
    const auto strategies = search_cluster(c.model, cluster, c.demand);
    ASSERT_TRUE(strategies.ok()) << strategies.status().message();
    const Strategy& best = strategies.value().front();
    std::printf("%-13s best of %lld assignments in all layouts: %.6f s, %s; the search: %.6f s, "
                "%s\n",
                c.name, (long long)all.fitting, all.best_s, text_of(all.layout).c_str(),
                best.step_s, best.text().c_str());
    EXPECT_GT(all.fitting, 0);
    EXPECT_NEAR(best_zebra_s(strategies.value()), all.best_s, all.best_s * 1e-6);
    EXPECT_EQ(best.kind, StrategyKind::kZebra);
  }
}

// Clusters, models and memories of all kinds. What the search leaves to Asym-EA's neighbourhoods is
// all that it may miss.
TEST(ZebraSearch, IsAsGoodAsAllOnRandomClusters) {
  int found = 0, none = 0, exact = 0, several = 0;
  double worst = 1;
  for (uint32_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto power = [&](uint32_t most) { return int64_t{1} << (random() % most); };
    const auto between = [&](double least, double most) {
      return least + (most - least) * static_cast<double>(random() % 1000) / 1000;
    };
    const int64_t faster = power(2), slower = power(3);
    const ModelShape model = small_model(1 + static_cast<int64_t>(random() % 3), 4);
    const auto memory = [&] { return static_cast<int64_t>(between(2, 40) * (1 << 20)); };
    const ClusterSheet cluster =
        cluster_of({faster, 20, between(2, 10), memory()},
                   {slower, between(5, 18), between(0.2, 1), memory()}, between(2, 60));
    const ClusterDemand demand{256, faster * power(4)};
    const Exhaustive all = BruteForce(model, cluster, demand).run();
    const auto strategies = search_cluster(model, cluster, demand);
    if (!strategies.ok()) {
      ++none;
      EXPECT_EQ(all.fitting, 0) << strategies.status().message();
      continue;
    }
    const Strategy& best = strategies.value().front();
    for (const Strategy& strategy : strategies.value()) {
      if (strategy.kind != StrategyKind::kZebra) continue;
      EXPECT_TRUE(fits(model, cluster, demand, layout_of(strategy), strategy.attention_devices,
                       static_cast<int32_t>(strategy.mesh.expert), strategy.state,
                       strategy.offloaded))
          << strategy.text();
      EXPECT_GE(strategy.step_s, all.best_s * (1 - 1e-6)) << strategy.text();
    }
    if (all.best_s > best.step_s * (1 + 1e-6)) continue;  // another strategy is best
    ++found;
    several += best.mesh.pipeline * best.mesh.data > 1;
    worst = std::max(worst, best.step_s / all.best_s);
    exact += best.step_s <= all.best_s * (1 + 1e-6);
  }
  std::printf(
      "zebra is best on %d clusters, on %d with several groups; the search is exact on %d, "
      "worst %.4f; %d clusters without a strategy\n",
      found, several, exact, worst, none);
  EXPECT_GT(found, 5);
  EXPECT_GT(several, 1);
  EXPECT_GT(none, 0);
  EXPECT_LE(worst, 1.05);
}

// Copies sum their gradients, one group or one stage with one device does not: with links that are
// slow for sums only copies lose by the sums, and by no more.
TEST(ZebraSearch, CountsSumsBetweenCopies) {
  const int64_t much = int64_t{1} << 36;
  const ModelShape model = small_model(3, 4);
  const ClusterSheet cluster = cluster_of({2, 20, 10, much}, {2, 12, 0.4, much}, 5);
  const NodePair kinds = node_pair(cluster).take();
  const ClusterDemand demand{256, 8};
  ZebraPipeline copies = zebra_pipeline(model, cluster, kinds, demand, {1, 2, 1, 2}).take();
  const ZebraPipeline stages = zebra_pipeline(model, cluster, kinds, demand, {2, 1, 1, 2}).take();
  const LayerParameters p = layer_parameters(model, 0);
  // A ring of two sends half of its bytes each way, twice.
  const double attention_s = 1e-6 + 2.0 * static_cast<double>(p.replicated()) / 5e9;
  const double experts_s = 1e-6 + 2.0 * 4 * static_cast<double>(p.expert) / 5e9;
  EXPECT_NEAR(copies.stages[0].times.attention_reduce_s, attention_s, 1e-12);
  EXPECT_NEAR(copies.stages[0].times.expert_reduce_s, experts_s, 1e-12);
  for (const ZebraGroup& stage : stages.stages) {
    EXPECT_EQ(stage.times.attention_reduce_s, 0);
    EXPECT_EQ(stage.times.expert_reduce_s, 0);
  }
  const double with_s = best_zebra_pipeline(copies)->times.makespan_s;
  for (ZebraGroup& stage : copies.stages) {
    stage.times.attention_reduce_s = stage.times.expert_reduce_s = 0;
  }
  const double without_s = best_zebra_pipeline(copies)->times.makespan_s;
  EXPECT_GT(with_s, without_s);
  EXPECT_LE(with_s, without_s + 3 * std::max(attention_s, experts_s) + 1e-12);
}

TEST(ZebraSearch, RefusesWhatDoesNotDivide) {
  const int64_t much = int64_t{1} << 36;
  const ClusterSheet cluster = cluster_of({2, 20, 10, much}, {4, 12, 0.4, much}, 5);
  const NodePair kinds = node_pair(cluster).take();
  const ModelShape model = small_model(3, 4);
  const auto code = [&](const ModelShape& m, const ClusterDemand& demand, const ZebraLayout& l) {
    const auto pipeline = zebra_pipeline(m, cluster, kinds, demand, l);
    if (pipeline.ok()) return Exit::kOk;
    EXPECT_EQ(pipeline.status().message().find('\n'), std::string::npos);
    return pipeline.status().code();
  };
  EXPECT_EQ(code(model, {256, 8}, {1, 1, 1, 1}), Exit::kOk);
  EXPECT_EQ(code(model, {256, 8}, {0, 1, 1, 1}), Exit::kUsage);
  EXPECT_EQ(code(model, {256, 8}, {1, 1, 1, 0}), Exit::kUsage);
  EXPECT_EQ(code(model, {256, 8}, {4, 1, 1, 1}), Exit::kUsage);   // groups: faster devices
  EXPECT_EQ(code(model, {256, 7}, {1, 1, 1, 1}), Exit::kUsage);   // sequences
  EXPECT_EQ(code(model, {256, 8}, {1, 1, 2, 4}), Exit::kUsage);   // sequences of a microbatch
  EXPECT_EQ(code(small_model(1, 4), {256, 8}, {2, 1, 1, 1}), Exit::kUsage);  // layers
  EXPECT_EQ(code(small_model(3, 3), {256, 8}, {1, 1, 1, 1}), Exit::kUsage);  // experts
}

}  // namespace
}  // namespace pagoda
