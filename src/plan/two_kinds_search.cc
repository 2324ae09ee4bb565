#include "plan/two_kinds_search.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "base/bytes.h"
#include "plan/asym_ea.h"
#include "plan/model_cost.h"

namespace pagoda {
namespace {

constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;
constexpr int32_t kMostParts = 8;
constexpr double kDeviceBytes = 4;  // of a parameter: bf16 weight and gradient

double step_tokens(const StepDemand& demand) {
  return static_cast<double>(demand.sequence_len) * static_cast<double>(demand.sequences);
}

// What one device takes for all tokens in one layer.
DeviceKind kind_of(const MachineSheet& sheet, int32_t devices, const ModelCost& cost,
                   const StepDemand& demand) {
  const LayerCost& layer = cost.layers.front();
  const double tokens = step_tokens(demand), gemm = sheet.device.gemm_tflops * kTera;
  const auto s = static_cast<double>(demand.sequence_len);
  const double scores_rate = sheet.device.attention_tflops * kTera * s /
                             (s + sheet.device.attention_half_tokens);
  const double scores = score_flops(layer, demand.sequence_len) *
                        static_cast<double>(demand.sequences);
  const double attention_s = token_flops(layer) * tokens / gemm + scores / scores_rate;
  const double experts_s =
      row_flops(layer) * tokens * static_cast<double>(layer.experts_per_token) / gemm;
  DeviceKind kind;
  kind.devices = devices;
  kind.attention = {attention_s, 2 * attention_s};
  kind.experts = {experts_s, 2 * experts_s};
  kind.head_s = 6 * static_cast<double>(cost.head_parameters) * tokens / gemm;
  return kind;
}

class TwoKindsSearch {
 public:
  TwoKindsSearch(const ModelShape& model, const ModelCost& cost, const ClusterSheet& cluster,
                 const TwoKinds& kinds, const StepDemand& demand)
      : model_(model),
        cost_(cost),
        kinds_(kinds),
        demand_(demand),
        step_(unequal_step(model, cluster, kinds, demand)) {
    const double peak =
        kinds.newer->device.peak_tflops * kinds.newer_devices * kTera +
        kinds.older->device.peak_tflops * kinds.older_devices * kTera;
    flops_per_peak_ = model_flops(cost, demand.sequence_len,
                                  static_cast<double>(demand.sequences)) / peak;
  }

  std::vector<SearchedWay> run() {
    std::vector<StateChoice> states = state_choices();
    std::erase_if(states, [](const StateChoice& s) { return s.on_host; });  // not timed here
    // The shortest first: what it has room for is often within the others' bounds.
    std::sort(states.begin(), states.end(), [](const StateChoice& a, const StateChoice& b) {
      return a.state_bytes < b.state_bytes;
    });
    for (const StateChoice& state : states) {
      zebras(state);
      whole(state);
      pipelines(state);
    }
    return std::move(ways_);
  }

 private:
  double layers() const { return static_cast<double>(model_.num_layers()); }
  double expert_bytes(const StateChoice& state) const {
    return static_cast<double>(cost_.layers.front().expert_parameters) *
           (kDeviceBytes + state.state_bytes);
  }
  double dense_bytes(const StateChoice& state) const {
    double parameters =
        static_cast<double>(cost_.embedding_parameters + cost_.head_parameters);
    for (const LayerCost& l : cost_.layers) {
      parameters += static_cast<double>(l.replicated_parameters);
    }
    return parameters * (kDeviceBytes + state.state_bytes);
  }
  // Inputs of all layers are kept, the rest is computed again; rows: of tokens of one device.
  double inputs_bytes(double rows) const {
    return rows * layers() * static_cast<double>(kValueBytes * cost_.hidden_size);
  }
  double layer_bytes(double tokens) const {
    const LayerCost& l = cost_.layers.front();
    return tokens * static_cast<double>(l.token_bytes + 2 * l.heads +
                                        l.experts_per_token * l.row_bytes);
  }
  void add(SearchedWay way, const StateChoice& state, double step_s, double bytes);
  void zebras(const StateChoice& state);
  void zebra(const StateChoice& state, int32_t microbatches);
  std::optional<AsymPlan> asym_plan(const ZebraGroup& group, const AsymBounds& bounds);
  void whole(const StateChoice& state);
  void pipelines(const StateChoice& state);

