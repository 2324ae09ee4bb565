// Meshes, traffic and the time of a step: constraints (7) to (10) against trying every mesh,
// volumes against counting rows one by one, equation (6) in its readings, equation (12), and a step
// put together by hand.
#include "plan/mesh/mesh_forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <tuple>
#include <vector>

#include "plan/mesh/exchange_traffic.h"
#include "plan/mesh/hierarchical_exchange.h"
#include "tests/testing/plan/piper_model.h"

namespace pagoda {
namespace {

// Equation (6): dispatch and combine of one layer take at least the time of what a device sends at
// its rate. The printed 4 b s k d / (EP B) is (EP - 1) times too small if the sequences are a
// rank's, and more than is sent if they are a group's.
double least_seconds(const ExchangeTraffic& traffic, double device_bytes_per_s) {
  return 2 * traffic.sent_bytes / device_bytes_per_s;
}

ClusterProfile cluster_of(int64_t nodes, int64_t per_node, int64_t per_switch) {
  ClusterProfile cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = per_node;
  cluster.nodes_per_switch = per_switch;
  cluster.in_node = {2e-6, 1.0 / 50e9};
  cluster.in_switch = {5e-6, 1.0 / 25e9};
  cluster.between_switches = {8e-6, 1.0 / 10e9};
  return cluster;
}

TEST(Cluster, FindsEveryMeshThatMayBe) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto up_to = [&](uint32_t most) { return static_cast<int64_t>(1 + random() % most); };
    const ClusterProfile cluster = cluster_of(up_to(6), up_to(6), up_to(4));
    const int64_t layers = up_to(12), experts = random() % 5 == 0 ? 0 : up_to(24);
    const int64_t devices = cluster.devices();
    std::vector<std::tuple<int64_t, int64_t, int64_t>> all, found;
    for (int64_t pp = 1; pp <= devices; ++pp) {
      for (int64_t ep = 1; ep <= devices; ++ep) {
        for (int64_t dp = 1; dp <= devices; ++dp) {
          const bool may_be = pp * ep * dp == devices && experts % ep == 0 && pp <= layers &&
                              ep <= cluster.devices_per_node * cluster.nodes_per_switch &&
                              (experts > 0 || ep == 1);
          EXPECT_EQ(check_mesh({pp, ep, dp}, cluster, layers, experts).ok(), may_be);
          if (may_be) all.push_back({pp, ep, dp});
        }
      }
    }
    const std::vector<Mesh> listed = meshes(cluster, layers, experts).take();
    for (const Mesh& m : listed) found.push_back({m.pipeline, m.expert, m.data});
    EXPECT_EQ(found, all);
  }
}

TEST(Cluster, NamesTheConstraintThatDoesNotHold) {
  const ClusterProfile cluster = cluster_of(8, 8, 2);
  const auto message = [&](Mesh mesh, int64_t layers, int64_t experts) {
    const Status status = check_mesh(mesh, cluster, layers, experts);
    EXPECT_EQ(status.code(), Exit::kUsage);
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    return status.message();
  };
  EXPECT_TRUE(check_mesh({4, 16, 1}, cluster, 4, 64).ok());
  EXPECT_NE(message({4, 16, 2}, 4, 64).find("number of devices, 64"), std::string::npos);
  EXPECT_NE(message({4, 16, 1}, 4, 24).find("does not divide"), std::string::npos);
  EXPECT_NE(message({4, 16, 1}, 3, 64).find("without one of the 3 layers"), std::string::npos);
  EXPECT_NE(message({2, 32, 1}, 4, 64).find("under one switch"), std::string::npos);
  EXPECT_NE(message({0, 16, 1}, 4, 64).find("PP"), std::string::npos);
  EXPECT_NE(message({4, 16, 1}, 0, 64).find("layers"), std::string::npos);
  ClusterProfile none = cluster;
  none.nodes = 0;
  EXPECT_FALSE(check_mesh({1, 1, 1}, none, 4, 64).ok());
  EXPECT_FALSE(meshes(none, 4, 64).ok());
  EXPECT_FALSE(meshes(cluster, 0, 64).ok());
  EXPECT_FALSE(meshes(cluster, 4, -1).ok());
}

