#include "tools/bench/figures/piper_figures.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "cli/sheet_file.h"
#include "preview/few_layers.h"
#include "preview/layout_search.h"

namespace pagoda {
namespace {

// Files of configs/, where the program is started.
ModelSizes published(const std::string& name) {
  return read_model_sizes("configs/models/" + name + ".json").take();
}

RunConfig rows_of_4096(int64_t sequences) {
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = 4096;
  config.train.tokens_per_step = 4096 * sequences;
  config.train.save_steps = 0;
  return config;
}

// Figure 11: a model's layer on one node, by expert parallelism.
void print_single_layers() {
  std::printf(
      "\nPiper, Figure 11: one layer of a model on a node of 8 GPUs of 80 GB, 32 rows of "
      "4096. The paper (MI250X): most efficient with large experts, least with "
      "fine-grained ones; it gives no numbers\n  assumes: equal tokens for all experts, no "
      "embedding or head to speak of\n  model               MFU %%   limited by\n");
  for (const char* name :
       {"mixtral-8x7b", "deepseek-v2", "deepseek-v3", "olmoe-1b-7b", "qwen3-30b-a3b"}) {
    const ModelSizes model = one_layer(name);
    auto run = forecast_run(model, rows_of_4096(32), nodes_of_eight(1).nodes.front(), kFinePlan);
    if (!run.ok() || !run->step) {
      std::printf("  %-18s %s\n", name,
                  run.ok() ? run->fits.message().c_str() : run.status().message().c_str());
      continue;
    }
    std::printf("  %-18s %6.1f   %s\n", name, 100 * run->mfu(),
                resource_name(run->step->bottleneck()));
  }
}

// A row of a figure: the best layout, and how much faster it is than expert parallelism alone.
void print_best_layout(const char* name, const ModelSizes& model, const ClusterSheet& cluster,
                       RunConfig config) {
  config.total_devices = devices_of_nodes(config, cluster);
  const std::vector<RunConfig> configs(cluster.nodes.size(), config);
  const LayoutSearch found = search_layouts(model, configs, cluster, kSearchPlan);
  std::printf("  %-18s %4lld GPUs ", name, (long long)config.total_devices);
  if (found.runs.empty()) {
    std::printf("none of %lld layouts fits, %lld are too large to simulate\n",
                (long long)found.tried, (long long)found.too_large);
    return;
  }
  const SearchedLayout& best = found.runs.front();
  std::printf("%6.1f   %10.0f   %-9s ", 100 * best.forecast.mfu(),
              best.forecast.tokens_per_s() / static_cast<double>(config.total_devices),
              resource_name(best.forecast.step.bottleneck()));
  double experts_s = 0;  // of the fastest without stages and copies
  for (const SearchedLayout& run : found.runs) {
    const RunConfig& of = run.configs.front();
    if (of.stages() > 1 || of.zebra() || of.copies() > 1 || experts_s > 0) continue;
    experts_s = run.forecast.step.step_s();
  }
  if (experts_s > 0) {
    std::printf("%6.2f  ", experts_s / best.forecast.step.step_s());
  } else {
    std::printf("     -  ");
  }
  std::printf("%s%s\n", best.text().c_str(), best.few_layers ? " (by a few layers)" : "");
  std::fflush(stdout);
}

constexpr const char* kLayoutColumns =
    "  model                       MFU %%  tokens/s a GPU  limited by  over EP  layout\n";

// The paper names models of 10 to 545 B parameters without their sizes, so these are a published
// model's layers, as many as have so many parameters.
ModelSizes of_parameters(const char* layers_of, double parameters) {
  const ModelSizes model = published(layers_of);
  ModelSizes fewer = with_layers(model, 1);
  for (int64_t layers = 2; layers < 100; ++layers) {
    ModelSizes more = with_layers(model, layers);
    if (static_cast<double>(count_parameters(more.shape).total) > parameters) break;
    fewer = std::move(more);
  }
  return fewer;
}

// Figure 10: the memory of a model of 545 B parameters by equations (2) and (4).
void print_memory() {
  const ModelSizes model = of_parameters("deepseek-v3", 545e9);
  const auto d = static_cast<double>(model.shape.hidden_size);
  const auto f = static_cast<double>(model.shape.expert_ffn);
  const auto experts = static_cast<double>(model.shape.num_experts);
  const auto k = static_cast<double>(model.shape.experts_per_token);
  const auto layers = static_cast<double>(model.shape.num_layers());
  constexpr double kGiB = 1024.0 * 1024 * 1024, kRows = 4096;
  std::printf(
      "\nPiper, Figure 10: GiB a GPU of a model of 545 B parameters (DeepSeek-V3's layers, %lld of "
      "them), by its equations (2) (EP alone) and (4) (1F1B's first stage, PP x EP 32), b = 1 for "
      "each GPU, flash attention.\n  The paper: EP alone fits nowhere, PP x EP on 64 nodes (64 GB "
      "a GPU) and more. Limited by: experts' weights and states, which a run may leave on host and "
      "drives\n  assumes: the paper's equations; a run has 64 devices at most, so none of these is "
      "simulated\n  GPUs   EP alone   PP x EP\n",
      (long long)model.shape.num_layers());
  for (const int64_t nodes : {16, 32, 64, 128}) {
    const auto gpus = static_cast<double>(8 * nodes);
    const auto bytes = [&](double of_layers, double ep, double in_flight) {
      const double attention = 12 * kRows * d + 2 * 2 * kRows * 128;
      return of_layers * (64 * d * d + 48 * experts / ep * d * f +
                          in_flight * (attention + 2 * kRows * k * (3 * f + d)));
    };
    const double stages = gpus / 32;
    std::printf("  %4.0f %10.1f %9.1f\n", gpus, bytes(layers, std::min(experts, gpus), 1) / kGiB,
                bytes(layers / stages, 32, stages) / kGiB);
  }
}

// Figure 13: other systems are not run here, so what a layout brings over EP alone is printed.
void print_sizes() {
  std::printf(
      "\nPiper, Figure 13: models of 10, 55 and 201 B parameters on 8, 32 and 64 GPUs. The paper "
      "(MI250X): 2 to 3.6 times X-MoE's throughput, which takes 256 to 1024 GPUs; its "
      "model of 545 B\n  takes more than a run's 64 devices\n  assumes: DeepSeek-V2's layers; "
      "X-MoE was not run; of 64 GPUs, pipelines have too many tasks to simulate soon; else as in "
      "Figure 12\n");
  std::printf(kLayoutColumns);
  struct Row {
    const char *name, *layers_of;
    double parameters;
    int64_t nodes;
  };
  for (const Row& row : {Row{"small, 10 B", "deepseek-v2-lite", 10e9, 1},
                         Row{"medium, 55 B", "deepseek-v2", 55e9, 4},
                         Row{"large, 201 B", "deepseek-v2", 201e9, 8}}) {
    print_best_layout(row.name, of_parameters(row.layers_of, row.parameters),
                      nodes_of_eight(row.nodes), rows_of_4096(128 * row.nodes));
  }
}

// Figure 12: whole models; the paper searches by its formulas, this by simulated tasks.
void print_whole_models() {
  std::printf(
      "\nPiper, Figure 12: the best layout on 4 nodes of 8 GPUs of 80 GB, 256 rows of 4096. "
      "The paper (MI250X, other numbers of nodes): 20 to 50 %%\n  assumes: equal tokens for "
      "all experts, layers alike where a step is too large, a link of 45 GB/s for each GPU, "
      "nothing that switches delay\n");
  std::printf(kLayoutColumns);
  for (const char* name : {"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"}) {
    print_best_layout(name, published(name), nodes_of_eight(4), rows_of_4096(256));
  }
}

// Figure 14: experts grow with the GPUs.
void print_growing_experts() {
  std::printf(
      "\nPiper, Figure 14: d 5120, ffn 20480, 32 layers, top-2, an expert for 4 GPUs, 16 rows of "
      "4096 for each GPU. The paper: 39.4 TFLOP/s a GPU on 512 (862 B parameters), 33 on 1024 (1.7 "
      "T), 73 %% from 64 to 1024\n  assumes: as in Figure 12; a run has 64 devices at most, where "
      "the paper begins, and of these pipelines have too many tasks to simulate soon\n");
  std::printf(kLayoutColumns);
  for (const int64_t nodes : {2, 4, 8}) {
    ModelSizes model = published("mixtral-8x7b");
    model.shape.hidden_size = model.config.hidden_size = 5120;
    model.shape.expert_ffn = model.config.moe_intermediate_size = 20480;
    model.shape.attention.heads = model.shape.attention.kv_heads = 40;
    model.config.num_heads = model.config.num_kv_heads = 40;
    model.shape.num_experts = model.config.num_experts = 2 * nodes;
    print_best_layout("M10B", model, nodes_of_eight(nodes), rows_of_4096(128 * nodes));
  }
}

}  // namespace

ModelSizes one_layer(const std::string& name) {
  ModelSizes model = with_layers(published(name), 1);
  model.shape.vocab_size = model.config.vocab_size = 8;
  return model;
}

ClusterSheet nodes_of_eight(int64_t nodes) {
  ClusterSheet cluster = read_cluster_sheet("configs/clusters/4x8-gpu-80gb.toml").take();
  cluster.nodes.assign(static_cast<size_t>(nodes), cluster.nodes.front());
  return cluster;
}

void print_piper_figures() {
  print_memory();
  print_single_layers();
  print_whole_models();
  print_sizes();
  print_growing_experts();
}

}  // namespace pagoda
