// Searches of clusters: on three given ones the strategy found is the best of all that are tried
// one by one here, with memory and time put together from the parts of the planner; and what is
// refused.
#include "plan/search/cluster_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "base/bytes.h"
#include "cli/sheet_file.h"
#include "plan/search/cluster_changes.h"
#include "plan/search/mesh_search.h"
#include "plan/search/node_pair.h"
#include "plan/search/node_pair_search.h"
#include "plan/search/shared_step.h"
#include "plan/search/zebra_search.h"
#include "plan/zebra/asym_ea.h"
#include "preview/model_sizes.h"

namespace pagoda {
namespace {

std::string configs(const std::string& name) {
  return std::string(PAGODA_GOLDEN_DIR) + "/../../configs/" + name;
}

ModelShape published(const std::string& name) {
  return read_model_sizes(configs("models/" + name + ".json"))->shape;
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

// When each stage has done its part: round after round each does its next piece, if what that waits
// for has ended.
std::vector<double> stage_ends(PipelineSchedule schedule, const std::vector<StageWork>& works,
                               int64_t microbatches) {
  const size_t stages = works.size(), m = static_cast<size_t>(microbatches);
  std::vector<std::vector<PipelineWork>> orders;
  for (size_t s = 0; s < stages; ++s) {
    orders.push_back(stage_order(schedule, static_cast<int64_t>(stages), static_cast<int64_t>(s),
                                 microbatches).take());
  }
  std::vector<std::vector<double>> forward(stages, std::vector<double>(m, -1)), backward = forward;
  std::vector<size_t> next(stages, 0);
  std::vector<double> free_s(stages, 0);
  for (size_t done = 0; done < 2 * stages * m;) {
    for (size_t s = 0; s < stages; ++s) {
      if (next[s] == 2 * m) continue;
      const PipelineWork& work = orders[s][next[s]];
      const auto j = static_cast<size_t>(work.microbatch);
      const bool is_forward = work.phase == Phase::kForward;
      double ready = 0;
      if (is_forward && s > 0) ready = forward[s - 1][j];
      if (!is_forward) ready = s + 1 < stages ? backward[s + 1][j] : forward[s][j];
      if (ready < 0) continue;
      const StageSeconds seconds = works[s].seconds();
      free_s[s] = std::max(free_s[s], ready) +
                  (is_forward ? seconds.forward_s : seconds.backward_s);
      (is_forward ? forward : backward)[s][j] = free_s[s];
      ++next[s];
      ++done;
    }
  }
  return free_s;
}

// What one device of a stage needs, and which of its layers are computed again: one more at a time,
// those with most to save first. Nothing where it does not fit.
std::optional<std::vector<uint8_t>> computed_again(const StageMemory& memory, int64_t room) {
  std::vector<uint8_t> again(memory.layer_bytes.size(), 0);
  const auto saved = [&](size_t l) { return memory.layer_bytes[l] - memory.input_bytes; };
  for (size_t count = 0; room >= 0; ++count) {
    int64_t bytes = memory.parameter_bytes + memory.in_flight * memory.microbatch_bytes, once = 0;
    for (size_t l = 0; l < again.size(); ++l) {
      if (again[l] == 0) continue;
      bytes -= memory.in_flight * saved(l);
      once = std::max(once, saved(l));
    }
    if (bytes + once <= room) return again;
    size_t best = again.size();
    for (size_t l = 0; l < again.size(); ++l) {
      if (again[l] == 0 && saved(l) > 0 && (best == again.size() || saved(l) > saved(best))) {
        best = l;
      }
    }
    if (best == again.size()) return std::nullopt;
    again[best] = 1;
  }
  return std::nullopt;
}

// Seconds of one way put together from the planner's parts, and infinity for what does not fit.
double seconds_of(const ModelShape& model, const ModelCost& cost, const ClusterSheet& sheet,
                  const Strategy& strategy) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const ClusterProfile profile = cluster_profile(sheet);
  const MachineSheet& node = sheet.nodes[0];
  MemoryOptions options;
  options.schedule = strategy.schedule;
  options.replicated_bytes = options.expert_bytes =
      4 + (strategy.state.on_host ? 0 : strategy.state.state_bytes);
  // Two layers' weights and one's gradients pass through, in bf16.
  const int64_t expert = layer_parameters(model, model.num_layers() - 1).expert;
  const bool cached = strategy.sharing == ExpertSharing::kDataCentric;
  const int64_t room = node.auto_device_bytes() - (cached ? 3 * 2 * model.num_experts * expert : 0);
  MeshChoices choices{strategy.sharing, strategy.schedule, {}};
  int64_t most = 0, records = 0;
  for (int64_t stage = 0; stage < strategy.mesh.pipeline; ++stage) {
    const StageMemory memory =
        stage_memory(cost, strategy.mesh, strategy.batch, options, stage).take();
    const auto again = computed_again(memory, room);
    if (!again) return kNever;
    choices.recomputed.insert(choices.recomputed.end(), again->begin(), again->end());
    const int64_t parameters = memory.parameters.replicated + memory.parameters.experts;
    if (parameters <= most) continue;
    most = parameters;
    records = (stage == 0) + (stage + 1 == strategy.mesh.pipeline);
    const auto [first, last] = stage_layers(model.num_layers(), strategy.mesh.pipeline, stage);
    for (int64_t l = first; l < last; ++l) {
      records +=
          1 + (model.is_moe[static_cast<size_t>(l)] ? model.num_experts : 0) / strategy.mesh.expert;
    }
  }
  const auto works = stage_works(cost, strategy.mesh, strategy.batch, profile, node, choices);
  if (!works.ok()) return kNever;
  const std::vector<double> ends =
      stage_ends(strategy.schedule, works.value(), strategy.batch.microbatches);
  double step_s = 0;
  for (size_t s = 0; s < ends.size(); ++s) {
    step_s = std::max(step_s, ends[s] + works.value()[s].gradients_s);
  }
  // Gradients: fp32 sums read, bf16 written. Updates: gradient and weight read, weight written, and
  // the state both. Each record has a launch.
  const double state_bytes = strategy.state.state_bytes;
  const double launches_s = 1e-6 * node.device.launch_us * static_cast<double>(records);
  const auto device_s = [&](double bytes) {
    return static_cast<double>(most) * bytes / (node.device.memory_gb_s * 1e9) + launches_s;
  };
  step_s += device_s(4 + 2);
  if (!strategy.state.on_host) return step_s + device_s(6 + 2 * state_bytes);
  const double of_node = static_cast<double>(most) * static_cast<double>(node.device.count);
  if (of_node * state_bytes > static_cast<double>(node.auto_host_bytes())) return kNever;
  return step_s + of_node * (6 + 2 * state_bytes) / (node.host.adam_gb_s * 1e9) +
         4 * static_cast<double>(most) / (node.host.copy_gb_s * 1e9);
}

// Every PP, EP and DP below the number of devices, every number of microbatches, schedule, sharing
// and state, whether it divides or not; what does not is refused by the parts.
double best_of_all_meshes(const ModelShape& model, const ClusterSheet& sheet,
                          const ClusterDemand& demand, int64_t& fitting) {
  const ModelCost cost = model_cost(model).take();
  const ClusterProfile profile = cluster_profile(sheet);
  double best = std::numeric_limits<double>::infinity();
  const auto try_all = [&](const Mesh& mesh, int64_t m) {
    Strategy strategy;
    strategy.mesh = mesh;
    strategy.batch = {demand.sequence_len, demand.sequences / (mesh.expert * mesh.data * m), m,
                      SequencesOf::kRank};
    const bool apart = mesh.expert == 1 || mesh.expert > profile.devices_per_node;
    for (const StateChoice& state : state_choices()) {
      for (int s = 0; s < (apart ? 1 : 3); ++s) {
        strategy.state = state;
        strategy.sharing = static_cast<ExpertSharing>(s);
        strategy.schedule = PipelineSchedule::kOneForwardOneBackward;
        const double step_s = seconds_of(model, cost, sheet, strategy);
        strategy.schedule = PipelineSchedule::kGpipe;
        const double gpipe_s = seconds_of(model, cost, sheet, strategy);
        fitting += std::isfinite(step_s) ? 1 : 0;
        fitting += gpipe_s < (1 - 1e-9) * step_s ? 1 : 0;
        best = std::min({best, step_s, gpipe_s});
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
        if (!expert_group(profile, ep).ok()) continue;
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
    ClusterDemand demand;
  };
  const Case cases[] = {{"qwen3-30b-a3b", cluster("4x8-gpu-80gb"), {4096, 256}},
                        {"mixtral-8x7b", cluster("4x8-gpu-80gb"), {4096, 128}},
                        {"olmoe-1b-7b", one_machine("gpu-4x48gb"), {2048, 64}},
                        {"deepseek-v2-lite", one_machine("gpu-8x80gb"), {4096, 64}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.model);
    const ModelShape model = published(c.model);
    auto strategies = search_cluster(model, c.sheet, c.demand);
    ASSERT_TRUE(strategies.ok()) << strategies.status().message();
    int64_t fitting = 0;
    const double best = best_of_all_meshes(model, c.sheet, c.demand, fitting);
    EXPECT_EQ(static_cast<int64_t>(strategies->size()), fitting);
    EXPECT_NEAR(strategies->front().step_s, best, 1e-9 * best) << strategies->front().text();
    EXPECT_TRUE(std::is_sorted(strategies->begin(), strategies->end(),
                               [](const auto& a, const auto& b) { return a.step_s < b.step_s; }));
    for (const Strategy& strategy : *strategies) {
      EXPECT_LE(strategy.device_bytes, c.sheet.nodes[0].auto_device_bytes()) << strategy.text();
      EXPECT_GT(strategy.mfu, 0);
      EXPECT_LT(strategy.mfu, 1);
    }
    std::printf("%-17s best of %lld: %.3f s, %s\n", c.model, (long long)fitting, best,
                strategies->front().text().c_str());
  }
}

// Small models and clusters of all kinds, some of them too small.
TEST(ClusterSearch, FindsTheBestOfRandomMeshes) {
  int found = 0, none = 0, pipelines = 0;
  for (uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto power = [&](uint32_t most) { return int64_t{1} << (random() % most); };
    ModelShape model = published("olmoe-1b-7b");
    model.vocab_size = 512;
    model.hidden_size = 64;
    model.attention.heads = model.attention.kv_heads = 4;
    model.attention.head_dim = model.attention.value_head_dim = 16;
    model.attention.query_norm = model.attention.key_norm = 64;
    model.num_experts = power(5);
    model.experts_per_token = std::min<int64_t>(2, model.num_experts);
    model.expert_ffn = 128;
    model.is_moe.assign(1 + random() % 8, 1);
    ClusterSheet sheet = one_machine("gpu-4x48gb");
    MachineSheet node = sheet.nodes[0];
    node.device.count = power(3);
    node.device.memory = MemorySize::of_bytes(1 + static_cast<int64_t>(random() % (8 << 20)));
    node.host.memory = MemorySize::of_bytes(1 + static_cast<int64_t>(random() % (32 << 20)));
    sheet.nodes.assign(static_cast<size_t>(power(3)), node);
    sheet.cluster.nodes_per_switch = power(3);
    sheet.network = {12, 5, 3, 9};
    const ClusterDemand demand{64, power(6)};
    int64_t fitting = 0;
    const double best = best_of_all_meshes(model, sheet, demand, fitting);
    auto strategies = search_cluster(model, sheet, demand);
    ASSERT_EQ(strategies.ok(), fitting > 0) << strategies.status().message();
    if (fitting == 0) {
      ++none;
      EXPECT_EQ(strategies.status().message().find('\n'), std::string::npos);
      continue;
    }
    ++found;
    EXPECT_EQ(static_cast<int64_t>(strategies->size()), fitting);
    EXPECT_NEAR(strategies->front().step_s, best, 1e-9 * best) << strategies->front().text();
    pipelines += strategies->front().mesh.pipeline > 1;
  }
  std::printf("%d clusters with a strategy, of which %d are best with stages, %d without\n", found,
              pipelines, none);
  EXPECT_GT(found, 10);
  EXPECT_GT(none, 3);
}

// Qwen3-30B-A3B on nodes far apart, as Piper advises: experts stay inside a node, stages and copies
// go across.
TEST(ClusterSearch, KeepsExpertsInsideANode) {
  ClusterSheet sheet = cluster("4x8-gpu-80gb");
  sheet.network = {2, 9, 0, 0};
  const auto strategies = search_cluster(published("qwen3-30b-a3b"), sheet, {4096, 256}).take();
  EXPECT_LE(strategies.front().mesh.expert, sheet.nodes[0].device.count);
  double inside_s = 0, across_s = 0;  // the best of each
  for (const Strategy& strategy : strategies) {
    double& best_s = strategy.mesh.expert <= sheet.nodes[0].device.count ? inside_s : across_s;
    if (best_s == 0) best_s = strategy.step_s;
  }
  std::printf("experts inside a node: %.3f s, across nodes: %.3f s\n", inside_s, across_s);
  EXPECT_GT(inside_s, 0);
  EXPECT_GT(across_s, inside_s);
}

// The best of all strategies to spread the work of two kinds of devices where there is room for
// everything, simulated one by one, each zebra layout with all that Asym-EA finds for it.
double best_of_node_pair(const ModelShape& model, const ClusterSheet& sheet,
                         const ClusterDemand& demand) {
  const NodePair kinds = node_pair(sheet).take();
  double best = std::numeric_limits<double>::infinity();
  for (const int32_t copies : {1, 2}) {
    const HeterogeneousStep step = copied_step(model, sheet, kinds, demand, copies).step;
    best = std::min(best, best_expert_parallel(step, 8)->step_s);
    best = std::min(best, best_disaggregated(step, 8)->step_s);
  }
  for (const auto sharing : {ExpertSharing::kDataCentric, ExpertSharing::kModelCentric}) {
    best = std::min(best, shared_step(model, sheet, kinds, demand, sharing)->step_s());
  }
  const HeterogeneousStep step = heterogeneous_step(model, sheet, kinds, demand);
  for (int32_t m = 1; m <= 32; m *= 2) {
    if (demand.sequences % (2 * m) != 0) continue;
    if (const auto p = pipeline_step(step, m); p.ok()) best = std::min(best, p.value().step_s);
  }
  for (const ZebraLayout& layout : zebra_layouts(model, kinds, demand)) {
    const ZebraPipeline pipeline = zebra_pipeline(model, sheet, kinds, demand, layout).take();
    const std::vector<AsymBounds> bounds(pipeline.stages.size());
    const std::vector<int32_t> start = gather_and_squeeze(pipeline, bounds).take();
    best = std::min(best, plan_asym_ea(pipeline, bounds, 1 << 20, start)->step_s);
  }
  return best;
}

TEST(ClusterSearch, FindsTheBestOfANodePair) {
  ModelShape model = published("olmoe-1b-7b");
  const ClusterSheet sheet = cluster("a40-v100");
  model.is_moe.resize(4);
  const ClusterDemand demand{2048, 16};
  auto strategies = search_cluster(model, sheet, demand);
  ASSERT_TRUE(strategies.ok()) << strategies.status().message();
  const NodePair kinds = node_pair(sheet).take();
  EXPECT_EQ(kinds.faster->machine.name, "2 A40");
  EXPECT_EQ(kinds.faster_devices, 2);
  EXPECT_EQ(kinds.slower_devices, 2);
  // With room for everything.
  ClusterSheet roomy = sheet;
  for (MachineSheet& node : roomy.nodes) {
    node.device.memory = MemorySize::of_bytes(int64_t{4} << 40);
    node.device.memory_gb_s = 1e9;  // updates take next to nothing
    node.device.launch_us = 0;
  }
  for (const double gb_s : {sheet.network.gb_s, 60.0}) {
    roomy.network.gb_s = gb_s;
    const double best = best_of_node_pair(model, roomy, demand);
    auto unbounded = search_cluster(model, roomy, demand);
    ASSERT_TRUE(unbounded.ok());
    // The search begins at other places than Algorithm 1, too, and may find better.
    EXPECT_LE(unbounded->front().step_s, best * (1 + 1e-6)) << unbounded->front().text();
    EXPECT_GE(unbounded->front().step_s, best * 0.95) << unbounded->front().text();
    std::printf("two kinds, links of %g GB/s: best %.3f s, %s\n", gb_s, best,
                unbounded->front().text().c_str());
  }
  std::printf("with memory as it is %.3f s, %s\n", strategies->front().step_s,
              strategies->front().text().c_str());
}

// What two kinds of nodes take for a layer and the tokens of a step, counted by hand: everything is
// computed again in the backward.
TEST(ClusterSearch, CountsTheWorkOfTwoKindsByHand) {
  ModelShape model = published("olmoe-1b-7b");
  const ClusterSheet sheet = cluster("a40-v100");
  const ClusterDemand demand{2048, 48};
  const HeterogeneousStep work = heterogeneous_step(model, sheet, node_pair(sheet).take(), demand);
  const double d = 2048, f = 1024, experts = 64, k = 8, s = 2048, tokens = 48 * s, vocab = 50304;
  const double projections = 4 * d * d + 2 * d;  // with norms of queries and keys
  const double router = experts * d, matrix = d * f;
  const double score_product = 2 * d * (s + 1) / 2;
  struct Kind {
    const DeviceKind& of;
    double gemm, scores, memory;
  };
  for (const Kind& kind :
       {Kind{work.faster, 112e12, 75e12, 620e9}, Kind{work.slower, 75e12, 25e12, 800e9}}) {
    const auto seconds = [&](double flops, double scores, double bytes) {
      return tokens *
             (flops / kind.gemm + scores / (kind.scores * s / (s + 256)) + bytes / kind.memory);
    };
    const auto near = [](double a, double b) { EXPECT_NEAR(a, b, 1e-9 * b); };
    // Attention, router, residual, choices, and what puts rows in order and sums them. Each expert
    // has 12,288 rows, three groups and four copies each way. With a row each they are four groups,
    // and 4 + 4 / 4,096 copies; only what is beyond that is for tokens.
    const double attention_bytes = 2 * (4 * d + 3 * 2 * d);
    const double least_copies = 4 + 4.0 / 4096;
    const double copies_s = 2 * (4 * 64 - least_copies) * 5e-6;
    near(kind.of.attention.forward_s,
         seconds(2 * (projections + router), 2 * score_product,
                 attention_bytes + 12 * d + 8 * d + k * 16 + k * (4 * d + 10 * d)) +
             copies_s);
    near(kind.of.attention.backward_s,
         seconds(6 * (projections + router), 7 * score_product,
                 3 * attention_bytes + 36 * d + k * 16 + k * (8 * d + 10 * d)) +
             copies_s);
    near(kind.of.attention_once.forward_s,
         2 * (projections + router) / kind.memory + (4 + 2 * least_copies) * 5e-6);
    // Rows of experts beyond a group of 4,096 of each read the weights once more.
    const double groups = tokens * k / 4096;
    const double read_s = 2 * 3 * matrix / kind.memory;
    near(kind.of.experts.forward_s, seconds(k * 2 * 3 * matrix, 0, k * 2 * (2 * d + 3 * f)) +
                                        (groups - 64) * read_s + (groups - 4) * 5e-6);
    near(kind.of.experts_once.forward_s, 64 * read_s + 4 * 5e-6);
    const double back_read_s = (2 * 6 + 8 * 3) * matrix / kind.memory;
    near(kind.of.experts.backward_s, seconds(k * 2 * 8 * matrix, 0, k * 2 * (4 * d + 5 * f)) +
                                         (groups - 64) * back_read_s + (groups - 4) * 5e-6);
    near(kind.of.head_s, seconds(6 * vocab * d, 0, 12 * vocab + 4 * d + 8 * d));
  }
  // A row for each of a token's eight experts.
  EXPECT_EQ(work.exchange_bytes, tokens * 8 * 2 * d);
  EXPECT_EQ(work.boundary_bytes, tokens * 2 * d);
  EXPECT_EQ(work.link_bytes_per_s, 6e9);
}

// Shares by speed: with links that take no time a data-centric step is what the slowest device
// computes of its own sequences, with the head; a model-centric one attention by sequences and
// experts by columns, each of the slowest. With slow links the one that moves less is faster.
TEST(ClusterSearch, SharesExpertsBySpeed) {
  ModelShape model = published("olmoe-1b-7b");
  ClusterSheet sheet = cluster("a40-v100");
  model.is_moe.resize(4);
  sheet.network = {1e9, 0, 0, 0};
  for (MachineSheet& node : sheet.nodes) {
    node.device.weight_gb_s = 1e9;  // what comes once a microbatch takes next to nothing
    node.device.launch_us = 0;
  }
  const NodePair kinds = node_pair(sheet).take();
  const ClusterDemand demand{2048, 48};
  const HeterogeneousStep work = heterogeneous_step(model, sheet, kinds, demand);
  const auto slower_of = [](const PassSeconds& a, const PassSeconds& b) {
    return PassSeconds{std::max(a.forward_s, b.forward_s), std::max(a.backward_s, b.backward_s)};
  };
  double data_s = 0, attention_s = 0, experts_s = 0, head_s = 0;
  PassSeconds attention, experts;  // the slowest in each direction
  const auto data = shared_step(model, sheet, kinds, demand, ExpertSharing::kDataCentric).take();
  const auto columns =
      shared_step(model, sheet, kinds, demand, ExpertSharing::kModelCentric).take();
  EXPECT_GT(data.faster.sequences, data.slower.sequences);
  EXPECT_GT(columns.faster.hidden, columns.slower.hidden);
  for (const bool faster : {true, false}) {
    const DeviceKind& kind = faster ? work.faster : work.slower;
    const double own = static_cast<double>((faster ? data.faster : data.slower).sequences) / 48;
    data_s = std::max(data_s, own * (4 * (kind.attention + kind.experts).both_s() + kind.head_s));
    const KindShare& share = faster ? columns.faster : columns.slower;
    const double batch = static_cast<double>(share.sequences) / 48;
    const PassSeconds own_attention = kind.attention * (4 * batch);
    const PassSeconds own_experts = kind.experts * 4 * static_cast<double>(share.hidden) /
                                    static_cast<double>(model.expert_ffn);
    attention_s = std::max(attention_s, own_attention.both_s());
    experts_s = std::max(experts_s, own_experts.both_s());
    attention = slower_of(attention, own_attention);
    experts = slower_of(experts, own_experts);
    head_s = std::max(head_s, batch * kind.head_s);
  }
  EXPECT_NEAR(data.step_s(), data_s, 1e-6 * data_s);
  // Kinds wait for each other at every exchange: at least the slowest of each, at most their sum
  // over both directions.
  EXPECT_GE(columns.step_s(), (1 - 1e-6) * (attention_s + experts_s));
  EXPECT_LE(columns.step_s(), (1 + 1e-6) * ((attention + experts).both_s() + head_s));
  // Links that take nearly all of the step: many tokens make rows dearer than weights.
  sheet.network.gb_s = 0.1;
  const auto step_s = [&](const ClusterDemand& d, ExpertSharing sharing) {
    return shared_step(model, sheet, kinds, d, sharing)->step_s();
  };
  EXPECT_LT(step_s({2048, 480}, ExpertSharing::kDataCentric),
            step_s({2048, 480}, ExpertSharing::kModelCentric));
  EXPECT_GT(step_s({128, 48}, ExpertSharing::kDataCentric),
            step_s({128, 48}, ExpertSharing::kModelCentric));
}

// What is drawn of a strategy is what it was ranked by: pieces of a lane one after the other, the
// same end, and as many bytes at most.
void expect_drawn(const ModelShape& model, const ClusterSheet& sheet, const ClusterDemand& demand,
                  const Strategy& strategy) {
  SCOPED_TRACE(strategy.text());
  const auto timeline = strategy_timeline(model, sheet, demand, strategy);
  ASSERT_TRUE(timeline.ok()) << timeline.status().message();
  EXPECT_NEAR(timeline.value().end_s, strategy.step_s, 1e-12 * strategy.step_s);
  double end_s = 0;
  ASSERT_FALSE(timeline.value().lanes.empty());
  for (const StrategyLane& lane : timeline.value().lanes) {
    double before_s = 0;
    EXPECT_FALSE(lane.pieces.empty()) << lane.name;
    for (const StrategyPiece& piece : lane.pieces) {
      EXPECT_GE(piece.start_s, before_s) << lane.name;
      EXPECT_GE(piece.end_s, piece.start_s) << lane.name;
      before_s = piece.end_s;
    }
    end_s = std::max(end_s, before_s);
  }
  EXPECT_NEAR(end_s, strategy.step_s, 1e-9 * strategy.step_s);
  int64_t most = 0;
  for (const StrategyMemory& memory : timeline.value().memory) {
    double before_s = 0;
    for (const auto& [at_s, bytes] : memory.held) {
      EXPECT_GE(at_s, before_s) << memory.name;
      EXPECT_LE(bytes, memory.budget_bytes) << memory.name;
      before_s = at_s;
      most = std::max(most, bytes);
    }
  }
  // A byte for rounding. Zebra reserves all inputs of a step, which need not all be there at once.
  EXPECT_LE(most, strategy.device_bytes + 1);
  if (strategy.kind != StrategyKind::kZebra) {
    EXPECT_EQ(most, strategy.device_bytes);
  }
}

TEST(ClusterSearch, DrawsWhatItRanked) {
  const ModelShape qwen = published("qwen3-30b-a3b");
  const ClusterSheet nodes = cluster("4x8-gpu-80gb");
  const ClusterDemand demand{4096, 128};
  const auto strategies = search_cluster(qwen, nodes, demand).take();
  for (size_t i = 0; i < strategies.size(); i += 1 + strategies.size() / 40) {
    expect_drawn(qwen, nodes, demand, strategies[i]);
  }
  ModelShape olmoe = published("olmoe-1b-7b");
  olmoe.is_moe.resize(8);
  const ClusterSheet unequal = cluster("a40-v100");
  const ClusterDemand small{2048, 16};
  bool seen[6] = {};
  const std::vector<Strategy> of_two = search_cluster(olmoe, unequal, small).take();
  for (const Strategy& strategy : of_two) {
    seen[static_cast<size_t>(strategy.kind)] = true;
    expect_drawn(olmoe, unequal, small, strategy);
  }
  EXPECT_TRUE(seen[static_cast<size_t>(StrategyKind::kZebra)]);
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
  const ClusterDemand demand{4096, 64};
  EXPECT_EQ(search_cluster(model, sheet, demand).status().code(), Exit::kDoesNotFit);
  const auto fitting = cluster_fits_with(model, sheet, demand);
  ASSERT_FALSE(fitting.empty());
  for (const ClusterChange& change : fitting)
    std::printf("%s: %s\n", change.text.c_str(), change.strategy.c_str());
  // With one node fewer than the first number that is said, it does not fit.
  for (const ClusterChange& change : fitting) {
    const size_t at = change.text.find(" such nodes");
    if (at == std::string::npos) continue;
    const auto nodes = static_cast<size_t>(std::stoll(change.text));
    sheet.nodes.resize(nodes, sheet.nodes[0]);
    EXPECT_TRUE(search_cluster(model, sheet, demand).ok());
    if (nodes > 2) continue;  // doublings from there on
    sheet.nodes.resize(nodes - 1);
    EXPECT_FALSE(search_cluster(model, sheet, demand).ok());
  }
}

// Each suggestion is the gain of a search with that change, and none is a loss.
TEST(ClusterSearch, SaysWhatWouldHelp) {
  const ModelShape model = published("qwen3-30b-a3b");
  const ClusterSheet sheet = cluster("4x8-gpu-80gb");
  const ClusterDemand demand{4096, 128};
  const Strategy best = search_cluster(model, sheet, demand)->front();
  const auto helps = cluster_helps(model, sheet, demand, best);
  ASSERT_FALSE(helps.empty());
  double before = std::numeric_limits<double>::infinity();
  for (const ClusterChange& change : helps) {
    EXPECT_GE(change.gain, 0.02) << change.text;
    EXPECT_LE(change.gain, before) << change.text;
    before = change.gain;
  }
  ClusterSheet quick = sheet;
  quick.network.gb_s *= 2;
  const double step_s = search_cluster(model, quick, demand)->front().step_s;
  for (const ClusterChange& change : helps) {
    if (change.text != "twice the rate of the network") continue;
    EXPECT_NEAR(change.gain, best.step_s / step_s - 1, 1e-12);
  }
}

}  // namespace
}  // namespace pagoda
