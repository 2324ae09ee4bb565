#include "tests/testing/hetermoe/paper_runs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/bytes.h"
#include "config/option_value.h"
#include "preview/stage_balance.h"
#include "preview/zebra_choice.h"
#include "tests/testing/hetermoe/asym_ea.h"

namespace pagoda {
namespace {

// Numbers of chunks to try, and those for which there are enough sequences where these are few.
constexpr int64_t kZebraChunks[] = {4, 6}, kPipelineChunks[] = {8, 4};
constexpr int64_t kFewChunks = 2;
constexpr int64_t kMostSequences = 128;  // of kLongest in a step
constexpr int64_t kFineShards = 48;      // of shares by speed

ModelSizes sizes_of(const PaperModel& model) {
  return parse_model_sizes(
             strf(R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
  "vocab_size": 32000, "hidden_size": %d, "intermediate_size": %d, "num_hidden_layers": %d,
  "num_attention_heads": %d, "num_key_value_heads": %d, "num_local_experts": %d,
  "num_experts_per_tok": 2, "rms_norm_eps": 1e-5, "rope_theta": 1e6, "hidden_act": "silu",
  "max_position_embeddings": 65536, "tie_word_embeddings": false, "sliding_window": null,
  "initializer_range": 0.02, "router_aux_loss_coef": 0.02})",
                  model.hidden, model.ffn, model.layers, model.hidden / 64, model.hidden / 256,
                  model.experts),
             model.name)
      .take();
}

// A run whose step has as many whole sequences as `chunks` times `shards` divide.
std::optional<RunConfig> config_of(const PaperSetup& setup, int64_t sequence_len, LayoutKind layout,
                                   int64_t chunks, int64_t shards) {
  const int64_t unit = chunks * shards;
  const int64_t sequences = setup.tokens / sequence_len / unit * unit;
  if (sequences == 0) return {};
  RunConfig config;
  config.data.sequence_len = config.train.micro_batch_tokens = sequence_len;
  config.train.tokens_per_step = sequences * sequence_len;
  config.train.save_steps = 0;
  config.train.chunks = chunks;
  config.train.shards = shards;
  config.parallel.layout = layout;
  config.total_devices = devices_of_nodes(config, setup.cluster);
  return config;
}

MaybeStep step_of(const PaperSetup& setup, RunConfig config) {
  const std::vector<RunConfig> configs(setup.cluster.nodes.size(), config);
  auto planned = planned_ranks(setup.model, configs, setup.cluster);
  if (!planned.ok()) return {};
  std::vector<PlannedRun> ranks = planned.take();
  for (PlannedRun& rank : ranks) rank.kept_layer_bytes.clear();  // layers are computed again
  if (config.zebra()) write_zebra(ranks.front().shape, config);
  auto forecast =
      forecast_ranks(setup.model, configs, setup.cluster, std::move(ranks), kSearchPlan);
  if (!forecast.ok()) return {};
  PaperStep step{std::move(config), forecast.take()};
  step.forecast.step.simulated = {};  // as large as all tasks
  return step;
}

void keep_faster(MaybeStep next, MaybeStep& best) {
  if (next && (!best || next->tokens_per_s() > best->tokens_per_s())) best = std::move(next);
}

std::optional<RunConfig> zebra_config(const PaperSetup& setup, int64_t sequence_len,
                                      int64_t chunks) {
  auto config = config_of(setup, sequence_len, LayoutKind::kZebra, chunks, setup.faster);
  if (config) config->parallel.attention_devices = setup.faster;
  return config;
}

// The setup's devices of one kind.
PaperSetup alone(const PaperSetup& setup, bool faster) {
  PaperSetup kind = setup;
  kind.faster = 0;
  const MachineSheet& node = faster ? setup.cluster.nodes.front() : setup.cluster.nodes.back();
  kind.cluster.nodes.assign(static_cast<size_t>(faster ? setup.faster : setup.slower()), node);
  return kind;
}

// Whether all that compares has all it needs on its devices. What needs more tokens has no step,
// and no need.
bool on_devices(const PaperSetup& setup) {
  const auto has = [](const MaybeStep& step) { return !step || step->on_devices(); };
  const bool equal = setup.faster == 0;
  if (!equal) {
    for (const bool faster : {false, true}) {
      if (!has(expert_parallel_step(alone(setup, faster), kLongest))) return false;
    }
  }
  if (!has(expert_parallel_step(setup, kLongest))) return false;
  if (equal) return true;
  if (!has(disaggregated_step(setup, kLongest))) return false;
  auto config = zebra_config(setup, kLongest, kFewChunks);
  if (!config) return true;
  config->parallel.offloaded = {"0"};
  return has(step_of(setup, *std::move(config)));
}

// The most, by halves.
PaperSetup with_most_tokens(PaperSetup setup) {
  int64_t most = 0, too_many = kMostSequences;
  while (too_many - most > 1) {
    const int64_t sequences = (most + too_many) / 2;
    setup.tokens = sequences * kLongest;
    (on_devices(setup) ? most : too_many) = sequences;
  }
  setup.tokens = most * kLongest;
  return setup;
}

}  // namespace

PaperModel with_experts(PaperModel model, int experts) {
  model.experts = experts;
  return model;
}

PaperSetup paper_setup(const PaperModel& model, const ClusterSheet& cluster, int64_t faster,
                       int64_t slower) {
  PaperSetup setup{sizes_of(model), cluster, faster, 0};
  setup.cluster.nodes.assign(static_cast<size_t>(faster), cluster.nodes.front());
  setup.cluster.nodes.insert(setup.cluster.nodes.end(), static_cast<size_t>(slower),
                             cluster.nodes.back());
  return with_most_tokens(std::move(setup));
}

