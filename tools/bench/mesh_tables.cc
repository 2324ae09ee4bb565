// Meshes of stages, experts and copies (Piper) and pipelines of layers beside zebra (HeterMoE,
// section 6.3), trained on slowed CPU devices, each beside the time that the simulator has for it.
// Not installed.
//
//   mesh_tables [DIR] [--only large,small,layers,groups]
//               and what tools/bench/race_tables.h says
//
//   large   four equal devices: throughput of each mesh and order as a ratio to expert parallelism
//           alone, busy devices, and the most bytes of pages on a device, for a model of large
//           experts, with wires as fast as memory and with slow ones (Piper, Figures 10, 12, 13)
//   small   the same for a model of many small experts
//   layers  a layer of both by itself (Figure 11)
//   groups  faster and slower devices: zebra, also as copies and in stages, against pipelines whose
//           stages have layers by their speed (HeterMoE, Figure 9)
//
// One of the layouts is the one that the search of `plan --cluster` finds for these devices, by the
// costs that were measured in the same session: it is to be at most 5 % slower than the fastest of
// all. Where wires are slow, which they are in no machine's sheet, it is asked for as many machines
// of one device, whose network is as fast as a wire. A device's messages to several others share
// its card there, and here each has a wire of its own.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "tools/bench/race_tables.h"

