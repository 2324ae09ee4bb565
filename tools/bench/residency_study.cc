// How many pages residency moves, beside plain LRU, pinning, and Belady's clairvoyant choice over
// the whole run. Replays plans (plan/step/step_plan.h) over routing that is drawn or recorded;
// nothing is computed or transferred. Not installed.
//
//   residency_study                         drawn routing
//   residency_study replay FILE             recorded routing (train --trace-routing)
//
// Tier "device": uploads of expert weights a step; host memory holds everything, a budget is the
// share of expert weights that fits the device. Tier "host": MB read a step of expert weights and
// state as if an expert had 10^6 parameters (2 and 10 MB); a budget is the share of every class of
// expert pages that fits the host, and the device has a tenth of the weights.
#include <cmath>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/file.h"
#include "base/random.h"
#include "plan/step/pinning.h"
#include "plan/step/replay.h"
#include "plan/step/routing_trace.h"
#include "tests/testing/plan/dry_run.h"

namespace pagoda {
namespace {

using Layers = std::vector<std::vector<int64_t>>;  // tokens of each expert of a step
using Routings = std::vector<Layers>;              // [step]

enum class Regime { kDeferred, kEager, kForward };
constexpr const char* kRegimeNames[] = {"train, clip=global", "train, eager Adam", "forward only"};

// Drawn routing: 8 layers of 64 experts, 128 choices a layer and step.
constexpr int64_t kLayers = 8, kExperts = 64, kChoices = 128;
constexpr int kSteps = 24;
constexpr uint64_t kSeed = 1;

// The expert whose share of the total weight holds a random point.
size_t choose(const std::vector<double>& weights, uint64_t a, uint64_t b) {
  double total = 0;
  for (double w : weights) total += w;
  double at = random_unit(kSeed, RandomPurpose::kTest, a, b) * total;
  size_t e = 0;
  while (e + 1 < weights.size() && (at -= weights[e]) > 0) ++e;
  return e;
}

// Expert e of a layer has weight 1 / rank^exponent; ranks differ from layer to layer. With
// probability `sticky` a choice is the same as in the step before.
Routings draw_routing(double exponent, double sticky) {
  Routings routing;
  std::vector<std::vector<size_t>> chosen(kLayers, std::vector<size_t>(kChoices, 0));
  for (uint64_t step = 0; step < kSteps; ++step) {
    Layers layers(kLayers, std::vector<int64_t>(kExperts, 0));
    for (uint64_t l = 0; l < kLayers; ++l) {
      std::vector<double> weights;
      for (uint64_t e = 0; e < kExperts; ++e) {
        const auto rank = static_cast<double>(1 + random_permutation(kSeed, l, kExperts, e));
        weights.push_back(std::pow(rank, -exponent));
      }
      for (uint64_t c = 0; c < kChoices; ++c) {
        const uint64_t counter = (step * kLayers + l) * kChoices + c;
        const bool again =
            step > 0 && random_unit(kSeed, RandomPurpose::kTest, 1, counter) <= sticky;
        if (!again) chosen[l][c] = choose(weights, 2, counter);
        ++layers[l][chosen[l][c]];
      }
    }
    routing.push_back(std::move(layers));
  }
  return routing;
}

RunShape shape_of(const Layers& layers) {
  RunShape shape;
  shape.num_layers = static_cast<int64_t>(layers.size());
  shape.hidden_size = 64;
  shape.experts_per_token = 1;
  shape.microbatches = 1;
  shape.microbatch_tokens = 1;
  shape.row_block = int64_t{1} << 20;
  shape.records.push_back({3000});
  for (int64_t l = 0; l < shape.num_layers; ++l) {
    shape.is_moe.push_back(!layers[l].empty());
    shape.num_experts = std::max(shape.num_experts, static_cast<int64_t>(layers[l].size()));
    shape.layer_record.push_back(static_cast<int64_t>(shape.records.size()));
    shape.records.push_back({2000, l});
    for (size_t e = 0; e < layers[l].size(); ++e) {
      shape.records.push_back({1000, l, static_cast<int64_t>(e)});
    }
  }
  shape.records.push_back({3000});
  for (RecordShape& record : shape.records) record.state_bytes = 10 * record.num_elements;
  return shape;
}

// A piece of a step, and the step's routing if it is the last.
struct Batch {
  StepPiece piece;
  const Layers* ended = nullptr;
};

// The run's pieces in order, as training issues them.
std::vector<Batch> batches_of(const RunShape& shape, const PageTable& pages,
                              const std::vector<SlotClass>& classes, Regime regime,
                              const Routings& routing) {
  RunShape as_asked = shape;
  as_asked.eager_adam = regime == Regime::kEager;
  DryRun run(as_asked, pages, classes, false,
             Ledger(false, 0, std::vector<int64_t>(shape.records.size(), 0)));
  std::vector<Batch> batches;
  const auto visit = [&](const StepPiece& piece) { batches.push_back({piece, nullptr}); };
  for (const Layers& tokens : routing) {
    if (regime == Regime::kForward) {
      run.evaluate({tokens}, visit);
    } else {
      run.train({tokens}, visit);
    }
    batches.back().ended = &tokens;
  }
  return batches;
}

struct Policy {
  const char* name;
  bool foresees = false, expects = false, clairvoyant = false;
  int device_depth = 1, host_depth = 1;
  double pinned_share = 0;
};
// Training uses the last but one, depths of SlotClass included.
constexpr Policy kPolicies[] = {
    {.name = "lru"},
    {.name = "lru, pin 25%", .pinned_share = 0.25},
    {.name = "foresees", .foresees = true},
    {.name = "expects", .expects = true},
    {.name = "both", .foresees = true, .expects = true},
    {.name = "ours, pin 25%", .foresees = true, .expects = true, .device_depth = 2,
     .host_depth = 3, .pinned_share = 0.25},
    {.name = "ours", .foresees = true, .expects = true, .device_depth = 2, .host_depth = 3},
    {.name = "belady", .foresees = true, .clairvoyant = true},
};

struct Misses {
  double uploads = 0, mb_read = 0;  // a step, of expert pages
};

void count(const PageTable& pages, std::span<const Move> moves, Misses& misses) {
  for (const Move& move : moves) {
    const PageTable::Class& info = pages.classes[pages.pages[move.page].slot_class];
    if (!info.expert) continue;
    const bool weights = info.kind == PageKind::kWeights;
    if (move.kind == Move::Kind::kUpload) misses.uploads += weights;
    if (move.kind == Move::Kind::kFetch) misses.mb_read += info.kind == PageKind::kState ? 10 : 2;
  }
}

Misses replay_of(const RunShape& shape, const PageTable& pages, std::vector<SlotClass> classes,
                 const std::vector<Batch>& batches, size_t steps, const Policy& policy) {
  for (SlotClass& c : classes) {
    c.device_depth = policy.device_depth;
    c.host_depth = policy.host_depth;
  }
  Replay replay(&pages, all_on_disk(shape, pages, classes));
  if (policy.clairvoyant) {
    std::vector<PageUse> uses;
    for (const Batch& batch : batches) add_uses(batch.piece.tasks, uses);
    replay.foresee(uses);
  }
  Misses misses;
  for (const Batch& batch : batches) {
    const StepPiece& piece = batch.piece;
    if (piece.cycle == StepPiece::Cycle::kBegins && policy.expects) replay.begin_cycle();
    const bool foresees = policy.foresees && !policy.clairvoyant;
    if (foresees && piece.foreseen_later) replay.foresee_later(*piece.foreseen_later);
    if (foresees && piece.foreseen) replay.foresee(*piece.foreseen);
    for (const Task& task : piece.tasks) count(pages, replay.place(task).moves, misses);
    if (!batch.ended || policy.pinned_share == 0) continue;
    replay.keep(pinned_weights(shape, pages, classes, *batch.ended, policy.pinned_share));
  }
  misses.uploads /= static_cast<double>(steps);
  misses.mb_read /= static_cast<double>(steps);
  return misses;
}

// Everything fits but experts: of their weights `on_device`, of all their pages `in_host`.
std::vector<SlotClass> slots_for(const PageTable& pages, double on_device, double in_host) {
  std::vector<SlotClass> classes;
  for (const PageTable::Class& info : pages.classes) {
    const auto count = static_cast<double>(info.num_pages);
    const bool pages_out = info.expert && info.kind != PageKind::kInbound &&
                           info.kind != PageKind::kOutbound;
    SlotClass slots{{static_cast<int32_t>(count)}, static_cast<int32_t>(count)};
    if (pages_out) {
      const double device = info.kind == PageKind::kWeights ? on_device * count : 2;
      slots.device_slots[0] = std::max(2, static_cast<int32_t>(device));
      slots.host_slots = std::max(3, static_cast<int32_t>(in_host * count));
    }
    classes.push_back(slots);
  }
  return classes;
}

void print_row(const char* routing, Regime regime, const char* tier, int percent,
               const std::vector<double>& misses) {
  std::printf("| %s | %s | %s | %d%% |", routing, kRegimeNames[static_cast<int>(regime)], tier,
              percent);
  for (double m : misses) std::printf(" %.1f |", m);
  const double lru = misses.front(), ours = misses.end()[-2], belady = misses.back();
  std::printf(" %.3f | %.3f |\n", belady > 0 ? ours / belady : 1.0, lru > 0 ? ours / lru : 1.0);
}

void study(const char* name, const Routings& routing) {
  const RunShape shape = shape_of(routing.front());
  for (Regime regime : {Regime::kDeferred, Regime::kEager, Regime::kForward}) {
    RunShape run_shape = shape;
    run_shape.training = regime != Regime::kForward;
    run_shape.options.prefetch = false;  // no speculation: its uploads are not misses
    const PageTable pages(run_shape);
    for (const bool host : {false, true}) {
      for (int percent : {10, 25, 50, 75, 90}) {
        const double share = percent / 100.0;
        const auto classes = host ? slots_for(pages, 0.1, share) : slots_for(pages, share, 1.0);
        const auto batches = batches_of(run_shape, pages, classes, regime, routing);
        std::vector<double> misses;
        for (const Policy& policy : kPolicies) {
          const Misses m =
              replay_of(run_shape, pages, classes, batches, routing.size(), policy);
          misses.push_back(host ? m.mb_read : m.uploads);
        }
        print_row(name, regime, host ? "host" : "device", percent, misses);
      }
    }
  }
}

void print_head() {
  std::printf("| routing | regime | tier | budget |");
  for (const Policy& policy : kPolicies) std::printf(" %s |", policy.name);
  std::printf(" ours/belady | ours/lru |\n|---|---|---|---|");
  for (size_t i = 0; i < std::size(kPolicies); ++i) std::printf("---|");
  std::printf("---|---|\n");
}

int fail(const Status& status) {
  std::fprintf(stderr, "residency_study: %s\n", status.message().c_str());
  return static_cast<int>(status.code());
}

Result<Routings> read_routing(const std::string& path) {
  constexpr int64_t kMostBytes = kGiB;
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, Links::kFollow, kMostBytes));
  ASSIGN_OR_RETURN(const RoutingTrace trace, parse_routing_trace(text));
  if (trace.steps.empty()) return Status(Exit::kBadData, path + ": no whole step in it");
  Routings routing;
  for (const RoutedStep& step : trace.steps) {
    Layers& layers = routing.emplace_back();
    for (size_t l = 0; l < trace.shape.is_moe.size(); ++l) {
      layers.push_back(tokens_per_expert(layer_routing(step.routing, static_cast<int64_t>(l))));
    }
  }
  return routing;
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "replay") {
    const auto routing = read_routing(words[1]);
    if (!routing.ok()) return fail(routing.status());
    print_head();
    study("recorded", routing.value());
    return 0;
  }
  if (!words.empty()) return fail(Status(Exit::kUsage, "see the head of residency_study.cc"));
  print_head();
  study("uniform", draw_routing(0, 0));
  study("zipf 1.0", draw_routing(1, 0));
  study("sticky 0.9", draw_routing(0, 0.9));
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::run({argv + 1, argv + argc}); }
