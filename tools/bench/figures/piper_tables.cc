#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "plan/exchange/expert_migration.h"
#include "preview/run_forecast.h"
#include "tools/bench/exchange/simulated_exchange.h"
#include "tools/bench/figures/piper_figures.h"

namespace pagoda {
namespace {

constexpr double kGB = 1e9, kGiB = 1024.0 * 1024 * 1024;

// Figure 8: nodes as Frontier's, 8 devices that share four cards of 25 GB/s.
CardNetwork frontier_nodes(int nodes) {
  CardNetwork network;
  network.nodes = nodes;
  network.each = 8;
  network.within_s = 2e-6;
  network.between_s = nodes > 16 ? 30e-6 : 10e-6;
  network.within_bytes_per_s = 50 * kGB;
  network.between_bytes_per_s = 12.5 * kGB;
  return network;
}

// How many times as long as HALO a flat exchange takes if bytes alone take time and rows are passed
// on behind all that comes from other nodes: a device sends 8 parcels to each of these by its card,
// and passes 7 of the 8 on that come from there.
double flat_by_bytes() {
  const CardNetwork network = frontier_nodes(2);
  const double between_s = network.each / network.between_bytes_per_s;
  const double onward_s = (network.each - 1) / network.within_bytes_per_s;
  return between_s / (between_s + onward_s);
}

// Where cards idle for most of the time, latencies take it, and messages whose receiver has not
// come to them.
const char* limit_of(const EvenExchange& exchange) {
  if (std::max(exchange.between, exchange.within) < 0.5) return "latencies and receivers";
  return exchange.between >= exchange.within ? "cards between nodes" : "cards within nodes";
}

void print_sending(const char* order, const std::vector<EvenExchange>& by_nodes) {
  std::printf("              %-14s", order);
  for (const EvenExchange& e : by_nodes) std::printf(" %7.0f", 100 * e.between);
  std::printf("   %s\n", limit_of(by_nodes.back()));
}

void print_range(const char* nodes, const std::vector<double>& ratios, const char* paper) {
  const auto [least, most] = std::ranges::minmax(ratios);
  std::printf("  %s: %.2f to %.2f x; the paper (MI250X, RCCL): %s\n", nodes, least, most, paper);
}

void print_exchanges() {
  constexpr int kNodes[] = {2, 4, 8, 16, 32, 64}, kMany = 16;
  std::printf(
      "\nPiper, Figure 8: time of a flat all-to-all over HALO's, 8 devices a node, by the messages "
      "that `train` sends, and the %% of either in which a device's card sends to other nodes\n  "
      "assumes: 12.5 GB/s for each device between nodes and 50 GB/s within; 2 us within a node, 10 "
      "us between up to 16 nodes, which share a switch, and 30 us between more; rows for all "
      "alike,\n  receiver by receiver. RCCL's own costs and its order are not in it\n"
      "  bytes a pair               nodes 2       4       8      16      32      64   limited by, "
      "of most nodes\n");
  std::vector<double> few, many;
  for (const int64_t bytes : {int64_t{1024}, int64_t{16384}, int64_t{262144}, int64_t{4194304}}) {
    std::vector<EvenExchange> flat, halo;
    std::printf("  %11lld flat over HALO", (long long)bytes);
    for (const int nodes : kNodes) {
      const CardNetwork network = frontier_nodes(nodes);
      flat.push_back(simulate_even_exchange(network, ExchangeOrder::kFlat, bytes));
      halo.push_back(simulate_even_exchange(network, ExchangeOrder::kHalo, bytes));
      const double ratio = flat.back().seconds / halo.back().seconds;
      (nodes < kMany ? few : many).push_back(ratio);
      std::printf(" %7.2f", ratio);
      std::fflush(stdout);
    }
    std::printf("\n");
    print_sending("flat: sends", flat);
    print_sending("HALO: sends", halo);
  }
  print_range("below 16 nodes", few, "comparable");
  print_range("from 16 nodes on", many, "1.1 to 9 x");
  std::printf(
      "  If bytes alone took time and rows were passed on at the end, it would be %.2f x "
      "everywhere: HALO moves 7 of 8 rows once more in the node. A flat exchange's receivers are "
      "taken one after\n  the other, so that most senders wait meanwhile. That RCCL does not fill "
      "all four cards is what the paper says; its order, and how many messages it has on their way "
      "at a time, are not\n  known here.\n",
      flat_by_bytes());
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

// Names what takes most of the bytes.
const char* most_of(const LayerBytes& bytes) {
  const std::pair<double, const char*> parts[] = {{bytes.weights, "weights"},
                                                  {bytes.gradients, "gradients"},
                                                  {bytes.states, "states"},
                                                  {bytes.waiting, "what waits"},
                                                  {bytes.in_layer, "in-layer"}};
  return std::ranges::max_element(parts, {}, [](const auto& part) { return part.first; })->second;
}

// Table III beside the pages of a run of one layer.
void print_layer_memory() {
  std::printf(
      "\nPiper, Table III: GiB of one layer, one row of 4096: 64 d^2 + 48 E d f for the model, 12 "
      "b s d + 2 b s k (3 f + d) for activations with flash attention,\n  beside a run's pages, of "
      "which it is limited by the largest\n  assumes: in the paper multi-head attention; a run has "
      "the model's own, embedding and head of 8 words, and a layer's input alone waits for the "
      "backward, which computes the rest again\n  model               paper: model  activations   "
      "run: weights  gradients  states  waiting  in-layer   limited by\n");
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
    std::printf("  %-18s %13.2f %12.2f %14.2f %10.2f %7.2f %8.3f %9.2f   %s\n", name,
                (64 * d * d + experts) / kGiB, (12 * rows * d + 2 * rows * k * (3 * f + d)) / kGiB,
                run.weights / kGiB, run.gradients / kGiB, run.states / kGiB, run.waiting / kGiB,
                run.in_layer / kGiB, most_of(run));
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
      "are 16 a parameter; those of a run 12, as gradients stay.\n  Limited by: the link, which "
      "alone takes time in the formula. Assumes: every device sends and receives at once, three "
      "matrices an expert; the paper's GB are 2^30 bytes in most rows\n"
      "  model            paper GB      ms   formula GB      ms   run GB      ms\n");
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
