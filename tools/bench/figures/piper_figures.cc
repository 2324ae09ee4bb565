#include "tools/bench/figures/piper_figures.h"

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "cli/sheet_file.h"
#include "preview/equal_copies.h"
#include "preview/few_layers.h"

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

// The step of the fastest layout without stages and copies; 0: none was found, or there are only
// divided clusters.
double experts_alone_s(const std::vector<DividedCluster>& divided) {
  for (const DividedCluster& division : divided) {
    if (division.copies.count > 1) continue;
    for (const SearchedLayout& run : division.found.runs) {
      const RunConfig& of = run.configs.front();
      if (of.stages() == 1 && !of.zebra() && of.copies() == 1) return run.forecast.step.step_s();
    }
  }
  return 0;
}

// What a row of a figure found: a step of the best layout, and what part of it devices compute,
// cards send, and copies exchange sums. Zeros: no layout fits.
struct FoundStep {
  double mfu = 0, computing = 0, sending = 0, sums = 0;
  int64_t too_large = 0;  // layouts that were left out
};

// Prints a row of a figure: the best layout, of all or of equal copies, and how much faster it is
// than expert parallelism alone.
FoundStep print_best_layout(const std::string& name, const ModelSizes& model,
                            const ClusterSheet& cluster, RunConfig config) {
  config.total_devices = devices_of_nodes(config, cluster);
  const std::vector<DividedCluster> divided = divide_cluster(model, config, cluster, kSearchPlan);
  std::printf("  %-19s %4lld GPUs ", name.c_str(), (long long)config.total_devices);
  if (divided.empty()) {
    std::printf("no layout fits that is not too large to simulate\n");
    return {};
  }
  const EqualCopies& all = divided.front().copies;
  std::printf("%6.1f   %10.0f   %-9s ", 100 * all.mfu,
              all.tokens_per_s / static_cast<double>(config.total_devices), all.bottleneck);
  const double experts_s = experts_alone_s(divided);
  std::printf("%6s  ", experts_s > 0 ? strf("%.2f", experts_s / all.step_s).c_str() : "-");
  if (all.count > 1) std::printf("%s: ", all.text().c_str());
  const LayoutSearch& found = divided.front().found;
  const SearchedLayout& best = found.runs.front();
  const StepForecast& step = best.forecast.step;
  const double compute_s = step.busy_s(Resource::kCompute);
  const double send_s = step.busy_s(Resource::kNetwork);
  std::printf(
      "%s%s; devices compute %.3g s and cards send %.3g s of %.4g; %lld layouts tried, %lld too "
      "large to simulate\n",
      best.text().c_str(), best.few_layers ? " (by a few layers)" : "", compute_s, send_s,
      step.step_s(), (long long)found.tried, (long long)found.too_large);
  std::fflush(stdout);
  return {all.mfu, compute_s / all.step_s, send_s / all.step_s, all.sums_s / all.step_s,
          found.too_large};
}

constexpr const char* kLayoutColumns =
    "  model                        MFU %%  tokens/s a GPU  limited by  over EP  layout\n";

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

// GiB of a GPU by Piper's equations, in two parts.
struct EquationGib {
  double states = 0, activations = 0;  // states: with weights and gradients
  double total() const { return states + activations; }
  const char* limit() const { return states >= activations ? "states" : "activations"; }
};

constexpr double kGibibyte = 1024.0 * 1024 * 1024;

// b = 1 for each GPU, rows of 4096 and flash attention: of so many layers, whose experts `ep` GPUs
// divide, and of so many microbatches that wait for their backward. `again`: layers are computed
// again, and of those that wait only the input is there.
EquationGib equation_gib(const ModelShape& model, double layers, double ep, double in_flight,
                         bool again) {
  constexpr double kRow = 4096;
  const auto d = static_cast<double>(model.hidden_size);
  const auto f = static_cast<double>(model.expert_ffn);
  const auto experts = static_cast<double>(model.num_experts);
  const auto k = static_cast<double>(model.experts_per_token);
  const double states = layers * (64 * d * d + 48 * experts / ep * d * f);
  const double activations = 12 * kRow * d + 2 * 2 * kRow * 128 + 2 * kRow * k * (3 * f + d);
  const double waiting = layers * in_flight;
  const double held = again ? activations + waiting * 2 * kRow * d : waiting * activations;
  return {states / kGibibyte, held / kGibibyte};
}