  const ModelShape& model_;
  const ModelCost& cost_;
  const TwoKinds& kinds_;
  const StepDemand& demand_;
  const UnequalStep step_;
  double flops_per_peak_ = 0;
  std::vector<SearchedWay> ways_;
  std::map<int32_t, AsymPlan> found_;  // the newest, by microbatches
};

void TwoKindsSearch::add(SearchedWay way, const StateChoice& state, double step_s, double bytes) {
  way.state = state;
  way.step_s = step_s;
  way.mfu = flops_per_peak_ / step_s;
  way.device_bytes = static_cast<int64_t>(bytes);
  ways_.push_back(std::move(way));
}

// One that was found with more room is taken again where it is within these bounds too.
std::optional<AsymPlan> TwoKindsSearch::asym_plan(const ZebraGroup& group,
                                                  const AsymBounds& bounds) {
  if (const auto at = found_.find(group.microbatches); at != found_.end()) {
    int64_t given = 0;
    for (const int32_t o : at->second.offloaded) given += o;
    given *= group.expert_devices;
    if (given >= bounds.least &&
        given <= bounds.most_per_attention_device * group.attention_devices) {
      return at->second;
    }
  }
  const auto plan = plan_asym_ea(group, bounds);
  if (!plan.ok()) return std::nullopt;
  found_[group.microbatches] = plan.value();
  return plan.value();
}

void TwoKindsSearch::zebra(const StateChoice& state, int32_t microbatches) {
  const auto experts = static_cast<int32_t>(model_.num_experts);
  const auto group = zebra_group(step_, microbatches, experts);
  if (!group.ok()) return;
  const double tokens = step_tokens(demand_);
  const double own = tokens / kinds_.newer_devices;
  const double rows = tokens * static_cast<double>(model_.experts_per_token);
  const auto newer_bytes = static_cast<double>(kinds_.newer->auto_device_bytes());
  const auto older_bytes = static_cast<double>(kinds_.older->auto_device_bytes());
  const double attention_bytes =
      dense_bytes(state) + inputs_bytes(own) + layer_bytes(own / microbatches);
  const double kept = inputs_bytes(rows / kinds_.older_devices) +
                      layer_bytes(tokens / kinds_.older_devices / microbatches);
  const double each = expert_bytes(state), all = layers() * static_cast<double>(experts);
  if (attention_bytes > newer_bytes || kept > older_bytes) return;
  AsymBounds bounds;  // of experts of all layers
  bounds.most_per_attention_device =
      static_cast<int64_t>((newer_bytes - attention_bytes) / each);
  const double held = kinds_.older_devices * std::floor((older_bytes - kept) / each);
  bounds.least = static_cast<int64_t>(std::max(0.0, all - held));
  const std::optional<AsymPlan> plan = asym_plan(group.value(), bounds);
  if (!plan) return;
  SearchedWay way;
  way.kind = WayKind::kZebra;
  way.microbatches = microbatches;
  way.offloaded = plan->offloaded;
  double moved = 0;
  for (const int32_t o : way.offloaded) moved += o;
  const double left = all / kinds_.older_devices - moved;
  const double taken = moved * kinds_.older_devices / kinds_.newer_devices;
  add(std::move(way), state, plan->step_s,
      std::max(attention_bytes + taken * each, kept + left * each));
}

void TwoKindsSearch::zebras(const StateChoice& state) {
  for (int32_t m = 1; m <= kMostZebraMicrobatches; m *= 2) {
    if (demand_.sequences % (int64_t{m} * kinds_.newer_devices) == 0) zebra(state, m);
  }
}

// Everything on every device; and attention here, experts there.
void TwoKindsSearch::whole(const StateChoice& state) {
  const int32_t devices = kinds_.newer_devices + kinds_.older_devices;
  const double least = static_cast<double>(
      std::min(kinds_.newer->auto_device_bytes(), kinds_.older->auto_device_bytes()));
  const double tokens = step_tokens(demand_), all = layers() * expert_bytes(state) *
                                                    static_cast<double>(model_.num_experts);
  const double own = tokens / devices;
  const double bytes =
      dense_bytes(state) + all / devices + inputs_bytes(own) + layer_bytes(own);
  SearchedWay way;
  way.kind = WayKind::kExpertParallel;
  const auto together = best_expert_parallel(step_, kMostParts);
  if (together.ok() && bytes <= least && model_.num_experts % devices == 0 &&
      demand_.sequences % devices == 0) {
    add(way, state, together.value().step_s, bytes);
  }
  const double here = dense_bytes(state) + inputs_bytes(tokens / kinds_.newer_devices) +
                      layer_bytes(tokens / kinds_.newer_devices);
  const double there =
      all / kinds_.older_devices +
      inputs_bytes(tokens * static_cast<double>(model_.experts_per_token) / kinds_.older_devices);
  const auto apart = best_disaggregated(step_, kMostParts);
  way.kind = WayKind::kDisaggregated;
  if (apart.ok() && model_.num_experts % kinds_.older_devices == 0 &&
      demand_.sequences % kinds_.newer_devices == 0 &&
      here <= static_cast<double>(kinds_.newer->auto_device_bytes()) &&
      there <= static_cast<double>(kinds_.older->auto_device_bytes())) {
    add(way, state, apart.value().step_s, std::max(here, there));
  }
}

void TwoKindsSearch::pipelines(const StateChoice& state) {
  const double layer =
      static_cast<double>(cost_.layers.front().replicated_parameters) *
          (kDeviceBytes + state.state_bytes) +
      static_cast<double>(model_.num_experts) * expert_bytes(state);
  const double tables =
      static_cast<double>(cost_.embedding_parameters + cost_.head_parameters) *
      (kDeviceBytes + state.state_bytes);
  const double tokens = step_tokens(demand_);
  const double kept =
      tokens * static_cast<double>(kValueBytes * cost_.hidden_size);  // of a layer, all tokens
  const auto most = [&](const MachineSheet& sheet, int32_t m) {
    const double left =
        static_cast<double>(sheet.auto_device_bytes()) - tables - layer_bytes(tokens / m);
    return static_cast<int32_t>(std::max(0.0, left / (layer + kept)));
  };
  for (int32_t m = 1; m <= kMostZebraMicrobatches; m *= 2) {
    if (demand_.sequences % m != 0) continue;
    UnequalStep step = step_;
    step.newer.most_layers = most(*kinds_.newer, m);
    step.older.most_layers = most(*kinds_.older, m);
    if (step.newer.most_layers == 0 || step.older.most_layers == 0) continue;
    const auto best = pipeline_step(step, m);
    if (!best.ok()) continue;
    int32_t longest = 0;
    for (const int32_t layers : best.value().stage_layers) longest = std::max(longest, layers);
    SearchedWay way;
    way.kind = WayKind::kPipeline;
    way.microbatches = m;
    add(std::move(way), state, best.value().step_s,
        tables + longest * (layer + kept) + layer_bytes(tokens / m));
  }
}

}  // namespace

Result<TwoKinds> two_kinds(const ClusterSheet& cluster) {
  TwoKinds kinds;
  std::vector<std::pair<const MachineSheet*, int32_t>> found;
  for (const MachineSheet& node : cluster.nodes) {
    auto same = std::find_if(found.begin(), found.end(), [&](const auto& kind) {
      return kind.first->to_toml() == node.to_toml();
    });
    if (same == found.end()) same = found.insert(found.end(), {&node, 0});
    same->second += static_cast<int32_t>(node.device.count);
  }
  if (found.size() != 2) {
    return Status(Exit::kUsage, strf("the nodes are of %zu kinds; a search knows equal ones and "
                                     "two kinds",
                                     found.size()));
  }
  if (found[0].first->device.attention_tflops < found[1].first->device.attention_tflops) {
    std::swap(found[0], found[1]);
  }
  return TwoKinds{found[0].first, found[1].first, found[0].second, found[1].second};
}

UnequalStep unequal_step(const ModelShape& model, const ClusterSheet& cluster,
                         const TwoKinds& kinds, const StepDemand& demand) {
  const ModelCost cost = model_cost(model).take();
  const double tokens = step_tokens(demand);
  const auto d = static_cast<double>(kValueBytes * model.hidden_size);
  UnequalStep step;
  step.layers = static_cast<int32_t>(model.num_layers());
  step.newer = kind_of(*kinds.newer, kinds.newer_devices, cost, demand);
  step.older = kind_of(*kinds.older, kinds.older_devices, cost, demand);
  step.exchange_bytes = tokens * static_cast<double>(model.experts_per_token) * d;
  step.boundary_bytes = tokens * d;
  step.link_bytes_per_s = cluster.network.gb_s * kGiga;
  step.latency_s = cluster.network.latency_us * kMicro;
  const LayerCost& layer = cost.layers.front();
  step.attention_gradient_bytes =
      static_cast<double>(kValueBytes * layer.replicated_parameters);
  step.expert_gradient_bytes =
      static_cast<double>(kValueBytes * layer.num_experts * layer.expert_parameters);
  return step;
}

Result<std::vector<SearchedWay>> search_two_kinds(const ModelShape& model,
                                                  const ClusterSheet& cluster,
                                                  const StepDemand& demand) {
  ASSIGN_OR_RETURN(const TwoKinds kinds, two_kinds(cluster));
  ASSIGN_OR_RETURN(const ModelCost cost, model_cost(model));
  if (std::count(model.is_moe.begin(), model.is_moe.end(), uint8_t{0}) > 0) {
    return Status(Exit::kUsage, "layers without experts on two kinds of devices are not planned; "
                                "give equal nodes");
  }
  std::vector<SearchedWay> ways =
      TwoKindsSearch(model, cost, cluster, kinds, demand).run();
  if (!ways.empty()) return ways;
  return Status(Exit::kDoesNotFit,
                strf("no way fits %d newer devices of %s and %d older ones of %s",
                     kinds.newer_devices,
                     format_bytes(kinds.newer->auto_device_bytes()).c_str(), kinds.older_devices,
                     format_bytes(kinds.older->auto_device_bytes()).c_str()));
}

}  // namespace pagoda