TEST(Cluster, SplitsLayersAndGroupsEvenly) {
  for (int64_t layers = 1; layers <= 70; ++layers) {
    for (int64_t stages = 1; stages <= layers; ++stages) {
      int64_t next = 0;
      for (int64_t i = 0; i < stages; ++i) {
        const auto [first, last] = stage_layers(layers, stages, i);
        EXPECT_EQ(first, next);
        EXPECT_GE(last - first, layers / stages);
        EXPECT_LE(last - first, (layers + stages - 1) / stages);
        next = last;
      }
      EXPECT_EQ(next, layers);
    }
  }
  const ClusterProfile cluster = cluster_of(8, 8, 4);
  EXPECT_EQ(expert_group(cluster, 4).take().nodes, 1);
  EXPECT_EQ(expert_group(cluster, 4).take().devices_per_node, 4);
  EXPECT_EQ(expert_group(cluster, 16).take().nodes, 2);
  EXPECT_EQ(expert_group(cluster, 16).take().devices_per_node, 8);
  for (const int64_t bad : {0, -1, 3, 12, 24, 65}) {
    EXPECT_EQ(expert_group(cluster, bad).status().code(), Exit::kUsage) << bad;
  }
}

// Every row of every token sent by hand: tokens choose experts in turn.
struct Counted {
  double pair = 0, sent = 0, group = 0;
};
Counted count_rows(int64_t d, int64_t k, int64_t experts, int64_t devices, int64_t tokens) {
  std::vector<std::vector<int64_t>> bytes(static_cast<size_t>(devices),
                                          std::vector<int64_t>(static_cast<size_t>(devices), 0));
  int64_t next = 0;
  for (int64_t from = 0; from < devices; ++from) {
    for (int64_t choice = 0; choice < tokens * k; ++choice) {
      const int64_t to = next++ % experts / (experts / devices);
      if (to != from) bytes[static_cast<size_t>(from)][static_cast<size_t>(to)] += 2 * d;
    }
  }
  Counted counted;
  counted.pair = devices > 1 ? static_cast<double>(bytes[0][1]) : 0;
  for (const auto& row : bytes) {
    int64_t sent = 0;
    for (const int64_t pair : row) sent += pair;
    counted.sent = std::max(counted.sent, static_cast<double>(sent));
    counted.group += static_cast<double>(sent);
  }
  return counted;
}

TEST(ExchangeTraffic, IsWhatCountingRowsGives) {
  for (uint32_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int64_t devices = int64_t{1} << (random() % 5);
    const int64_t experts = devices * static_cast<int64_t>(1 + random() % 3);
    const auto k = static_cast<int64_t>(1 + random() % static_cast<uint32_t>(experts));
    const auto d = static_cast<int64_t>(1 + random() % 64);
    const auto b = static_cast<int64_t>(1 + random() % 3);
    const int64_t s = experts;  // so that all experts get as many rows of each device
    const Mesh mesh{1, devices, 1};
    const Counted counted = count_rows(d, k, experts, devices, b * s);
    const PipelineBatch by_rank{s, b, 1, SequencesOf::kRank};
    const PipelineBatch by_group{s, b * devices, 1, SequencesOf::kGroup};
    for (const PipelineBatch& batch : {by_rank, by_group}) {
      const ExchangeTraffic traffic = exchange_traffic(d, k, batch, mesh).take();
      EXPECT_EQ(traffic.pair_bytes, counted.pair);
      EXPECT_EQ(traffic.sent_bytes, counted.sent);
      EXPECT_EQ(traffic.group_bytes, counted.group);
      // Dispatch and combine, all that a device sends at its rate.
      EXPECT_EQ(least_seconds(traffic, 4.0), 2 * counted.sent / 4.0);
      // Activations of its own tokens.
      EXPECT_EQ(stage_send_bytes(d, batch, mesh).take(), 2.0 * static_cast<double>(b * s * d));
    }
  }
}

