// Searches of clusters: on three given ones the way found is the best of all that are tried one by
// one here, with memory and time put together from the parts of the planner; and what is refused.
#include "plan/cluster_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "cli/sheet_file.h"
#include "plan/asym_ea.h"
#include "plan/two_kinds_search.h"
#include "train/planned_model.h"

namespace pagoda {
namespace {

std::string configs(const std::string& name) {
  return std::string(PAGODA_GOLDEN_DIR) + "/../../configs/" + name;
}

ModelShape published(const std::string& name) {
  return read_planned_model(configs("models/" + name + ".json"))->shape;
}

ClusterSheet cluster(const std::string& name) {
  return read_cluster_sheet(configs("clusters/" + name + ".toml")).take();
}

ClusterSheet one_machine(const std::string& name) {
  ClusterSheet sheet;
  sheet.nodes.push_back(read_machine_sheet(configs("machines/" + name + ".toml")).take());
  sheet.network.gb_s = sheet.nodes[0].link.gb_s;
  return sheet;
}

// Seconds of one way put together from the planner's parts, and infinity for what does not fit.
double seconds_of(const ModelShape& model, const ModelCost& cost, const ClusterSheet& sheet,
                  const Mesh& mesh, const PipelineBatch& batch, const StateChoice& state,
                  ExpertSharing sharing) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const ClusterProfile profile = cluster_profile(sheet);
  const MachineSheet& node = sheet.nodes[0];
  const auto estimate = estimate_step(cost, mesh, batch, profile, device_rates(node), sharing);
  if (!estimate.ok()) return kNever;
  MemoryOptions options;
  options.replicated_bytes = options.expert_bytes = 4 + (state.on_host ? 0 : state.state_bytes);
  // Two layers' weights and one's gradients pass through, in bf16.
  const int64_t expert = layer_parameters(model, model.num_layers() - 1).expert;
  const bool cached = sharing == ExpertSharing::kDataCentric;
  const int64_t room = profile.device_bytes - (cached ? 3 * 2 * model.num_experts * expert : 0);
  double again = 0;
  int64_t most = 0;
  for (int64_t stage = 0; stage < mesh.pipeline; ++stage) {
    const StageMemory memory = stage_memory(cost, mesh, batch, options, stage).take();
    // Layers computed again one more at a time, those with most to save first.
    std::vector<int64_t> saved;
    for (const int64_t bytes : memory.layer_bytes) saved.push_back(bytes - memory.input_bytes);
    std::sort(saved.rbegin(), saved.rend());
    int64_t peak = memory.peak_bytes();
    size_t count = 0;
    while (peak > room && count < saved.size() && saved[count] > 0) {
      if (count == 0) peak += saved[0];
      peak -= memory.in_flight * saved[count++];
    }
    if (peak > room || room < 0) return kNever;
    again = std::max(again, static_cast<double>(count) / static_cast<double>(saved.size()));
    most = std::max(most, memory.parameters.replicated + memory.parameters.experts);
  }
  const StepTimes& times = estimate.value().times;
  const double bubbles =
      static_cast<double>(mesh.pipeline - 1) / static_cast<double>(batch.microbatches);
  const double step_s = times.step_s() + again / 3 * times.compute_s * (1 + bubbles);
  if (!state.on_host) return step_s;
  const double of_node = static_cast<double>(most) * static_cast<double>(node.device.count);
  if (of_node * state.state_bytes > static_cast<double>(node.auto_host_bytes())) return kNever;
  return step_s + of_node * (6 + 2 * state.state_bytes) / (node.host.adam_gb_s * 1e9) +
         4 * static_cast<double>(most) / (node.host.copy_gb_s * 1e9);
}

// Every PP, EP and DP below the number of devices, every number of microbatches, sharing and state,
// whether it divides or not; what does not is refused by the parts.
double best_of_all_meshes(const ModelShape& model, const ClusterSheet& sheet,
                          const StepDemand& demand, int64_t& fitting) {
  const ModelCost cost = model_cost(model).take();
  const ClusterProfile profile = cluster_profile(sheet);
  double best = std::numeric_limits<double>::infinity();
  const auto try_all = [&](const Mesh& mesh, int64_t m) {
    const int64_t ranks = mesh.expert * mesh.data;
    const PipelineBatch batch{demand.sequence_len, demand.sequences / (ranks * m), m,
                              SequencesOf::kRank};
    for (const StateChoice& state : state_choices()) {
      for (int s = 0; s < 3; ++s) {
        const bool apart = mesh.expert == 1 || mesh.expert > profile.devices_per_node;
        if (s > 0 && apart) continue;
        const double step_s = seconds_of(model, cost, sheet, mesh, batch, state,
                                         static_cast<ExpertSharing>(s));
        fitting += std::isfinite(step_s) ? 1 : 0;
        best = std::min(best, step_s);
      }
    }
  };
  const int64_t devices = profile.devices();
  for (int64_t pp = 1; pp <= devices; ++pp) {
    for (int64_t ep = 1; ep <= devices; ++ep) {
      for (int64_t dp = 1; dp <= devices; ++dp) {
        const Mesh mesh{pp, ep, dp};
        if (pp * ep * dp != devices) continue;
        if (!check_mesh(mesh, profile, model.num_layers(), model.num_experts).ok()) continue;
        for (int64_t m = 1; m <= demand.sequences; ++m) {
          if (demand.sequences % (ep * dp * m) == 0) try_all(mesh, m);
        }
      }
    }
  }
  return best;
}

TEST(ClusterSearch, FindsTheBestMesh) {
  struct Case {
    const char* model;
    ClusterSheet sheet;
    StepDemand demand;
  };
  const Case cases[] = {{"qwen3-30b-a3b", cluster("4x8-gpu-80gb"), {4096, 256}},
                        {"mixtral-8x7b", cluster("4x8-gpu-80gb"), {4096, 128}},
                        {"olmoe-1b-7b", one_machine("gpu-4x48gb"), {2048, 64}},
                        {"deepseek-v2-lite", one_machine("gpu-8x80gb"), {4096, 64}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.model);
    const ModelShape model = published(c.model);
    auto ways = search_cluster(model, c.sheet, c.demand);
    ASSERT_TRUE(ways.ok()) << ways.status().message();
    int64_t fitting = 0;
    const double best = best_of_all_meshes(model, c.sheet, c.demand, fitting);
    EXPECT_EQ(static_cast<int64_t>(ways->size()), fitting);
    EXPECT_NEAR(ways->front().step_s, best, 1e-9 * best) << ways->front().text();
    EXPECT_TRUE(std::is_sorted(ways->begin(), ways->end(), [](const auto& a, const auto& b) {
      return a.step_s < b.step_s;
    }));
    for (const SearchedWay& way : *ways) {
      EXPECT_LE(way.device_bytes, c.sheet.nodes[0].auto_device_bytes()) << way.text();
      EXPECT_GT(way.mfu, 0);
      EXPECT_LT(way.mfu, 1);
    }
    std::printf("%-17s best of %lld: %.3f s, %s\n", c.model, (long long)fitting, best,
                ways->front().text().c_str());
  }
}

// Every way to spread this cluster's work, simulated one by one.
TEST(ClusterSearch, FindsTheBestOfTwoKinds) {
  ModelShape model = published("olmoe-1b-7b");
  const ClusterSheet sheet = cluster("a40-v100");
  model.is_moe.resize(8);
  const StepDemand demand{2048, 16};
  auto ways = search_cluster(model, sheet, demand);
  ASSERT_TRUE(ways.ok()) << ways.status().message();
  const TwoKinds kinds = two_kinds(sheet).take();
  EXPECT_EQ(kinds.newer->machine.name, "2 A40");
  EXPECT_EQ(kinds.newer_devices, 2);
  EXPECT_EQ(kinds.older_devices, 2);
  const UnequalStep step = unequal_step(model, sheet, kinds, demand);
  double best = std::numeric_limits<double>::infinity();
  for (int32_t m = 1; m <= kMostZebraMicrobatches; m *= 2) {
    if (demand.sequences % m != 0) continue;
    if (const auto p = pipeline_step(step, m); p.ok()) best = std::min(best, p.value().step_s);
    if (demand.sequences % (2 * m) != 0) continue;
    const ZebraGroup group = zebra_group(step, m, 64).take();
    best = std::min(best, best_zebra(group)->times.makespan_s);
    // Whatever memory allows: without bounds Asym-EA is at least as good.
    best = std::min(best, plan_asym_ea(group, {})->step_s);
  }
  best = std::min(best, best_expert_parallel(step, 8)->step_s);
  best = std::min(best, best_disaggregated(step, 8)->step_s);
  for (const SearchedWay& way : *ways) {
    EXPECT_LE(way.device_bytes, kinds.newer->auto_device_bytes()) << way.text();
  }
  // With room for everything it is that.
  ClusterSheet roomy = sheet;
  for (MachineSheet& node : roomy.nodes) {
    node.device.memory = MemorySize::of_bytes(int64_t{4} << 40);
  }
  auto unbounded = search_cluster(model, roomy, demand);
  ASSERT_TRUE(unbounded.ok());
  EXPECT_NEAR(unbounded->front().step_s, best, 1e-9 * best) << unbounded->front().text();
  std::printf("two kinds: best %.3f s, %s; with memory as it is %.3f s, %s\n", best,
              unbounded->front().text().c_str(), ways->front().step_s,
              ways->front().text().c_str());
}

TEST(ClusterSearch, RefusesNonsense) {
  const ModelShape model = published("olmoe-1b-7b");
  const ClusterSheet sheet = cluster("4x8-gpu-80gb");
  EXPECT_EQ(search_cluster(model, sheet, {4096, 0}).status().code(), Exit::kUsage);
  EXPECT_EQ(search_cluster(model, sheet, {0, 32}).status().code(), Exit::kUsage);
  ClusterSheet bad = sheet;
  bad.network.gb_s = 0;
  EXPECT_EQ(search_cluster(model, bad, {4096, 32}).status().code(), Exit::kUsage);
  ClusterSheet three = cluster("a40-v100");
  three.nodes.push_back(sheet.nodes[0]);
  EXPECT_EQ(search_cluster(model, three, {4096, 32}).status().code(), Exit::kUsage);
  ClusterSheet none = sheet;
  none.nodes.clear();
  EXPECT_EQ(search_cluster(model, none, {4096, 32}).status().code(), Exit::kUsage);
  // One sequence has one device at most, and there are 32: only pipelines of all, which OLMoE's 16
  // layers are too few for.
  EXPECT_EQ(search_cluster(model, sheet, {4096, 1}).status().code(), Exit::kUsage);
}

TEST(ClusterSearch, SaysWhatWouldBeEnough) {
  const ModelShape model = published("deepseek-v3");
  ClusterSheet sheet = cluster("4x8-gpu-80gb");
  sheet.nodes.resize(1);
  const StepDemand demand{4096, 64};
  EXPECT_EQ(search_cluster(model, sheet, demand).status().code(), Exit::kDoesNotFit);
  const std::string text = enough_nodes(model, sheet, demand);
  EXPECT_NE(text.find("fits on"), std::string::npos) << text;
}

}  // namespace
}  // namespace pagoda