namespace pagoda {
namespace {

using Devices = std::vector<Throttle>;

constexpr const char* kAlone = "EP 4";
constexpr const char* kFound = "as plan --cluster finds";

struct Experts {
  const char* name;
  int64_t experts, per_token, width;  // width: hidden units over the model's hidden size
};
constexpr Experts kLarge = {"8 large experts, top 2", 8, 2, 4};
constexpr Experts kSmall = {"32 small experts, top 4", 32, 4, 1};

TrainedStep trained(const RaceSetting& setting, const Experts& experts, int64_t layers,
                    int64_t row_tokens) {
  const int64_t d = setting.hidden_size;
  return {.model = {.layers = setting.tiny ? std::min<int64_t>(2, layers) : layers,
                    .hidden_size = d,
                    .heads = 8,
                    .kv_heads = 4,
                    .head_dim = d / 8,
                    .experts = experts.experts,
                    .experts_per_token = experts.per_token,
                    .expert_size = experts.width * d,
                    .vocab_size = 512,
                    .initializer_range = 0.02},
          .chunks = 4,
          .width = 4,
          .row_tokens = setting.tiny ? 16 : row_tokens};
}

// Expert parallelism within each copy of each stage.
Layout mesh(std::string name, Devices devices, int stages, int copies, int64_t chunks,
            PipelineOrder order) {
  Layout layout = expert_parallel(std::move(name), std::move(devices), ShareKind::kSpeed);
  layout.stages = stages;
  layout.copies = copies;
  layout.chunks = chunks;
  layout.pipeline = order;
  return layout;
}

std::vector<Layout> meshes_of(const Devices& devices) {
  using enum PipelineOrder;
  return {mesh(kAlone, devices, 1, 1, 1, kBreadthFirst),
          mesh("EP 2 x DP 2", devices, 1, 2, 1, kBreadthFirst),
          mesh("DP 4", devices, 1, 4, 1, kBreadthFirst),
          mesh("PP 2 x EP 2, GPipe, 4 chunks", devices, 2, 1, 4, kGpipe),
          mesh("PP 2 x EP 2, 1F1B, 4 chunks", devices, 2, 1, 4, kOneForwardOneBackward),
          mesh("PP 2 x EP 2, 1F1B, 8 chunks", devices, 2, 1, 8, kOneForwardOneBackward),
          mesh("PP 2 x EP 2, breadth first, 4", devices, 2, 1, 4, kBreadthFirst),
          mesh("PP 2 x DP 2, breadth first, 4", devices, 2, 2, 4, kBreadthFirst),
          mesh("PP 4, 1F1B, 8 chunks", devices, 4, 1, 8, kOneForwardOneBackward),
          mesh("PP 4, breadth first, 8", devices, 4, 1, 8, kBreadthFirst)};
}

double mean(const std::vector<double>& of) {
  double sum = 0;
  for (const double one : of) sum += one;
  return sum / static_cast<double>(of.size());
}

// Adds the layout that the search finds by what the race's devices take, if one fits.
void add_found(LayoutRace& race, const Devices& devices, std::vector<Layout>& layouts,
               const SlowLink::Speed& wire = {}) {
  const std::optional<Layout> found = race.search(kFound, devices, wire);
  if (!found) {
    std::printf("\nThe search found no layout that fits\n");
    return;
  }
  layouts.push_back(*found);
  race.add(*found);
}

// Each of a race beside `base`.
void print_race(RaceSetting& setting, LayoutRace& race, const std::vector<std::string>& names,
                const std::string& base) {
  const LayoutTimes of_base = race.times(base);
  std::printf(
      "  %-30s   s/step simulated    error  of %s simulated   busy %% simulated  MiB of "
      "pages\n",
      "", base.c_str());
  for (const std::string& name : names) {
    const LayoutTimes t = race.times(name);
    std::printf("  %-30s %8.3f %9.3f %+6.1f %%  %7.2f %9.2f  %7.0f %9.0f  %12.1f\n", name.c_str(),
                t.measured_s, t.simulated_s, 100 * t.error(), of_base.measured_s / t.measured_s,
                of_base.simulated_s / t.simulated_s, 100 * mean(t.busy),
                100 * mean(t.simulated_busy),
                static_cast<double>(t.peak_bytes) / static_cast<double>(kMiB));
  }
  note_errors(setting, race, names);
  const bool searched = std::ranges::count(names, kFound) > 0;
  note_choice(setting, race, names, searched ? kFound : "");
  finish(setting, race);
}

std::vector<std::string> names_of_all(const std::vector<Layout>& layouts) {
  std::vector<std::string> names;
  for (const Layout& layout : layouts) names.push_back(layout.name);
  return names;
}

// `exchange`: the part of a step that wires of expert parallelism alone work; 0: they are fast.
void race_meshes(RaceSetting& setting, const Experts& experts, double exchange) {
  const Devices devices(4, {8, 8});
  LayoutRace race = setting.race(trained(setting, experts, 4, 64), 1);
  std::vector<Layout> layouts = meshes_of(devices);
  if (setting.tiny) layouts = {layouts[0], layouts[4]};
  SlowLink::Speed wire;
  if (exchange > 0) {
    wire = race.wire_for(layouts.front(), exchange);
    // Gradients and weights of copies take several times the step there.
    std::erase_if(layouts, [](const Layout& layout) { return layout.copies > 1; });
  }
  for (Layout& layout : layouts) {
    layout.wire = wire;
    race.add(layout);
  }
  add_found(race, devices, layouts, wire);
  setting.run(race);
  std::printf("\nMeshes of cpu/8*4, %s, %s\n", experts.name,
              exchange > 0 ? strf("wires of %.1f MB/s", 1e-6 * wire.bytes_per_s).c_str()
                           : "wires as fast as memory");
  print_race(setting, race, names_of_all(layouts), kAlone);
}

// A layer by itself, as fast as a pipeline of such layers can become.
void race_layers(RaceSetting& setting) {
  std::printf("\nOne layer on cpu/8*4 (Figure 11): expert parallelism alone\n");
  for (const Experts& experts : {kLarge, kSmall}) {
    LayoutRace race = setting.race(trained(setting, experts, 1, 64), 1);
    race.add(meshes_of(Devices(4, {8, 8})).front());
    setting.run(race);
    const LayoutTimes t = race.times(kAlone);
    const double d = static_cast<double>(setting.hidden_size);
    const auto active = static_cast<double>(experts.per_token * experts.width);
    // Experts alone: three matrices, a multiplication and an addition, forward and twice backward.
    const double flops =
        3 * 2 * 3 * active * d * d * static_cast<double>(trained(setting, experts, 1, 64).tokens());
    std::printf(
        "  %-26s %.3f s, simulated %.3f s; devices are busy for %.0f %%, simulated %.0f; "
        "%.2f GFLOP/s of experts\n",
        experts.name, t.measured_s, t.simulated_s, 100 * mean(t.busy), 100 * mean(t.simulated_busy),
        1e-9 * flops / t.measured_s);
    setting.errors.push_back(std::abs(t.error()));
    finish(setting, race);
  }
}

void large(RaceSetting& setting) {
  race_meshes(setting, kLarge, 0);
  race_meshes(setting, kLarge, 0.5);
}

void small(RaceSetting& setting) {
  race_meshes(setting, kSmall, 0);
  if (!setting.tiny) race_meshes(setting, kSmall, 0.5);
}

void layers(RaceSetting& setting) {
  race_layers(setting);
  std::printf(
      "  The paper (MI250X): a layer of large experts has a higher MFU than one of small ones, and "
      "so have whole models;\n  pipelined expert parallelism has 2 to 3.6 x the throughput of "
      "expert parallelism with slow all-to-alls.\n");
}

// Zebra on so many devices of a pair's two kinds against pipelines of layers. With as many of each,
// a stage has those of a kind, a copy for each of them; else each device is a stage.
void race_groups(RaceSetting& setting, const DevicePair& pair, bool long_rows, size_t faster,
                 size_t slower) {
  using enum PipelineOrder;
  const Throttle slow = long_rows ? pair.slower_long : pair.slower_short;
  const Devices fast(faster, pair.faster), others(slower, slow);
  TrainedStep step = trained(setting, kSmall, 6, long_rows ? 384 : 64);
  step.width = 2;
  LayoutRace race = setting.race(step, 1);
  std::vector<Layout> layouts = {race.plan_zebra(disaggregated("zebra", fast, others), true)};
  Devices all = fast;
  all.insert(all.end(), others.begin(), others.end());
  const int stages = faster == slower ? 2 : static_cast<int>(all.size());
  const int copies = faster == slower ? static_cast<int>(faster) : 1;
  for (const PipelineOrder order : {kGpipe, kOneForwardOneBackward, kBreadthFirst}) {
    if (setting.tiny && order != kBreadthFirst) continue;
    constexpr const char* kNames[] = {"GPipe", "1F1B", "breadth first"};
    const char* of_order = kNames[static_cast<size_t>(order)];
    layouts.push_back(mesh(strf("PP %d x DP %d, %s, 4 chunks", stages, copies, of_order), all,
                           stages, copies, 4, order));
  }
  layouts.push_back(mesh("EP by speed", all, 1, 1, 1, kBreadthFirst));
  if (faster > 1 && faster == slower) {
    Devices pairs;
    for (size_t i = 0; i < faster; ++i) pairs.insert(pairs.end(), {pair.faster, slow});
    for (const bool in_stages : {false, true}) {
      Layout layout = disaggregated(in_stages ? "zebra in 2 stages" : "zebra, 2 copies", pairs, {});
      layout.attention_devices = 1;
      (in_stages ? layout.stages : layout.copies) = 2;
      layouts.push_back(race.plan_zebra(layout, true));
    }
  }
  for (const Layout& layout : layouts) race.add(layout);
  add_found(race, all, layouts);
  setting.run(race);
  std::printf("\nGroups, %s: %s, rows of %lld tokens, %s\n", pair.name, names_of(all).c_str(),
              (long long)(long_rows ? 384 : 64), kSmall.name);
  print_race(setting, race, names_of_all(layouts), "zebra");
  double measured = 1e9, simulated = 1e9;
  for (const Layout& layout : layouts) {
    if (layout.stages == 1 || layout.zebra || layout.name == kFound) continue;
    measured = std::min(measured, race.times(layout.name).measured_s);
    simulated = std::min(simulated, race.times(layout.name).simulated_s);
  }
  const LayoutTimes zebra = race.times("zebra");
  std::printf("  zebra over the best pipeline of layers: %.2f x (simulated %.2f)\n",
              measured / zebra.measured_s, simulated / zebra.simulated_s);
}

void groups(RaceSetting& setting) {
  race_groups(setting, kA40AndV100, false, 1, 1);
  if (setting.tiny) return;
  race_groups(setting, kA40AndV100, true, 1, 1);
  race_groups(setting, kA40AndV100, false, 1, 2);
  race_groups(setting, kA40AndV100, false, 2, 2);
  race_groups(setting, kL40sAndT4, true, 1, 1);
  std::printf(
      "  The paper: zebra has 1.28 x the throughput of a pipeline of layers on average, "
      "1.07 to 1.21 x at 4K, 1.47 x at most.\n");
}

const RaceTable kTables[] = {
    {"large", large}, {"small", small}, {"layers", layers}, {"groups", groups}};

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  return pagoda::print_tables(argc, argv, "mesh_tables", pagoda::kTables);
}