// (6) in all readings; EP a power of two and B likewise, so that quotients are exact.
TEST(ExchangeTraffic, IsEquation6InEachReading) {
  const double b = 2, s = 4096, k = 8, d = 2048, B = 1LL << 35;
  for (int64_t ep = 2; ep <= 128; ep *= 2) {
    const Mesh mesh{4, ep, 1};
    const auto bound = [&](int64_t sequences, SequencesOf of) {
      return least_seconds(exchange_traffic(2048, 8, {4096, sequences, 8, of}, mesh).take(), B);
    };
    const double EP = static_cast<double>(ep), volume = 4 * b * s * k * d;
    const double rank = bound(2, SequencesOf::kRank), paper = bound(2, SequencesOf::kPaper);
    EXPECT_EQ(rank, volume * (EP - 1) / (EP * B));
    EXPECT_EQ(paper, volume / (EP * B));
    EXPECT_EQ(rank / paper, EP - 1);  // too small by that
    // The same sequences, now those of the group: the printed bound is above what is sent.
    const double group = bound(2 * ep, SequencesOf::kGroup) / EP;
    EXPECT_EQ(group, volume * (EP - 1) / (EP * EP * B));
    EXPECT_LT(group, paper);
    const ExchangeTraffic printed =
        exchange_traffic(2048, 8, {4096, 2, 8, SequencesOf::kPaper}, mesh).take();
    EXPECT_EQ(printed.group_bytes, 2 * (EP - 1) * b * s * k * d);
    EXPECT_EQ(printed.group_bytes,
              exchange_traffic(2048, 8, {4096, 2, 8, SequencesOf::kRank}, mesh).take().group_bytes);
  }
}

TEST(ExchangeTraffic, RefusesNonsense) {
  const Mesh mesh{1, 4, 1};
  const PipelineBatch batch{16, 4, 1, SequencesOf::kGroup}, odd{16, 3, 1, SequencesOf::kGroup};
  EXPECT_TRUE(exchange_traffic(8, 2, batch, mesh).ok());
  EXPECT_EQ(exchange_traffic(0, 2, batch, mesh).status().code(), Exit::kUsage);
  EXPECT_EQ(exchange_traffic(8, 0, batch, mesh).status().code(), Exit::kUsage);
  EXPECT_EQ(exchange_traffic(8, 2, odd, mesh).status().code(), Exit::kUsage);
  EXPECT_EQ(exchange_traffic(8, 2, batch, {1, 0, 1}).status().code(), Exit::kUsage);
  EXPECT_EQ(stage_send_bytes(0, batch, mesh).status().code(), Exit::kUsage);
}

TEST(MeshForecast, IsEquation12) {
  const MeshTimes times{.compute_s = 6, .communication_s = 3, .bubble_s = 0};
  const MeshForecast estimate = mesh_utilisation(2.4e15, 1e14, 8, times).take();
  EXPECT_DOUBLE_EQ(estimate.hardware_efficiency, 2.4e15 / (1e14 * 8 * 6));
  EXPECT_DOUBLE_EQ(estimate.compute_fraction, 1 - 3.0 / 9);
  EXPECT_DOUBLE_EQ(estimate.mfu, 2.4e15 / (1e14 * 8 * 9));
  // The bubble, which the printed fraction leaves out, counts like sending.
  const MeshTimes bubble{.compute_s = 6, .communication_s = 1, .bubble_s = 2};
  EXPECT_DOUBLE_EQ(mesh_utilisation(2.4e15, 1e14, 8, bubble).take().mfu, estimate.mfu);
  for (const double bad : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_FALSE(mesh_utilisation(bad, 1e14, 8, times).ok());
    EXPECT_FALSE(mesh_utilisation(2.4e15, bad, 8, times).ok());
    EXPECT_FALSE(mesh_utilisation(2.4e15, 1e14, 8, {bad, 3, 0}).ok());
    if (bad == 0) continue;
    EXPECT_FALSE(mesh_utilisation(2.4e15, 1e14, 8, {6, bad, 0}).ok());
    EXPECT_FALSE(mesh_utilisation(2.4e15, 1e14, 8, {6, 3, bad}).ok());
  }
  EXPECT_FALSE(mesh_utilisation(2.4e15, 1e14, 0, times).ok());
}

