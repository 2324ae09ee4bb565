#include <algorithm>
#include <cstdio>
#include <utility>

#include "plan/exchange/expert_migration.h"
#include "preview/run_forecast.h"
#include "tests/testing/plan/hierarchical_exchange.h"
#include "tools/bench/figures/piper_figures.h"

namespace pagoda {
namespace {

constexpr double kGB = 1e9, kGiB = 1024.0 * 1024 * 1024;

// Figure 8: nodes as Frontier's, 8 devices that share four cards of 25 GB/s.
ClusterProfile nodes_with_cards(int64_t nodes, bool latencies) {
  const double on = latencies ? 1 : 0;
  ClusterProfile cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = 8;
  cluster.nodes_per_switch = 16;
  cluster.in_node = {on * 2e-6, 1 / (50 * kGB), 0};
  cluster.in_switch = {on * 10e-6, 1 / (12.5 * kGB), 0};
  cluster.between_switches = {on * 30e-6, 1 / (12.5 * kGB), 0};
  return cluster;
}

double exchange_s(int64_t nodes, bool latencies, ExchangeKind kind, double row_bytes) {
  return exchange_cost(nodes_with_cards(nodes, latencies), kind, row_bytes).take().total_s;
}

// How many times as long as HALO a flat exchange takes, if messages follow each other.
double in_turn(int64_t nodes, double row_bytes) {
  return exchange_s(nodes, true, ExchangeKind::kFlat, row_bytes) /
         exchange_s(nodes, true, ExchangeKind::kHierarchical, row_bytes);
}

// The same if all latencies of a phase pass at once: flat has one, HALO that and one in the node.
double at_once(int64_t nodes, double row_bytes) {
  const double between_s = nodes > 16 ? 30e-6 : 10e-6;
  return (between_s + exchange_s(nodes, false, ExchangeKind::kFlat, row_bytes)) /
         (between_s + 2e-6 + exchange_s(nodes, false, ExchangeKind::kHierarchical, row_bytes));
}

void print_exchanges() {
  std::printf(
      "\nPiper, Figure 8: time of a flat all-to-all over HALO's, 8 devices a node. The paper "
      "(MI250X, RCCL): comparable below 16 nodes, 1.1 to 9 x from 16 nodes on\n  assumes: 12.5 "
      "GB/s for each device between nodes and 50 GB/s within; 2 us within a node, 10 us under a "
      "switch of 16 nodes, 30 us beyond; rows for all alike.\n  RCCL's own costs are not in "
      "it\n  bytes a pair    nodes 2       4       8      16      32      64     128   messages of "
      "a device\n");
  for (const double row_bytes : {1024.0, 16384.0, 262144.0, 4194304.0}) {
    for (const auto& [ratio, how] :
         {std::pair(&in_turn, "one after the other"), std::pair(&at_once, "all at once")}) {
      std::printf("  %12.0f ", row_bytes);
      for (const int64_t nodes : {2, 4, 8, 16, 32, 64, 128}) {
        std::printf(" %7.2f", ratio(nodes, row_bytes));
      }
      std::printf("   %s\n", how);
    }
  }
  std::printf(
      "  Why 2 nodes are not comparable here: one after the other, flat has 8 latencies of 10 us "
      "to "
      "the other node, HALO one and 7 of 2 us,\n  80 / 24 us; all at once, one of 10 us against 10 "
      "and 2. The paper's \"comparable\" lies between the two; how many messages RCCL has\n  on "
      "their way at a time is not known here. Its 1.1 to 9 x from 16 nodes on are in the range of "
      "the first but for 4 MiB: bytes alone\n  favour flat, since HALO moves 7 of 8 rows once more "
      "in the node, at four times the rate: 1 / (1 + 7 / 8 / 4) = 0.82. That RCCL\n  does not fill "
      "all four cards is what the paper says.\n");
}

// A layer of a model on a device, of one row of 4096.
struct LayerBytes {
  double weights = 0, states = 0, gradients = 0, waiting = 0, in_layer = 0;
};

LayerBytes layer_bytes(const ModelSizes& model, const MachineSheet& sheet) {
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = config.train.tokens_per_step = 4096;
  config.train.save_steps = 0;
  const PlannedRun run = planned_run(model, config, sheet).take();
  LayerBytes bytes;
  for (const PageTable::Class& c : PageTable(run.shape).classes) {
    const auto all = static_cast<double>(c.total_bytes());
    if (c.kind == PageKind::kWeights) bytes.weights += all;
    if (c.kind == PageKind::kState) bytes.states += all;
    if (c.kind == PageKind::kGradient) bytes.gradients += all;
    if (c.kind == PageKind::kActivation) bytes.waiting += all;
    if (c.kind == PageKind::kLayerBuffer) bytes.in_layer += all;
  }
  return bytes;
}

// Table III beside the pages of a run of one layer.
void print_layer_memory() {
  std::printf(
      "\nPiper, Table III: GiB of one layer, one row of 4096: 64 d^2 + 48 E d f for the model, 12 "
      "b s d + 2 b s k (3 f + d) for activations with flash attention,\n  beside a run's pages. "
      "Limited by: the experts' states everywhere\n  assumes: in the paper multi-head attention; a "
      "run has the model's own, embedding and head of 8 words, and a layer's input alone waits for "
      "the backward, which computes the rest again\n  model               paper: model  "
      "activations   run: weights  gradients  states  waiting  in-layer\n");
  MachineSheet sheet = nodes_of_eight(1).nodes.front();
  sheet.device.count = 1;
  for (const char* name : {"mixtral-8x7b", "deepseek-v2", "deepseek-v3", "qwen3-30b-a3b"}) {
    const ModelSizes model = one_layer(name);
    const auto d = static_cast<double>(model.shape.hidden_size);
    const auto f = static_cast<double>(model.shape.expert_ffn);
    const auto k = static_cast<double>(model.shape.experts_per_token);
    const double experts = 48 * static_cast<double>(model.shape.num_experts) * d * f;
    const double rows = 4096;
    const LayerBytes run = layer_bytes(model, sheet);
    std::printf("  %-18s %13.2f %12.2f %14.2f %10.2f %7.2f %8.3f %9.2f\n", name,
                (64 * d * d + experts) / kGiB, (12 * rows * d + 2 * rows * k * (3 * f + d)) / kGiB,
                run.weights / kGiB, run.gradients / kGiB, run.states / kGiB, run.waiting / kGiB,
                run.in_layer / kGiB);
  }
}

// Table IV: every expert of a layer moves. In a run an expert that changes its home brings its
// weights and states, no gradient.
void print_migrations() {
  struct Row {
    const char* name;
    int64_t experts, hidden, ffn;
    double paper_gb, paper_ms;
  };
  constexpr Row kRows[] = {{"Switch-Base", 128, 768, 2048, 1.21, 24.2},
                           {"Mixtral 8x7B", 8, 4096, 14336, 2.63, 52.6},
                           {"Mixtral 8x22B", 8, 6144, 16384, 4.50, 90.0},
                           {"Grok-1", 8, 6144, 32768, 9.00, 180.0},
                           {"GLaM (1.2T)", 64, 8192, 32768, 102.88, 2057.6},
                           {"DeepSeek-V2", 160, 5120, 1536, 7.04, 140.8},
                           {"DeepSeek-V3", 256, 7168, 2048, 21.00, 420.0}};
  std::printf(
      "\nPiper, Table IV: all experts of a layer move over 8 devices at 50 GB/s. The paper's bytes "
      "are 16 a parameter; those of a run 12, as gradients stay.\n  Limited by: the link. Assumes: "
      "every device sends and receives at once, three matrices an expert; the paper's GB are 2^30 "
      "bytes in most rows\n  model            paper GB      ms   formula GB      ms   run GB      "
      "ms\n");
  for (const Row& row : kRows) {
    const int64_t parameters = 3 * row.hidden * row.ffn;
    ExpertDevices before, after;  // every expert goes to the next device
    for (int64_t e = 0; e < row.experts; ++e) {
      before.push_back(static_cast<int32_t>(e % 8));
      after.push_back(static_cast<int32_t>((e + 1) % 8));
    }
    const auto of = [&](int64_t bytes_each) {
      return migration_cost(before, after, 8, bytes_each * parameters, 50 * kGB).take();
    };
    const MigrationCost paper = of(16), run = of(12);
    std::printf("  %-15s %9.2f %7.1f %12.2f %7.1f %8.2f %7.1f\n", row.name, row.paper_gb,
                row.paper_ms, static_cast<double>(paper.device_bytes) / kGB, 1e3 * paper.seconds,
                static_cast<double>(run.device_bytes) / kGB, 1e3 * run.seconds);
  }
}

}  // namespace

void print_piper_tables() {
  print_exchanges();
  print_layer_memory();
  print_migrations();
}

}  // namespace pagoda