PaperSetup paper_setup(const PaperModel& model, const ClusterSheet& cluster) {
  return with_most_tokens({sizes_of(model), cluster, 0, 0});
}

MaybeStep expert_parallel_step(const PaperSetup& setup, int64_t sequence_len, ShareKind shares) {
  const int64_t shards = shares == ShareKind::kUniform
                             ? setup.devices()
                             : std::min(kFineShards, setup.tokens / sequence_len);
  auto config = config_of(setup, sequence_len, LayoutKind::kExperts, 1, shards);
  if (!config) return {};
  config->parallel.shares = shares;
  return step_of(setup, *std::move(config));
}

double ideal_tokens_per_s(const PaperSetup& setup, int64_t sequence_len) {
  double tokens_per_s = 0;
  for (const bool faster : {true, false}) {
    const MaybeStep step = expert_parallel_step(alone(setup, faster), sequence_len);
    if (step) tokens_per_s += step->tokens_per_s();
  }
  return tokens_per_s;
}

MaybeStep disaggregated_step(const PaperSetup& setup, int64_t sequence_len) {
  auto config = zebra_config(setup, sequence_len, 1);
  if (!config) return {};
  config->parallel.offloaded = {"0"};
  config->parallel.lags = {"0", "0", "0"};
  config->parallel.kept_rows = "0";
  return step_of(setup, *std::move(config));
}

ZebraSteps zebra_steps(const PaperSetup& setup, int64_t sequence_len) {
  const std::vector<std::string> none = {"0"};
  ZebraSteps best;
  const auto attempt = [&](int64_t chunks) {
    auto config = zebra_config(setup, sequence_len, chunks);
    if (!config) return;
    MaybeStep planned = step_of(setup, *config);
    config->parallel.offloaded = none;
    const bool same = planned && planned->config.parallel.offloaded == none;
    keep_faster(same ? planned : step_of(setup, *std::move(config)), best.plain);
    keep_faster(std::move(planned), best.planned);
    keep_faster(best.plain, best.planned);  // as the search of layouts tries it
  };
  for (const int64_t chunks : kZebraChunks) attempt(chunks);
  if (!best.plain) attempt(kFewChunks);
  return best;
}

MaybeStep algorithm_1_step(const PaperSetup& setup, int64_t sequence_len, const PaperStep& plain) {
  const ModelShape& model = setup.model.shape;
  ZebraGroup group;
  group.layers = static_cast<int32_t>(model.num_layers());
  group.microbatches = static_cast<int32_t>(plain.config.train.chunks);
  group.attention_devices = static_cast<int32_t>(setup.faster);
  group.expert_devices = static_cast<int32_t>(setup.slower());
  group.experts = static_cast<int32_t>(model.num_experts);
  // Shares of a step, in millionths, stand for times: the algorithm only compares them. The head is
  // work of the faster devices, too. Products take so much less there.
  const BusyShares busy = busy_shares(setup, plain);
  const double faster_part = setup.cluster.nodes.back().device.gemm_tflops /
                             setup.cluster.nodes.front().device.gemm_tflops;
  const auto whole = [](double share) { return std::max<int64_t>(1, std::llround(1e6 * share)); };
  const auto left = gather_and_squeeze(
      group, {whole(busy.faster), whole(busy.slower), whole(busy.slower * faster_part)}, {});
  if (!left.ok()) return {};
  std::vector<int64_t> offloaded;
  for (const int32_t of_each : left.value()) offloaded.push_back(of_each * setup.slower());
  if (std::ranges::count(offloaded, 0) == std::ssize(offloaded)) return {};
  auto config = zebra_config(setup, sequence_len, plain.config.train.chunks);
  if (!config) return {};
  config->parallel.offloaded = texts_of(offloaded);
  return step_of(setup, *std::move(config));
}

MaybeStep pipeline_step(const PaperSetup& setup, int64_t sequence_len) {
  const int64_t pipelines = std::gcd(setup.faster, setup.slower());
  const auto attempt = [&](int64_t chunks, std::vector<std::string> layers) -> MaybeStep {
    auto config = config_of(setup, sequence_len, LayoutKind::kPipeline, chunks, pipelines);
    if (!config) return {};
    config->parallel.stages = setup.devices() / pipelines;
    config->parallel.stage_layers = std::move(layers);
    config->parallel.order = PipelineOrder::kOneForwardOneBackward;
    return step_of(setup, *std::move(config));
  };
  // Takes as many chunks as there are sequences for.
  MaybeStep best;
  int64_t chunks = 0;
  for (const int64_t most : kPipelineChunks) {
    if (best) break;
    chunks = most;
    best = attempt(chunks, {"auto"});
  }
  if (!best) return best;
  keep_faster(attempt(chunks, texts_of(layers_by_time(best->forecast))), best);
  for (std::vector<int64_t> moved = one_layer_moved(best->forecast); !moved.empty();) {
    MaybeStep next = attempt(chunks, texts_of(moved));
    if (!next || next->tokens_per_s() <= best->tokens_per_s()) break;
    best = std::move(next);
    moved = one_layer_moved(best->forecast);
  }
  return best;
}

BusyShares busy_shares(const PaperSetup& setup, const PaperStep& step) {
  const std::vector<double>& busy_s = step.forecast.step.device_busy_s;
  const double step_s = step.forecast.step.step_s();
  const auto middle = busy_s.begin() + setup.faster;
  const auto share = [&](auto from, auto to) {
    return std::accumulate(from, to, 0.0) / static_cast<double>(std::max<int64_t>(1, to - from)) /
           step_s;
  };
  return {share(busy_s.begin(), middle), share(middle, busy_s.end()),
          step.forecast.step.busy_s(Resource::kNetwork) / step_s};
}

}  // namespace pagoda
