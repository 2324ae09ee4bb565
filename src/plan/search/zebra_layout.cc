#include "plan/search/zebra_layout.h"

#include <algorithm>
#include <cmath>

#include "base/bytes.h"
#include "base/si_units.h"
#include "plan/step/stages.h"

namespace pagoda {
namespace {

// Layers divide among stages as devices do.
DeviceRange stage_layers(int64_t num_layers, const ZebraLayout& layout, int32_t stage) {
  return devices_of_stage(stage, layout.stages, static_cast<int>(num_layers));
}

Status indivisible(const std::string& what) {
  return Status(Exit::kUsage, "zebra groups: " + what);
}

Status check_layout(const ModelShape& model, const NodePair& kinds, const ClusterDemand& demand,
                    const ZebraLayout& l) {
  if (l.stages < 1 || l.copies < 1 || l.chunks < 1 || l.microbatches < 1) {
    return indivisible(strf("%d stages, %d copies, %d chunks, %d microbatches: give at least one "
                            "of each",
                            l.stages, l.copies, l.chunks, l.microbatches));
  }
  if (kinds.faster_devices % l.groups() != 0 || kinds.slower_devices % l.groups() != 0) {
    return indivisible(strf("%d faster and %d slower devices do not divide among %d groups",
                            kinds.faster_devices, kinds.slower_devices, l.groups()));
  }
  if (l.stages > model.num_layers()) {
    return indivisible(strf("%d stages of %lld layers", l.stages, (long long)model.num_layers()));
  }
  const int64_t devices = int64_t{l.copies} * (kinds.faster_devices / l.groups());
  const int64_t parts = devices * l.chunks * l.microbatches;
  if (demand.sequences % parts != 0) {
    return indivisible(strf("%lld sequences do not divide among %lld attention devices, %d chunks "
                            "and %d microbatches",
                            (long long)demand.sequences, (long long)devices, l.chunks,
                            l.microbatches));
  }
  return Status();
}

}  // namespace

Result<ZebraPipeline> zebra_pipeline(const ModelShape& model, const ClusterSheet& cluster,
                                     const NodePair& kinds, const ClusterDemand& demand,
                                     const ZebraLayout& layout) {
  RETURN_IF_ERROR(check_layout(model, kinds, demand, layout));
  NodePair group = kinds;
  group.faster_devices /= layout.groups();
  group.slower_devices /= layout.groups();
  ClusterDemand chunk = demand;
  chunk.sequences /= int64_t{layout.copies} * layout.chunks;
  HeterogeneousStep step = heterogeneous_step(model, cluster, group, chunk);
  step.groups = layout.copies;
  ZebraPipeline pipeline;
  pipeline.chunks = layout.chunks;
  const double row_bytes = static_cast<double>(kValueBytes * model.hidden_size);
  const double tokens = static_cast<double>(chunk.sequences * chunk.sequence_len);
  pipeline.boundary_s =
      kMicro * cluster.network.latency_us +
      tokens * row_bytes / layout.microbatches / group.faster_devices / step.link_bytes_per_s;
  for (int32_t s = 0; s < layout.stages; ++s) {
    step.layers = stage_layers(model.num_layers(), layout, s).count;
    ASSIGN_OR_RETURN(ZebraGroup stage, zebra_group(step, layout.microbatches,
                                                   static_cast<int32_t>(model.num_experts)));
    stage.send_again = layout.send_again;
    pipeline.stages.push_back(std::move(stage));
  }
  return pipeline;
}

double zebra_least_s(const ZebraPipeline& pipeline, std::span<const AsymBounds> bounds) {
  double least_s = 0;
  for (size_t s = 0; s < pipeline.stages.size(); ++s) {
    const ZebraGroup& g = pipeline.stages[s];
    const ZebraTimes& t = g.times;
    const bool last = s + 1 == pipeline.stages.size();
    const double in_all = double{1} * pipeline.chunks * g.microbatches;
    const double of_layers = in_all * g.layers;
    const auto both = [](const PassSeconds& pass) { return pass.forward_s + pass.backward_s; };
    const double again_s = g.send_again ? t.dispatch.forward_s : 0;
    const double there_s = of_layers * (t.dispatch.forward_s + t.combine.backward_s + again_s);
    const double back_s = of_layers * (t.combine.forward_s + t.dispatch.backward_s);
    const double attention_s =
        of_layers * both(t.attention) + (last ? in_all * t.head_s : 0);
    const double experts_s = of_layers * both(t.expert);
    // Gains and costs of moving one expert of one layer, of `experts` times the layers.
    const double all = double{1} * g.experts * g.layers;
    const double gains_s = experts_s / all;
    const double costs_s = of_layers * both(t.offloaded_expert) * g.expert_devices /
                           g.attention_devices / all;
    const double even = (experts_s - attention_s) / (gains_s + costs_s);
    const double most =
        std::min(all, static_cast<double>(bounds[s].most_per_attention_device) *
                          g.attention_devices);
    const double moved = std::max(std::clamp(even, 0.0, most),
                                  static_cast<double>(bounds[s].least));
    // The only attention device sends no rows to experts that it has.
    const double travels = g.attention_devices == 1 ? 1 - most / all : 1;
    least_s = std::max({least_s, there_s * travels, back_s * travels, attention_s + moved * costs_s,
                        experts_s - moved * gains_s});
  }
  return least_s;
}

ZebraRoom ZebraMemory::room(const ZebraLayout& layout, const StateChoice& state, int32_t stage,
                            double given) const {
  const LayerCost& layer = cost_.layers.front();
  const auto layers =
      static_cast<double>(stage_layers(std::ssize(cost_.layers), layout, stage).count);
  const double parameter_bytes = state.device_bytes();
  const int32_t m = attention_devices(layout), n = expert_devices(layout);
  const double tokens = static_cast<double>(demand_.sequence_len * demand_.sequences) /
                        layout.copies / layout.chunks;  // of a chunk
  const double rows = tokens * static_cast<double>(layer.experts_per_token);
  const double input_bytes = static_cast<double>(kValueBytes * cost_.hidden_size);
  ZebraRoom room;
  const double summed_layers = layout.stages > 1 ? layers : 1;
  room.expert = static_cast<double>(layer.expert_parameters) *
                (parameter_bytes + sizeof(float) * summed_layers / layers);
  DeviceParameters dense{layers * static_cast<double>(layer.replicated_parameters), layers};
  if (stage == 0)
    dense = dense + DeviceParameters{static_cast<double>(cost_.embedding_parameters), 1};
  if (stage + 1 == layout.stages) {
    dense = dense + DeviceParameters{static_cast<double>(cost_.head_parameters), 1};
  }
  const double all = layers * static_cast<double>(layer.num_experts) / n;
  const DeviceParameters expert{static_cast<double>(layer.expert_parameters), 1};
  room.attention = dense + expert * (given * n / m);
  room.held_experts = all - given;
  room.experts = expert * room.held_experts;
  const double row_room = static_cast<double>(layer.row_bytes) * rows / layout.microbatches;
  const double token_room =
      static_cast<double>(layer.token_bytes + 2 * layer.heads) * tokens / layout.microbatches;
  room.attention_fixed = dense.parameters * parameter_bytes + given * n / m * room.expert +
                         (token_room + row_room) / m;
  room.expert_fixed = room.held_experts * room.expert + row_room / n;
  room.chunks = std::min(layout.stages - stage, layout.chunks);  // of 1F1B
  room.attention_inputs = layers * tokens / m * input_bytes * (layout.send_again ? 2 : 1);
  room.expert_inputs = layers * rows / n * input_bytes;
  if (layout.send_again) {
    room.expert_inputs = 0;
    room.expert_fixed += rows / n * input_bytes;
  }
  return room;
}

Result<std::vector<AsymBounds>> ZebraMemory::bounds(const ZebraLayout& layout,
                                                    const StateChoice& state) const {
  std::vector<AsymBounds> bounds;
  const auto faster = static_cast<double>(kinds_.faster->auto_device_bytes());
  const auto slower = static_cast<double>(kinds_.slower->auto_device_bytes());
  for (int32_t s = 0; s < layout.stages; ++s) {
    const ZebraRoom room = this->room(layout, state, s, 0);
    const double kept = room.expert_bytes() - room.held_experts * room.expert;
    if (room.attention_bytes() > faster || kept > slower) {
      const bool attention = room.attention_bytes() > faster;
      return Status(
          Exit::kDoesNotFit,
          strf(
              "stage %d takes %s of each %s device without experts, and it has %s", s,
              format_bytes(static_cast<int64_t>(attention ? room.attention_bytes() : kept)).c_str(),
              attention ? "attention" : "expert",
              format_bytes(static_cast<int64_t>(attention ? faster : slower)).c_str()));
    }
    const double held = expert_devices(layout) * std::floor((slower - kept) / room.expert);
    const double all = room.held_experts * expert_devices(layout);
    AsymBounds& of_stage = bounds.emplace_back();
    of_stage.most_per_attention_device =
        static_cast<int64_t>((faster - room.attention_bytes()) / room.expert);
    of_stage.least = static_cast<int64_t>(std::max(0.0, std::round(all) - held));
  }
  return bounds;
}

std::vector<ZebraRoom> ZebraMemory::rooms(const ZebraLayout& layout, const StateChoice& state,
                                          const std::vector<int32_t>& offloaded) const {
  std::vector<ZebraRoom> rooms;
  for (int32_t s = 0; s < layout.stages; ++s) {
    const DeviceRange layers = stage_layers(std::ssize(cost_.layers), layout, s);
    double given = 0;
    for (int l = layers.first; l < layers.end(); ++l) given += offloaded[static_cast<size_t>(l)];
    rooms.push_back(room(layout, state, s, given));
  }
  return rooms;
}

ZebraMemory::Fullest ZebraMemory::fullest(const ZebraLayout& layout, const StateChoice& state,
                                          const std::vector<int32_t>& offloaded) const {
  Fullest most;
  for (const ZebraRoom& room : rooms(layout, state, offloaded)) {
    most.bytes = std::max({most.bytes, room.attention_bytes(), room.expert_bytes()});
    if (room.attention.parameters > most.attention.parameters) most.attention = room.attention;
    if (room.experts.parameters > most.experts.parameters) most.experts = room.experts;
  }
  return most;
}

}  // namespace pagoda
