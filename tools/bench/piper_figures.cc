#include "tools/bench/piper_figures.h"

#include <cstdio>
#include <vector>

#include "cli/sheet_file.h"
#include "preview/layout_search.h"

namespace pagoda {
namespace {

// Files of configs/, where the program is started.
ModelSizes published(const std::string& name) {
  return read_model_sizes("configs/models/" + name + ".json").take();
}

ClusterSheet nodes_of_eight(int64_t nodes) {
  ClusterSheet cluster = read_cluster_sheet("configs/clusters/4x8-gpu-80gb.toml").take();
  cluster.nodes.assign(static_cast<size_t>(nodes), cluster.nodes.front());
  return cluster;
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
    ModelSizes model = published(name);
    model.shape.is_moe.assign(1, 1);
    model.config.num_layers = 1;
    model.shape.vocab_size = model.config.vocab_size = 8;
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
  std::printf("%6.1f   %10.0f   %-9s %s%s\n", 100 * best.forecast.mfu(),
              best.forecast.tokens_per_s() / static_cast<double>(config.total_devices),
              resource_name(best.forecast.step.bottleneck()), best.text().c_str(),
              best.few_layers ? " (by a few layers)" : "");
  std::fflush(stdout);
}

// Figure 12: whole models; the paper searches by its formulas, this by simulated tasks.
void print_whole_models() {
  std::printf(
      "\nPiper, Figure 12: the best layout on 4 nodes of 8 GPUs of 80 GB, 256 rows of 4096. "
      "The paper (MI250X, other numbers of nodes): 20 to 50 %%\n  assumes: equal tokens for "
      "all experts, layers alike where a step is too large, a link of 45 GB/s for each GPU, "
      "nothing that switches delay\n  model                       MFU %%  tokens/s a GPU  "
      "limited by\n");
  for (const char* name : {"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"}) {
    print_best_layout(name, published(name), nodes_of_eight(4), rows_of_4096(256));
  }
}

// Figure 14: experts grow with the GPUs. Runs have 64 devices at most, where the paper begins.
void print_growing_experts() {
  std::printf(
      "\nPiper, Figure 14: d 5120, ffn 20480, 32 layers, top-2, 2 experts and 8 rows of 4096 "
      "for each GPU. The paper: 73 %% from 64 GPUs to 1024, with experts that grow as these do; "
      "a run has 64 devices at most, so this is from 8 to 32\n  assumes: as above\n  model "
      "                      MFU %%  tokens/s a GPU  limited by\n");
  for (const int64_t nodes : {1, 2, 4}) {
    ModelSizes model = published("mixtral-8x7b");
    model.shape.hidden_size = model.config.hidden_size = 5120;
    model.shape.expert_ffn = model.config.moe_intermediate_size = 20480;
    model.shape.attention.heads = model.shape.attention.kv_heads = 40;
    model.config.num_heads = model.config.num_kv_heads = 40;
    model.shape.num_experts = model.config.num_experts = 16 * nodes;
    print_best_layout("M10B", model, nodes_of_eight(nodes), rows_of_4096(64 * nodes));
  }
}

}  // namespace

void print_piper_figures() {
  print_single_layers();
  print_whole_models();
  print_growing_experts();
}

}  // namespace pagoda