// A GPU on which operations alone take time: 150 TFLOP/s of products, 120 of attention's scores.
MachineSheet gpu() {
  constexpr double kAtOnce = 1e200;
  MachineSheet sheet;
  sheet.device.kind = Processor::kGpu;
  sheet.device.peak_tflops = 312;
  sheet.device.gemm_tflops = 150;
  sheet.device.attention_tflops = 120;
  sheet.device.memory_gb_s = sheet.device.weight_gb_s = kAtOnce;
  return sheet;
}

// Relative 1e-12: some hundred roundings of 2^-53 in sums of like sign.
void expect_close(double a, double b) { EXPECT_NEAR(a, b, 1e-12 * std::max(a, b)); }

TEST(MeshForecast, OfOneDeviceIsComputingAlone) {
  const ModelCost model = piper_cost({4, 1024, 16, 8, 2, 2048});
  const PipelineBatch batch{512, 2, 3, SequencesOf::kRank};
  const MeshForecast estimate =
      forecast_mesh(model, {1, 1, 1}, batch, cluster_of(1, 1, 1), gpu()).take();
  EXPECT_EQ(estimate.times.communication_s, 0);
  EXPECT_EQ(estimate.times.bubble_s, 0);
  EXPECT_EQ(estimate.compute_fraction, 1);
  EXPECT_EQ(estimate.tokens, 512 * 2 * 3);
  const double tokens = 512 * 6;
  const double attention = 4 * tokens * 2 * 4 * 1024 * 1024;
  const double scores = 4 * 6 * 2.0 * 2048 * (512 * 513 / 2);
  const double experts = 4 * tokens * 2 * 2 * 3 * 1024 * 2048;
  // The backward has two products for each of the forward's, but five for the two of scores.
  expect_close(estimate.times.compute_s,
               3 * (attention + experts) / 150e12 + 3.5 * scores / 120e12);
  expect_close(estimate.model_flops, 3 * (attention + scores + experts));
}

// PP 2 x EP 4 x DP 2 on 4 nodes of 4 devices, 2 under a switch: stages are one node apart, under a
// switch; copies two nodes apart, between switches.
TEST(MeshForecast, OfAMeshIsPutTogetherByHand) {
  const int64_t d = 1024, f = 2048, k = 2, s = 512, b = 2, M = 6;
  const ModelCost model = piper_cost({4, d, 16, 8, k, f});
  const ClusterProfile cluster = cluster_of(4, 4, 2);
  const Mesh mesh{2, 4, 2};
  const PipelineBatch batch{s, b, M, SequencesOf::kRank};
  const MeshForecast estimate = forecast_mesh(model, mesh, batch, cluster, gpu()).take();
  const double tokens = b * s;
  const double products = tokens * 2 * 4 * d * d + tokens * k * 2 * 3 * d * f;
  const double scores = b * 2.0 * 2 * d * (s * (s + 1) / 2);
  const double compute = 2 * (3 * products / 150e12 + 3.5 * scores / 120e12);
  const double message = 2.0 * b * s * k * d / 4;
  const double exchange = 3 * cluster.in_node.seconds(message);
  const double send = cluster.in_switch.seconds(2.0 * b * s * d);
  const double sending = 2 * 4 * exchange + send;  // each stage sends one way
  // 8 devices share gradients of attention, of which copies are the farthest apart; 2 of experts.
  const double replicated = 2.0 * 2 * 4 * d * d, experts = 2.0 * 2 * 2 * 3 * d * f;
  const double gradients = 14 * cluster.between_switches.seconds(replicated / 8) +
                           2 * cluster.between_switches.seconds(experts / 2);
  expect_close(estimate.times.compute_s, M * compute);
  expect_close(estimate.times.communication_s, M * sending + gradients);
  expect_close(estimate.times.bubble_s, compute + sending);
  expect_close(estimate.times.step_s(), (M + 1) * (compute + sending) + gradients);
  EXPECT_EQ(estimate.tokens, 2 * 4 * M * b * s);
  expect_close(estimate.mfu, estimate.model_flops / (312e12 * 16 * estimate.times.step_s()));
  // The same by group: as many sequences in all, divided among the 4.
  const MeshForecast by_group =
      forecast_mesh(model, mesh, {s, 4 * b, M, SequencesOf::kGroup}, cluster, gpu()).take();
  expect_close(by_group.times.step_s(), estimate.times.step_s());
  EXPECT_EQ(by_group.tokens, estimate.tokens);
  // Equation (6) is a bound of what all-to-alls take.
  const ExchangeTraffic traffic = exchange_traffic(d, k, batch, mesh).take();
  EXPECT_LE(least_seconds(traffic, 1 / cluster.in_node.unit_s), 2 * exchange);
}

