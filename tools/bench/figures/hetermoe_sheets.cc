// HeterMoE's setups (Tables 1 and 2) as `pagoda plan` has them: the runs that `train` makes, with
// their memory, recomputation, updates and exchanges, by the datasheets of configs/.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cli/sheet_file.h"
#include "preview/layout_ways.h"
#include "tests/testing/hetermoe/heterogeneous_sweep.h"
#include "tools/bench/figures/hetermoe_figures.h"

namespace pagoda {
namespace {

struct Setup {
  const char* cluster;
  SweepModel model;
};
constexpr Setup kSetups[] = {{"hetermoe-o1", kMixtralD1}, {"hetermoe-o1", kMixtralW1},
                             {"hetermoe-o2", kMixtralW2}, {"hetermoe-o3", kMixtralD2},
                             {"hetermoe-c1", kMixtralD1}, {"hetermoe-c2", kMixtralW2}};

ModelSizes sizes_of(const SweepModel& model) {
  const auto hidden = static_cast<int>(model.hidden);
  return parse_model_sizes(
             strf(R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
  "vocab_size": 32000, "hidden_size": %d, "intermediate_size": %d, "num_hidden_layers": %d,
  "num_attention_heads": %d, "num_key_value_heads": %d, "num_local_experts": %d,
  "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "hidden_act": "silu",
  "max_position_embeddings": 65536, "tie_word_embeddings": false, "sliding_window": null,
  "initializer_range": 0.02, "router_aux_loss_coef": 0.02})",
                  hidden, static_cast<int>(model.ffn), model.layers, hidden / 64, hidden / 256,
                  model.experts),
             model.name)
      .take();
}

// A step of 48 sequences. The paper takes as many as memory allows, without saying how many.
constexpr int64_t kSequences = 48;

std::vector<RunConfig> run_of(const ClusterSheet& cluster, int64_t sequence_len, LayoutKind layout,
                              int64_t chunks) {
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = sequence_len;
  config.train.tokens_per_step = kSequences * sequence_len;
  config.train.save_steps = 0;
  config.train.chunks = chunks;
  config.train.shards = kSequences / chunks;
  config.parallel.layout = layout;
  config.total_devices = devices_of_nodes(config, cluster);
  return std::vector(cluster.nodes.size(), config);
}

// Finds how many microbatches serve zebra and stages best, as the paper does.
LayoutSearch tuned(const ModelSizes& model, const ClusterSheet& cluster, int64_t sequence_len) {
  LayoutSearch found;
  const auto add = [&](LayoutKind layout, int64_t chunks) {
    auto run =
        forecast_layout(model, run_of(cluster, sequence_len, layout, chunks), cluster, kSearchPlan);
    if (run.ok()) found.runs.push_back(run.take());
  };
  add(LayoutKind::kExperts, 1);
  for (const int64_t chunks : {2, 4, 8}) {
    add(LayoutKind::kZebra, chunks);
    add(LayoutKind::kPipeline, chunks);
  }
  std::ranges::stable_sort(found.runs, {},
                           [](const SearchedLayout& run) { return run.forecast.step.step_s(); });
  return found;
}

void print_setup(const Setup& setup, const ClusterSheet& cluster, int64_t thousands) {
  const ModelSizes model = sizes_of(setup.model);
  const LayoutSearch found = tuned(model, cluster, 1024 * thousands);
  const std::vector<RunConfig> own = run_of(cluster, 1024 * thousands, LayoutKind::kExperts, 1);
  const std::vector<LayoutWay> ways = layout_ways(model, own, cluster, kSearchPlan, found);
  const auto zebra = std::ranges::find_if(
      found.runs, [](const SearchedLayout& run) { return run.configs.front().zebra(); });
  std::printf("  %-11s %-15s %3lldK", setup.model.name, cluster.cluster.name.c_str(),
              (long long)thousands);
  if (zebra == found.runs.end()) {
    std::printf("  zebra does not fit\n");
    return;
  }
  const double zebra_s = zebra->forecast.step.step_s();
  for (const char* way : {"(EP)", "by speed", "DistEP", "EP (Ideal)", "pipeline"}) {
    for (const LayoutWay& of : ways) {
      if (of.name.find(way) == std::string::npos) continue;
      std::printf(of.step_s > 0 ? "  %9.2f" : "          -", of.step_s / zebra_s);
    }
  }
  std::printf("  %8.1f  %s\n", 100 * zebra->forecast.mfu(),
              resource_name(zebra->forecast.step.bottleneck()));
  std::fflush(stdout);
}

}  // namespace

void print_hetermoe_sheets() {
  std::printf(
      "\nHeterMoE's setups by the sheets of configs/, 48 sequences a step: how many times as long "
      "as zebra each way takes, and zebra's MFU\n(Figures 7, 8 and 9; the paper over EP (Ideal) "
      "1.18 on average and 1.38 at most, with L40S and T4 1.17 and 1.25; over EP 1.22 at 4K, 1.67 "
      "at "
      "16K and 1.89 at 32K, with L40S\nand T4 2.89; over DistEP 1.82 and 1.96; over a pipeline "
      "1.28). Recomputation allows 75 to 82 %% MFU at most.\n"
      "  model       devices         rows         EP   by speed     DistEP  EP (Ideal)  pipeline   "
      "MFU %%  limited by\n");
  for (const Setup& setup : kSetups) {
    const ClusterSheet cluster =
        read_cluster_sheet(strf("configs/clusters/%s.toml", setup.cluster)).take();
    for (const int64_t thousands : {4, 16, 32}) print_setup(setup, cluster, thousands);
  }
}

}  // namespace pagoda