// Figure 10's ways to use so many GPUs: EP alone, PP x EP, and that with layers computed again.
struct MeshGib {
  static constexpr double kEp = 32;
  EquationGib alone, pipelined, again;

  MeshGib(const ModelShape& model, double gpus) {
    const auto layers = static_cast<double>(model.num_layers());
    const double stages = gpus / kEp;
    alone = equation_gib(model, layers, std::min(static_cast<double>(model.num_experts), gpus), 1,
                         false);
    pipelined = equation_gib(model, layers / stages, kEp, stages, false);
    again = equation_gib(model, layers / stages, kEp, stages, true);
  }
};

// Figure 10: the memory of a model by equations (2) and (4).
void print_memory() {
  constexpr double kGpuGib = 64e9 / kGibibyte, kPaperGpus = 512;
  std::printf(
      "\nPiper, Figure 10: GiB a GPU of DeepSeek-V3's layers, as many as have 545 B parameters, "
      "which the paper's text says, and 615 B, which its caption says,\n  by its equations (2) (EP "
      "alone) and (4) (1F1B's first stage, PP x EP %.0f), b = 1 for each GPU, flash attention. The "
      "paper: EP alone fits nowhere,\n  PP x EP on 64 nodes (64 GB a GPU, which are %.1f GiB) and "
      "more. Of 545 B the larger part limits: states, with weights and gradients, or activations\n"
      "  assumes: the paper's equations. No step of these meshes is simulated: Figures 13 and 14 "
      "plan as many GPUs as equal copies of one run, each with the whole model\n"
      "        EP alone           PP x EP          computed again\n"
      "  GPUs   545 B   615 B   545 B   615 B    545 B   615 B   limited by, of 545 B\n",
      MeshGib::kEp, kGpuGib);
  const ModelShape small = of_parameters("deepseek-v3", 545e9).shape;
  const ModelShape large = of_parameters("deepseek-v3", 615e9).shape;
  for (const int64_t nodes : {16, 32, 64, 128}) {
    const auto gpus = static_cast<double>(8 * nodes);
    const MeshGib a(small, gpus), b(large, gpus);
    std::printf("  %4.0f %7.1f %7.1f %7.1f %7.1f  %7.1f %7.1f   %s / %s / %s\n", gpus,
                a.alone.total(), b.alone.total(), a.pipelined.total(), b.pipelined.total(),
                a.again.total(), b.again.total(), a.alone.limit(), a.pipelined.limit(),
                a.again.limit());
  }
  const MeshGib on_paper(small, kPaperGpus);
  const auto fits = [](const EquationGib& of) {
    return of.total() <= kGpuGib ? "which fits" : "which does not fit";
  };
  std::printf(
      "  With PP x EP, %.1f GiB of 545 B are activations, whatever the GPUs: PP microbatches wait "
      "in the first stage, in 1 / PP of the layers. With these a GPU of the paper's 64 nodes\n  "
      "needs %.1f GiB, %s; where layers are computed again, as it does selectively, %.1f, %s. It "
      "does not say which of both its figure has, nor which model's layers.\n",
      on_paper.pipelined.activations, on_paper.pipelined.total(), fits(on_paper.pipelined),
      on_paper.again.total(), fits(on_paper.again));
}