// Layers that are computed again take attention's forward once more and gate and up of experts, and
// send their rows once more; the stages that have them are then slower, and a step is what the
// schedule makes of that.
TEST(MeshForecast, OfLayersComputedAgainIsLonger) {
  const ModelCost model = piper_cost({4, 1024, 16, 8, 2, 2048});
  const PipelineBatch batch{512, 2, 3, SequencesOf::kRank};
  const ClusterProfile one = cluster_of(1, 1, 1), four = cluster_of(1, 4, 1);
  const double whole = forecast_mesh(model, {1, 1, 1}, batch, one, gpu())->times.step_s();
  const double tokens = 2 * 512;
  const double again_s = tokens * 2 * (4 * 1024 * 1024 + 2 * 2 * 1024 * 2048) / 150e12 +
                         2 * 2.0 * 2048 * (512 * 513 / 2) / 120e12;
  MeshChoices choices;
  choices.recomputed = {1, 0, 0, 1};
  expect_close(forecast_mesh(model, {1, 1, 1}, batch, one, gpu(), choices)->times.step_s(),
               whole + 3 * 2 * again_s);
  for (const auto schedule : {PipelineSchedule::kGpipe, PipelineSchedule::kOneForwardOneBackward}) {
    choices.schedule = schedule;
    choices.recomputed = {1, 0, 0, 0};
    const Mesh mesh{2, 2, 1};
    const std::vector<StageWork> works =
        stage_works(model, mesh, batch, four, gpu(), choices).take();
    choices.recomputed.clear();
    const std::vector<StageWork> without =
        stage_works(model, mesh, batch, four, gpu(), choices).take();
    // Two choices of each token are rows; half are the other device's.
    const double sent_s = four.in_node.seconds(tokens * 2 * 2 * 1024 / 2);
    expect_close(works[0].seconds().backward_s, without[0].seconds().backward_s + again_s + sent_s);
    EXPECT_EQ(works[0].seconds().forward_s, without[0].seconds().forward_s);
    EXPECT_EQ(works[1].seconds().backward_s, without[1].seconds().backward_s);
    choices.recomputed = {1, 0, 0, 0};
    const MeshForecast step = forecast_mesh(model, mesh, batch, four, gpu(), choices).take();
    std::vector<StageSeconds> seconds = {works[0].seconds(), works[1].seconds()};
    const PipelineRun run = run_pipeline(schedule, seconds, 3).take();
    expect_close(step.times.step_s(), std::max(run.end_s(0) + works[0].gradients_s,
                                               run.end_s(1) + works[1].gradients_s));
  }
  choices.recomputed = {1, 0, 0};
  EXPECT_EQ(forecast_mesh(model, {1, 1, 1}, batch, one, gpu(), choices).status().code(),
            Exit::kUsage);
}

// Experts shared by HEXA-MoE's two ways on four devices: each computes its own rows with the
// weights of all, or a quarter of every expert for the rows of all.
TEST(MeshForecast, OfSharedExpertsIsPutTogetherByHand) {
  const double d = 1024, f = 2048, tokens = 2 * 512;
  const ModelCost model = piper_cost({1, 1024, 16, 8, 2, 2048});
  const PipelineBatch batch{512, 2, 1, SequencesOf::kRank};
  ClusterProfile cluster = cluster_of(1, 4, 1);
  cluster.in_node = {0, 1.0 / 1e9};  // slow, so that weights do not hide
  const auto work = [&](ExpertSharing sharing, bool again) {
    MeshChoices choices;
    choices.sharing = sharing;
    choices.recomputed = {again};
    return stage_works(model, {1, 4, 1}, batch, cluster, gpu(), choices)->front();
  };
  const double attention_s =
      tokens * 2 * 4 * d * d / 150e12 + 2 * 2 * 2 * d * (512 * 513 / 2) / 120e12;
  const double experts_s = tokens * 2 * 2 * 3 * d * f / 150e12;
  for (const auto sharing :
       {ExpertSharing::kRows, ExpertSharing::kDataCentric, ExpertSharing::kModelCentric}) {
    expect_close(work(sharing, false).forward_compute_s, attention_s + experts_s);
    EXPECT_GT(work(sharing, true).backward_compute_s, work(sharing, false).backward_compute_s);
  }
  // Weights of all experts come twice and gradients go once, three quarters of the bytes, behind
  // attention.
  const StageWork data = work(ExpertSharing::kDataCentric, false);
  const double attention_back_s =
      tokens * 4 * 4 * d * d / 150e12 + 2 * 5 * 2 * d * (512 * 513 / 2) / 120e12;
  expect_close(data.forward_communication_s + data.backward_communication_s,
               3 * (2 * 8 * 3 * d * f) * 0.75 / 1e9 - attention_s - attention_back_s);
  // A token's row goes to all once in each pass, and comes back twice as a sum; again: once more.
  const double gather_s = 4 * tokens * 2 * d * 0.75 / 1e9;
  expect_close(work(ExpertSharing::kModelCentric, false).forward_communication_s, 3 * gather_s);
  expect_close(work(ExpertSharing::kModelCentric, false).backward_communication_s, 3 * gather_s);
  expect_close(work(ExpertSharing::kModelCentric, true).backward_communication_s, 4 * gather_s);
}

// More than a node for the experts of a layer is what Piper is there to avoid.
TEST(MeshForecast, PrefersExpertsWithinANode) {
  const ModelCost model = piper_cost({32, 2048, 16, 64, 8, 1024});
  const ClusterProfile cluster = cluster_of(8, 8, 8);
  const auto step = [&](Mesh mesh, int64_t microbatches) {
    const PipelineBatch batch{4096, 64 / microbatches, microbatches, SequencesOf::kRank};
    return forecast_mesh(model, mesh, batch, cluster, gpu()).take();
  };
  const MeshForecast inside = step({8, 8, 1}, 64), across = step({1, 64, 1}, 64);
  std::printf("PP 8 x EP 8: %.3f s, MFU %.1f %%; EP 64: %.3f s, MFU %.1f %%\n",
              inside.times.step_s(), 100 * inside.mfu, across.times.step_s(), 100 * across.mfu);
  EXPECT_EQ(inside.tokens * 8, across.tokens);
  EXPECT_GT(inside.mfu, across.mfu);
}

TEST(MeshForecast, RefusesNonsense) {
  const ModelCost model = piper_cost({4, 1024, 16, 8, 2, 2048});
  const ClusterProfile cluster = cluster_of(2, 4, 2);
  const PipelineBatch batch{512, 2, 3, SequencesOf::kRank};
  const auto code = [&](Mesh mesh, PipelineBatch of, ClusterProfile on) {
    const Status status = forecast_mesh(model, mesh, of, on, gpu()).status();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    return status.code();
  };
  const Mesh mesh{2, 4, 1};
  EXPECT_EQ(code(mesh, batch, cluster), Exit::kOk);
  EXPECT_EQ(code({2, 3, 1}, batch, cluster), Exit::kUsage);
  EXPECT_EQ(code({8, 1, 1}, batch, cluster), Exit::kUsage);
  PipelineBatch printed = batch;
  printed.of = SequencesOf::kPaper;
  EXPECT_EQ(code(mesh, printed, cluster), Exit::kUsage);
  ClusterProfile broken = cluster;
  broken.in_switch.unit_s = 0;
  EXPECT_EQ(code(mesh, batch, broken), Exit::kUsage);
}

}  // namespace
}  // namespace pagoda