// Figure 13: other systems are not run here, so what a layout brings over EP alone is printed.
void print_sizes() {
  std::printf(
      "\nPiper, Figure 13: models of 10, 55, 201 and 545 B parameters on the paper's 8, 32, 80 and "
      "512 GPUs. The paper (MI250X): 2 to 3.6 times X-MoE's throughput, which takes 256 to 1024 "
      "GPUs\n  and has 5.2 %% MFU at 545 B\n  assumes: DeepSeek-V2's layers, of the largest "
      "DeepSeek-V3's; X-MoE was not run; else as in Figure 12; `train` runs 64 GPUs at most, so "
      "that rows of more are plans alone\n");
  std::printf(kLayoutColumns);
  struct Row {
    const char *name, *layers_of;
    double parameters;
    int64_t nodes;
  };
  for (const Row& row :
       {Row{"small, 10 B", "deepseek-v2-lite", 10e9, 1},
        Row{"medium, 55 B", "deepseek-v2", 55e9, 4}, Row{"large, 201 B", "deepseek-v2", 201e9, 10},
        Row{"super, 545 B", "deepseek-v3", 545e9, 64}}) {
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
      "nothing that switches delay;\n  of equal copies each is home to a part of every record, and "
      "what they exchange goes beside nothing else\n");
  std::printf(kLayoutColumns);
  for (const char* name : {"mixtral-8x7b", "mixtral-8x22b", "qwen3-30b-a3b", "qwen3-235b-a22b",
                           "deepseek-v2-lite", "deepseek-v2"}) {
    print_best_layout(name, published(name), nodes_of_eight(4), rows_of_4096(256));
  }
}

// M10B with so many experts. The paper's MLPs have two matrices of 5120 x 20480: with 128 experts
// 32 x 128 x 2 x 5120 x 20480 parameters are its 862 B, but for attention. An expert here has
// three, so that two thirds of the width, in eighths, are as many.
ModelSizes m10b(int64_t experts) {
  ModelSizes model = published("mixtral-8x7b");
  model.shape.hidden_size = model.config.hidden_size = 5120;
  model.shape.expert_ffn = model.config.moe_intermediate_size = 13656;
  model.shape.attention.heads = model.shape.attention.kv_heads = 40;
  model.config.num_heads = model.config.num_kv_heads = 40;
  model.shape.num_experts = model.config.num_experts = experts;
  return model;
}

// Figure 14: experts grow with the GPUs.
void print_growing_experts() {
  std::printf(
      "\nPiper, Figure 14: d 5120, ffn 20480 in two matrices (here 13656 in three), 32 layers, "
      "top-2, an expert for 4 GPUs, 16 rows of 4096 for each GPU\n  assumes: as in Figures 12 and "
      "13\n");
  std::printf(kLayoutColumns);
  const double peak = nodes_of_eight(1).nodes.front().device.peak_tflops;
  std::string rates, computing, sending, sums;
  const auto add = [](std::string& list, const std::string& text) {
    list += (list.empty() ? "" : ", ") + text;
  };
  double first = 0;
  int64_t too_large = 0;
  for (const int64_t nodes : {8, 16, 32, 64, 128}) {
    const ModelSizes model = m10b(2 * nodes);
    const double parameters = static_cast<double>(count_parameters(model.shape).total);
    const std::string name = strf("%lld experts, %.0f B", (long long)(2 * nodes), parameters / 1e9);
    const FoundStep found =
        print_best_layout(name, model, nodes_of_eight(nodes), rows_of_4096(128 * nodes));
    if (first == 0) first = found.mfu;
    add(rates, strf("%.1f on %lld", found.mfu * peak, (long long)(8 * nodes)));
    if (first > 0 && found.mfu != first) {
      rates += strf(" (%.0f %% of the first)", 100 * found.mfu / first);
    }
    add(computing, strf("%.0f", 100 * found.computing));
    add(sending, strf("%.0f", 100 * found.sending));
    add(sums, strf("%.0f", 100 * found.sums));
    too_large += found.too_large;
  }
  std::printf(
      "  TFLOP/s a GPU: %s. The paper (MI250X): 39.4 on 512, 33 on 1024, 73 %% of those on 64\n"
      "  Of a step devices compute for %s %%, row by row; cards send for %s %%; and the sums "
      "between copies, which nothing goes beside, take %s %%.\n  A run has %d devices at most, so "
      "that the model has copies on more. %lld layouts were too large to simulate, of which any "
      "may be faster.\n",
      rates.c_str(), computing.c_str(), sending.c_str(), sums.c_str(), kMostDevices,
      (long long)too_large);
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
